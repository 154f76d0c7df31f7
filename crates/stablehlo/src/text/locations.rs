//! Locations of operations in text: `loc("name"("file.py":1:2 to :3))`, and aliases of them.

use super::Parser;
use super::cursor::{Parsed, is_word};
use crate::mlir::{Location, LocationId};

impl<'s> Parser<'s> {
    /// `loc(...)` behind an operation or argument, if there is one.
    pub(super) fn trailing_location(&mut self) -> Parsed<LocationId> {
        if !self.cursor.eat_word("loc") {
            return Ok(LocationId::default());
        }
        self.cursor.expect("(")?;
        let location = self.location()?;
        self.cursor.expect(")")?;
        Ok(location)
    }

    /// Gives the alias `name` a location; it may have been used before.
    pub(super) fn define_location(&mut self, name: &'s str, location: LocationId) {
        match self.locations.get(name) {
            Some(used) => self.program.locations[used.0 as usize] = Location::Same(location),
            None => {
                self.locations.insert(name, location);
            }
        }
    }

    /// What is within the parentheses of `loc(...)`.
    pub(super) fn location(&mut self) -> Parsed<LocationId> {
        self.nested(|parser| parser.location_within())
    }

    fn location_within(&mut self) -> Parsed<LocationId> {
        if self.cursor.eat("#") {
            let name = self.cursor.take(is_word);
            if let Some(&found) = self.locations.get(name) {
                return Ok(found);
            }
            let id = self.add(Location::Unknown);
            self.locations.insert(name, id);
            return Ok(id);
        }
        if self.cursor.is_at("\"") {
            let name = self.cursor.string()?;
            if self.cursor.eat(":") {
                let start = (self.number_of_line()?, self.after_colon()?.unwrap_or(0));
                let mut end = start;
                if self.cursor.eat_word("to") {
                    // `to 8:32` is on another line, `to :32` on the same.
                    if !self.cursor.is_at(":") {
                        end.0 = self.number_of_line()?;
                    }
                    end.1 = self.after_colon()?.unwrap_or(0);
                }
                return Ok(self.intern(Location::File { file: name.into(), start, end }));
            }
            let child = match self.cursor.eat("(") {
                true => {
                    let child = self.location()?;
                    self.cursor.expect(")")?;
                    child
                }
                false => LocationId::default(),
            };
            return Ok(self.intern(Location::Name(name.into(), child)));
        }
        match self.cursor.word()? {
            "unknown" => Ok(LocationId::default()),
            "callsite" => {
                self.cursor.expect("(")?;
                let callee = self.location()?;
                self.cursor.expect("at")?;
                let caller = self.location()?;
                self.cursor.expect(")")?;
                Ok(self.intern(Location::Call { callee, caller }))
            }
            "fused" => {
                // Metadata of passes.
                if self.cursor.eat("<") {
                    self.cursor.balanced('>')?;
                }
                self.cursor.expect("[")?;
                let mut parts = Vec::new();
                while !self.cursor.eat("]") {
                    if !parts.is_empty() {
                        self.cursor.expect(",")?;
                    }
                    parts.push(self.location()?);
                }
                Ok(self.intern(Location::Fused(parts)))
            }
            _ => Err(self.cursor.unexpected("a location before this")),
        }
    }

    fn number_of_line(&mut self) -> Parsed<u32> {
        Ok(u32::try_from(self.cursor.integer()?).unwrap_or(0))
    }

    fn after_colon(&mut self) -> Parsed<Option<u32>> {
        match self.cursor.eat(":") {
            true => self.number_of_line().map(Some),
            false => Ok(None),
        }
    }

    /// One entry for equal locations.
    fn intern(&mut self, location: Location) -> LocationId {
        let key = format!("{location:?}");
        if let Some(&found) = self.interned.get(&key) {
            return found;
        }
        let id = self.add(location);
        self.interned.insert(key, id);
        id
    }

    fn add(&mut self, location: Location) -> LocationId {
        self.program.locations.push(location);
        LocationId((self.program.locations.len() - 1) as u32)
    }
}
