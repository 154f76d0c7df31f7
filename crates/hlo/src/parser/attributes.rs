//! Attributes: the text after the operands. Their names decide how they are read; [`table`](crate::attributes) lists
//! the attributes of each opcode.

pub(crate) mod value;

use std::sync::Arc;

use memplan_ir::{Extras, Instruction, InstructionId, Metadata, Opcode};
use smallvec::SmallVec;

use super::{
    cursor::Parsed,
    instruction::Head,
    module::{Parser, Scope},
};
use crate::attributes::{Attribute, Value, allowed, is_allowed};
use crate::{error::ParseErrorKind, lexer::Token, tables};

/// The attributes of every instruction, for error messages that list allowed ones.
const COMMON: &str = "backend_config, control-predecessors, frontend_attributes, metadata, origin, \
                      parameter_replication, sharding, statistics";

/// The attributes of one instruction.
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

impl<'s> Attributes<'s> {
    pub(super) fn has(&self, attribute: Attribute) -> bool {
        self.own.iter().any(|(a, ..)| *a == attribute)
    }

    /// The value of an attribute, and its beginning.
    pub(super) fn take(&mut self, attribute: Attribute) -> Option<(usize, Value<'s>)> {
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
            let Some(attribute) = tables::attribute(name).filter(|&a| takes(head, a)) else {
                let opcode = head.wrapped.unwrap_or(head.opcode);
                let allowed: Vec<&str> = allowed(opcode).map(Into::into).chain(COMMON.split(", ")).collect();
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
            match attribute.read(self)? {
                Value::Accuracy(accuracy) => {
                    if accuracy.is_some() {
                        attributes.extras.get_or_insert_default().result_accuracy = accuracy;
                    }
                }
                value => attributes.own.push((attribute, at, value)),
            }
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

/// Whether an instruction takes an attribute. An async spelling like `slice-start` takes those of both, except the
/// computation of the start, which is made around the slice.
fn takes(head: &Head, attribute: Attribute) -> bool {
    let takes = |opcode: Opcode| is_allowed(opcode, attribute);
    match head.wrapped.filter(|_| head.opcode == Opcode::AsyncStart) {
        Some(wrapped) => takes(wrapped) || takes(head.opcode) && attribute != Attribute::Calls,
        None => takes(head.opcode),
    }
}
