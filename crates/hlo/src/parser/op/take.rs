//! Single attributes: those that must be there, and those that say nothing by their absence.

use memplan_ir::{ComputationId, Dimensions};

use super::{A, Operation, Parsed};
use crate::error::ParseErrorKind;

impl Operation<'_, '_> {
    pub(super) fn required(&self, attribute: A, is_there: bool) -> Parsed<()> {
        match is_there {
            true => Ok(()),
            false => {
                let kind = ParseErrorKind::MissingAttribute { name: attribute.into() };
                Err(self.parser.cursor.error_at(self.head.span.clone(), kind))
            }
        }
    }

    pub(super) fn computation(&mut self, attribute: A) -> Parsed<ComputationId> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.computation(attribute).expect("just required"))
    }

    pub(super) fn integer(&mut self, attribute: A) -> Parsed<i64> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.integer(attribute).expect("just required"))
    }

    /// An integer of 32 bits.
    pub(super) fn small(&mut self, attribute: A) -> Parsed<i32> {
        let place = self.attributes.place(attribute);
        let value = self.integer(attribute)?;
        i32::try_from(value).map_err(|_| self.out_of_range(place.unwrap_or(0), value, "32 bits"))
    }

    pub(super) fn integers(&mut self, attribute: A) -> Parsed<Dimensions> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.attributes.integers(attribute).expect("just required"))
    }

    /// `dimensions={1}` with exactly one entry.
    pub(super) fn one_dimension(&mut self) -> Parsed<i64> {
        let place = self.attributes.place(A::Dimensions);
        match self.integers(A::Dimensions)?.as_slice() {
            &[dimension] => Ok(dimension),
            several => {
                let kind = ParseErrorKind::Count { expected: 1, found: several.len() };
                let at = place.unwrap_or(self.head.span.start);
                Err(self.parser.cursor.error_at(at..at + 1, kind))
            }
        }
    }

    pub(super) fn flag(&mut self, attribute: A) -> bool {
        self.attributes.boolean(attribute).unwrap_or(false)
    }

    pub(super) fn word<T: std::str::FromStr>(&mut self, attribute: A, expected: &str) -> Parsed<T> {
        self.required(attribute, self.attributes.has(attribute))?;
        Ok(self.optional_word(attribute, expected)?.expect("just required"))
    }

    pub(super) fn optional_word<T: std::str::FromStr>(
        &mut self,
        attribute: A,
        expected: &str,
    ) -> Parsed<Option<T>> {
        let Some((at, word)) = self.attributes.word(attribute) else { return Ok(None) };
        match word.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => {
                let (expected, found) = (expected.to_owned(), format!("`{word}`"));
                let kind = ParseErrorKind::Unexpected { expected, found };
                Err(self.parser.cursor.error_at(at..at + word.len(), kind))
            }
        }
    }

    pub(super) fn out_of_range(&self, at: usize, value: i64, what: &'static str) -> Box<crate::ParseError> {
        let text = value.to_string();
        let end = at + text.len();
        self.parser.cursor.error_at(at..end, ParseErrorKind::NumberOutOfRange { text, what })
    }
}
