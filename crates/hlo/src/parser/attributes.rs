//! Attributes: what follows the operands. Their names decide their types; which opcode takes which is one table.

mod allowed;
mod value;

use std::sync::Arc;

use memplan_ir::{
    ComputationId, ConvolutionDimensions, Dimensions, Domain, Extras, Instruction, InstructionId, Literal,
    Metadata, Opcode, OutputOperandAlias, PaddingDimension, Precision, ReplicaGroups, Shape, SliceDimension,
    TensorSparsity, Window,
};
use smallvec::SmallVec;
use strum::{EnumIter, IntoStaticStr};

use self::allowed::{allowed, is_allowed};
use super::{
    cursor::{Cursor, Parsed},
    instruction::Head,
    module::{Parser, Scope},
};
use crate::{error::ParseErrorKind, lexer::Token, tables};

/// The attributes that only some opcodes take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, EnumIter, IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Attribute {
    Algorithm,
    ApiVersion,
    AsyncExecutionThread,
    BatchGroupCount,
    Body,
    BranchComputations,
    CalledComputations,
    Calls,
    ChannelId,
    CollapsedSliceDims,
    Condition,
    ConstrainLayout,
    ConvolutionKind,
    CrossProgramPrefetchIndex,
    CustomCallHasSideEffect,
    CustomCallTarget,
    Delta,
    DimLabels,
    Dimensions,
    Direction,
    Distribution,
    Domain,
    DynamicSliceSizes,
    Epsilon,
    ExponentBits,
    FalseComputation,
    FeatureGroupCount,
    FeatureIndex,
    FftLength,
    FftType,
    HasDynamicRoot,
    Index,
    IndexVectorDim,
    IndicesAreSorted,
    InfeedConfig,
    InferredDimension,
    InputBatchingDims,
    InsertedWindowDims,
    IotaDimension,
    IsAssociative,
    IsComposite,
    IsHostTransfer,
    IsReverse,
    IsStable,
    K,
    Kind,
    Largest,
    LeftSide,
    LhsBatchDims,
    LhsContractingDims,
    LhsRaggedDims,
    Literal,
    Lower,
    MantissaBits,
    Mode,
    NumCarries,
    OffsetDims,
    OperandBatchingDims,
    OperandLayoutConstraints,
    OperandPrecision,
    OutfeedConfig,
    OutfeedShape,
    OutputToOperandAliasing,
    Padding,
    PaddingType,
    ReplicaGroups,
    ResultAccuracy,
    RhsBatchDims,
    RhsContractingDims,
    RhsGroupDims,
    Scatter,
    ScatterDimsToOperandDims,
    ScatterIndicesBatchingDims,
    Schedule,
    Select,
    Slice,
    SliceSizes,
    SourceTargetPairs,
    SparsityConfig,
    StartIndexMap,
    StartIndicesBatchingDims,
    ToApply,
    TransposeA,
    TrueComputation,
    Type,
    UniqueIndices,
    UnitDiagonal,
    UpdateWindowDims,
    UseGlobalDeviceIds,
    Window,
}

/// The attributes of every instruction, for the message that lists what is allowed.
const COMMON: &str = "backend_config, control-predecessors, frontend_attributes, metadata, origin, \
                      parameter_replication, sharding, statistics";

/// What an attribute says.
#[derive(Debug)]
pub(super) enum Value<'s> {
    Aliases(Vec<OutputOperandAlias>),
    Boolean(bool),
    Bytes(Box<[u8]>),
    Computation(ComputationId),
    Computations(SmallVec<[ComputationId; 4]>),
    Domain(Box<Domain>),
    Float(f64),
    Groups(Box<ReplicaGroups>),
    Integer(i64),
    IntegerLists(Vec<Dimensions>),
    Integers(Dimensions),
    Labels(Box<ConvolutionDimensions>),
    Literal(Box<Literal>),
    Padding(SmallVec<[PaddingDimension; 2]>),
    Pairs(Vec<(i64, i64)>),
    Precisions(SmallVec<[Precision; 3]>),
    Shape(Box<Shape>),
    Shapes(Vec<Shape>),
    Slice(SmallVec<[SliceDimension; 2]>),
    Sparsity(Box<[Option<TensorSparsity>; 2]>),
    Text(Box<str>),
    Window(Box<Window>),
    Word(&'s str),
}

/// What followed the operands of one instruction.
#[derive(Default)]
pub(super) struct Attributes<'s> {
    /// Those the opcode takes. The byte is where the value begins.
    own: SmallVec<[(Attribute, usize, Value<'s>); 4]>,
    /// Which attributes were seen, one bit each.
    seen: u128,
    pub(super) metadata: Option<Arc<Metadata>>,
    pub(super) backend_config: Option<Box<[u8]>>,
    pub(super) control_predecessors: Vec<InstructionId>,
    pub(super) extras: Option<Box<Extras>>,
    seen_common: u16,
}

macro_rules! takers {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {
        $(pub(super) fn $name(&mut self, attribute: Attribute) -> Option<$type> {
            match self.take(attribute)?.1 {
                Value::$variant(value) => Some(value),
                other => unreachable!("the name {attribute:?} decides the type of {other:?}"),
            }
        })*
    };
}

impl<'s> Attributes<'s> {
    takers! {
        aliases: Aliases -> Vec<OutputOperandAlias>;
        boolean: Boolean -> bool;
        bytes: Bytes -> Box<[u8]>;
        computation: Computation -> ComputationId;
        computations: Computations -> SmallVec<[ComputationId; 4]>;
        domain: Domain -> Box<Domain>;
        float: Float -> f64;
        groups: Groups -> Box<ReplicaGroups>;
        integer: Integer -> i64;
        integers: Integers -> Dimensions;
        labels: Labels -> Box<ConvolutionDimensions>;
        literal: Literal -> Box<Literal>;
        padding: Padding -> SmallVec<[PaddingDimension; 2]>;
        pairs: Pairs -> Vec<(i64, i64)>;
        precisions: Precisions -> SmallVec<[Precision; 3]>;
        shape: Shape -> Box<Shape>;
        shapes: Shapes -> Vec<Shape>;
        slice: Slice -> SmallVec<[SliceDimension; 2]>;
        sparsity: Sparsity -> Box<[Option<TensorSparsity>; 2]>;
        string: Text -> Box<str>;
        window: Window -> Box<Window>;
    }

    pub(super) fn has(&self, attribute: Attribute) -> bool {
        self.own.iter().any(|(a, ..)| *a == attribute)
    }

    /// Where the value of an attribute begins.
    pub(super) fn place(&self, attribute: Attribute) -> Option<usize> {
        self.own.iter().find(|(a, ..)| *a == attribute).map(|(_, at, _)| *at)
    }

    /// A word with its place.
    pub(super) fn word(&mut self, attribute: Attribute) -> Option<(usize, &'s str)> {
        match self.take(attribute)? {
            (at, Value::Word(word)) => Some((at, word)),
            (_, other) => unreachable!("the name {attribute:?} decides the type of {other:?}"),
        }
    }

    fn take(&mut self, attribute: Attribute) -> Option<(usize, Value<'s>)> {
        let at = self.own.iter().position(|(a, ..)| *a == attribute)?;
        let (_, place, value) = self.own.swap_remove(at);
        Some((place, value))
    }

    /// Moves the notes to their instruction.
    pub(super) fn finish(self, instruction: &mut Instruction) {
        debug_assert!(self.own.is_empty(), "{:?} is allowed, but not used", self.own);
        instruction.metadata = self.metadata;
        instruction.backend_config = self.backend_config;
        instruction.control_predecessors = self.control_predecessors;
        match (&mut instruction.extras, self.extras) {
            (Some(ours), Some(theirs)) => {
                let accuracy = ours.result_accuracy.take();
                **ours = *theirs;
                ours.result_accuracy = accuracy;
            }
            (extras @ None, theirs) => *extras = theirs,
            (Some(_), None) => {}
        }
    }
}

impl<'s> Parser<'s> {
    /// Everything from the `,` behind the operands to the end of the instruction.
    pub(super) fn attributes(&mut self, scope: &Scope<'s>, head: &Head) -> Parsed<Attributes<'s>> {
        let mut attributes = Attributes::default();
        while self.cursor.eat(Token::Comma) {
            let span = self.cursor.span.clone();
            if self.cursor.token != Token::Attribute {
                return Err(self.cursor.unexpected("an attribute: a name followed by `=`"));
            }
            let name = self.cursor.text();
            let name = &name[..name.len() - 1];
            self.cursor.advance();
            if self.common_attribute(scope, name, &span, &mut attributes)? {
                continue;
            }
            let Some(attribute) = tables::attribute(name).filter(|&a| is_allowed(head, a)) else {
                let opcode = head.wrapped.unwrap_or(head.opcode);
                let allowed: Vec<&str> =
                    allowed(opcode).iter().map(|&a| a.into()).chain(COMMON.split(", ")).collect();
                let (name, allowed) = (name.to_owned(), allowed.join(", "));
                return Err(self
                    .cursor
                    .error_at(span, ParseErrorKind::UnknownAttribute { name, opcode, allowed }));
            };
            let bit = 1u128 << attribute as u32;
            if attributes.seen & bit != 0 {
                return Err(self
                    .cursor
                    .error_at(span, ParseErrorKind::DuplicateAttribute { name: name.to_owned() }));
            }
            attributes.seen |= bit;
            let at = self.cursor.span.start;
            if attribute == Attribute::ResultAccuracy {
                if let Some(accuracy) = self.cursor.result_accuracy()? {
                    attributes.extras.get_or_insert_default().result_accuracy = Some(accuracy);
                }
                continue;
            }
            let value = self.value(attribute)?;
            attributes.own.push((attribute, at, value));
        }
        Ok(attributes)
    }

    /// Takes an attribute that every instruction may have; false when it is not one.
    fn common_attribute(
        &mut self,
        scope: &Scope<'s>,
        name: &str,
        span: &std::ops::Range<usize>,
        attributes: &mut Attributes<'s>,
    ) -> Parsed<bool> {
        let bit = match name {
            "metadata" => 0,
            "backend_config" => 1,
            "frontend_attributes" => 2,
            "sharding" => 3,
            "control-predecessors" => 4,
            "origin" => 5,
            "statistics" => 6,
            "parameter_replication" => 7,
            _ => return Ok(false),
        };
        if attributes.seen_common & (1 << bit) != 0 {
            let kind = ParseErrorKind::DuplicateAttribute { name: name.to_owned() };
            return Err(self.cursor.error_at(span.clone(), kind));
        }
        attributes.seen_common |= 1 << bit;
        let cursor = &mut self.cursor;
        match bit {
            0 => attributes.metadata = Some(Arc::new(cursor.metadata()?)),
            1 => {
                let config: Box<[u8]> = match cursor.token {
                    Token::LeftBrace => cursor.json()?.as_bytes().into(),
                    _ => cursor.bytes()?,
                };
                attributes.backend_config = Some(config).filter(|config| !config.is_empty());
            }
            4 => {
                let predecessors = &mut attributes.control_predecessors;
                cursor.braces(|c| {
                    let span = c.span.clone();
                    let name = c.name("an instruction name")?;
                    predecessors.push(scope.find(c, name, span)?);
                    Ok(())
                })?;
            }
            _ => {
                let extras = attributes.extras.get_or_insert_default();
                match bit {
                    2 => extras.frontend_attributes = cursor.frontend_attributes()?,
                    3 => extras.sharding = Some(cursor.sharding()?),
                    5 => extras.origin = Some(cursor.original_value()?),
                    6 => extras.statistics = Some(cursor.statistics()?),
                    _ => extras.parameter_replication = cursor.booleans()?,
                }
            }
        }
        Ok(true)
    }
}

impl Attributes<'_> {
    /// `output_to_operand_aliasing` of an async start, unless it belongs to what is wrapped.
    pub(super) fn aliases_unless(&mut self, wrapped: Opcode) -> Vec<OutputOperandAlias> {
        match allowed(wrapped).contains(&Attribute::OutputToOperandAliasing) {
            true => Vec::new(),
            false => self.aliases(Attribute::OutputToOperandAliasing).unwrap_or_default(),
        }
    }

    /// The lists in `slice_sizes={{..},{..}}`; `{}` has none.
    pub(super) fn slice_size_lists(&mut self) -> Vec<Dimensions> {
        match self.take(Attribute::SliceSizes) {
            Some((_, Value::IntegerLists(lists))) => lists,
            _ => Vec::new(),
        }
    }
}
