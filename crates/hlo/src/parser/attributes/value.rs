//! What attributes say: their names decide how they are read.

use memplan_ir::{Dimensions, Domain, OutputOperandAlias, SliceDimension};
use smallvec::SmallVec;

use super::{Attribute, Cursor, Parsed, Parser, Value};
use crate::{error::ParseErrorKind, lexer::Token};

impl<'s> Parser<'s> {
    pub(super) fn value(&mut self, attribute: Attribute) -> Parsed<Value<'s>> {
        use Attribute::*;
        let cursor = &mut self.cursor;
        Ok(match attribute {
            BatchGroupCount
            | ChannelId
            | CrossProgramPrefetchIndex
            | Delta
            | ExponentBits
            | FeatureGroupCount
            | FeatureIndex
            | Index
            | IndexVectorDim
            | InferredDimension
            | IotaDimension
            | K
            | MantissaBits
            | NumCarries => Value::Integer(cursor.integer()?),
            ConstrainLayout
            | CustomCallHasSideEffect
            | HasDynamicRoot
            | IndicesAreSorted
            | IsAssociative
            | IsComposite
            | IsHostTransfer
            | IsReverse
            | IsStable
            | Largest
            | LeftSide
            | Lower
            | UniqueIndices
            | UnitDiagonal
            | UseGlobalDeviceIds => Value::Boolean(cursor.boolean()?),
            CollapsedSliceDims
            | Dimensions
            | DynamicSliceSizes
            | FftLength
            | InputBatchingDims
            | InsertedWindowDims
            | LhsBatchDims
            | LhsContractingDims
            | LhsRaggedDims
            | OffsetDims
            | OperandBatchingDims
            | RhsBatchDims
            | RhsContractingDims
            | RhsGroupDims
            | ScatterDimsToOperandDims
            | ScatterIndicesBatchingDims
            | StartIndexMap
            | StartIndicesBatchingDims
            | UpdateWindowDims => Value::Integers(cursor.integers()?),
            SliceSizes => {
                let rest = cursor.source[cursor.span.end..].trim_ascii_start();
                if rest.starts_with('{') {
                    let mut lists = Vec::new();
                    cursor.braces(|c| {
                        lists.push(c.integers()?);
                        Ok(())
                    })?;
                    Value::IntegerLists(lists)
                } else {
                    Value::Integers(cursor.integers()?)
                }
            }
            Body | Calls | Condition | FalseComputation | Scatter | Select | ToApply | TrueComputation => {
                Value::Computation(self.computation_reference()?)
            }
            BranchComputations => Value::Computations(self.computation_references()?),
            CalledComputations => Value::Computations(self.computation_references()?),
            Algorithm | ApiVersion | ConvolutionKind | Direction | Distribution | FftType | Kind | Mode
            | PaddingType | Schedule | TransposeA | Type => {
                if cursor.token != Token::Identifier {
                    return Err(cursor.unexpected("a word"));
                }
                let word = cursor.text();
                cursor.advance();
                Value::Word(word)
            }
            AsyncExecutionThread | CustomCallTarget => Value::Text(cursor.string()?),
            InfeedConfig | OutfeedConfig => Value::Bytes(cursor.bytes()?),
            Epsilon => Value::Float(cursor.float()?),
            DimLabels => Value::Labels(Box::new(cursor.dimension_labels()?)),
            Domain => Value::Domain(Box::new(cursor.domain()?)),
            Literal => Value::Literal(Box::new(cursor.shaped_literal()?)),
            OperandLayoutConstraints => {
                let mut shapes = Vec::new();
                cursor.braces(|c| {
                    shapes.push(c.shape()?);
                    Ok(())
                })?;
                Value::Shapes(shapes)
            }
            OperandPrecision => {
                let mut precisions = SmallVec::new();
                cursor.braces(|c| {
                    precisions.push(c.word_in_any_case("a precision")?);
                    Ok(())
                })?;
                Value::Precisions(precisions)
            }
            OutfeedShape => Value::Shape(Box::new(cursor.shape()?)),
            OutputToOperandAliasing => Value::Aliases(cursor.output_operand_aliases()?),
            Padding => Value::Padding(cursor.padding()?),
            ReplicaGroups => Value::Groups(Box::new(cursor.replica_groups()?)),
            Slice => Value::Slice(cursor.slice_dimensions()?),
            SourceTargetPairs => Value::Pairs(cursor.pairs()?),
            SparsityConfig => Value::Sparsity(Box::new(cursor.sparsity()?)),
            Window => Value::Window(Box::new(cursor.window()?)),
            ResultAccuracy => unreachable!("goes to the notes"),
        })
    }
}

impl Cursor<'_> {
    /// `{kind="sharding", entry={..}, exit={..}}`
    fn domain(&mut self) -> Parsed<Domain> {
        self.expect(Token::LeftBrace, "`{`")?;
        self.expect_attribute("kind")?;
        let span = self.span.clone();
        if &*self.string()? != "sharding" {
            let expected = "\"sharding\"".to_owned();
            let found = self.source[span.clone()].to_owned();
            return Err(self.error_at(span, ParseErrorKind::Unexpected { expected, found }));
        }
        self.expect(Token::Comma, "`,`")?;
        self.expect_attribute("entry")?;
        let entry = self.sharding()?;
        self.expect(Token::Comma, "`,`")?;
        self.expect_attribute("exit")?;
        let exit = self.sharding()?;
        self.expect(Token::RightBrace, "`}`")?;
        Ok(Domain { entry, exit })
    }

    /// `{ {0}: (1, {}), {1}: (0, {0}) }`
    fn output_operand_aliases(&mut self) -> Parsed<Vec<OutputOperandAlias>> {
        let mut aliases = Vec::new();
        self.braces(|c| {
            let output_index = c.shape_index()?;
            c.expect(Token::Colon, "`:`")?;
            c.expect(Token::LeftParen, "`(`")?;
            let operand = c.number("an operand number")?;
            c.expect(Token::Comma, "`,`")?;
            let operand_index = c.shape_index()?;
            c.expect(Token::RightParen, "`)`")?;
            aliases.push(OutputOperandAlias { output_index, operand, operand_index });
            Ok(())
        })?;
        Ok(aliases)
    }

    /// `{{0,1},{1,0}}`
    fn pairs(&mut self) -> Parsed<Vec<(i64, i64)>> {
        let mut pairs = Vec::new();
        self.braces(|c| {
            let start = c.span.start;
            let pair: Dimensions = c.integers()?;
            let &[source, target] = pair.as_slice() else {
                let kind = ParseErrorKind::Count { expected: 2, found: pair.len() };
                return Err(c.error_at(start..c.previous_end, kind));
            };
            pairs.push((source, target));
            Ok(())
        })?;
        Ok(pairs)
    }

    /// `{[0:4], [0:8:2]}`
    fn slice_dimensions(&mut self) -> Parsed<SmallVec<[SliceDimension; 2]>> {
        let mut dimensions = SmallVec::new();
        self.braces(|c| {
            c.expect(Token::LeftBracket, "`[`")?;
            let start = c.integer()?;
            c.expect(Token::Colon, "`:`")?;
            let limit = c.integer()?;
            let stride = if c.eat(Token::Colon) { c.integer()? } else { 1 };
            c.expect(Token::RightBracket, "`]`")?;
            dimensions.push(SliceDimension { start, limit, stride });
            Ok(())
        })?;
        Ok(dimensions)
    }
}
