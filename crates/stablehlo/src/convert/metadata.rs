//! Metadata of instructions from the locations of operations.

use std::sync::Arc;

use memplan_ir::{FileLocation, Metadata, StackFrame, StackFrames};
use rustc_hash::FxHashMap;

use crate::mlir::{Location, LocationId, Program};

/// The metadata of locations, and the tables of stack frames that it refers to.
pub(super) struct Sources<'p> {
    program: &'p Program,
    known: FxHashMap<LocationId, Option<Arc<Metadata>>>,
    pub(super) frames: StackFrames,
    files: FxHashMap<Box<str>, i32>,
    functions: FxHashMap<Box<str>, i32>,
    places: FxHashMap<[i32; 6], i32>,
    stacks: FxHashMap<[i32; 2], i32>,
    /// Calls that the present stack may still have.
    left: u32,
}

/// Locations are within each other at most so deep.
const MAX_DEPTH: u32 = 256;

/// A stack has at most so many calls. Aliases within each other make one of a billion in a few lines.
const MAX_STACK: u32 = 4096;

impl<'p> Sources<'p> {
    pub(super) fn new(program: &'p Program) -> Sources<'p> {
        Sources {
            program,
            known: FxHashMap::default(),
            frames: StackFrames::default(),
            files: FxHashMap::default(),
            functions: FxHashMap::default(),
            places: FxHashMap::default(),
            stacks: FxHashMap::default(),
            left: 0,
        }
    }

    /// The metadata of a location; `None` where nothing is known.
    pub(super) fn metadata(&mut self, location: LocationId) -> Option<Arc<Metadata>> {
        if let Some(known) = self.known.get(&location) {
            return known.clone();
        }
        self.left = MAX_STACK;
        let mut metadata = Metadata::default();
        let mut at = location;
        for _ in 0..MAX_DEPTH {
            match self.program.location(at) {
                // Names that end in a colon are of the kind of operation.
                Location::Name(name, child) if name.ends_with(':') => {
                    metadata.op_type = name.trim_end_matches(':').into();
                    at = *child;
                }
                Location::Name(name, child) => {
                    metadata.op_name = name.clone();
                    metadata.stack_frame_id = self.stack(*child, 0, 0);
                    break;
                }
                Location::Fused(parts) if !parts.is_empty() => {
                    at = parts[0];
                }
                _ => {
                    metadata.stack_frame_id = self.stack(at, 0, 0);
                    break;
                }
            }
        }
        let found = (metadata != Metadata::default()).then(|| Arc::new(metadata));
        self.known.insert(location, found.clone());
        found
    }

    /// The frame of a location that was called from another frame.
    fn stack(&mut self, location: LocationId, caller: i32, depth: u32) -> i32 {
        if depth == MAX_DEPTH {
            return caller;
        }
        match self.program.location(location) {
            Location::Call { callee, caller: from } if self.left > 0 => {
                self.left -= 1;
                let from = self.stack(*from, caller, depth + 1);
                self.stack(*callee, from, depth + 1)
            }
            Location::Name(function, child) => match self.program.location(*child) {
                Location::File { file, start, end } => self.frame(function, file, *start, *end, caller),
                _ => self.stack(*child, caller, depth + 1),
            },
            Location::File { file, start, end } => self.frame("", file, *start, *end, caller),
            Location::Fused(parts) if !parts.is_empty() => self.stack(parts[0], caller, depth + 1),
            _ => caller,
        }
    }

    fn frame(&mut self, function: &str, file: &str, start: (u32, u32), end: (u32, u32), parent: i32) -> i32 {
        let file_name_id = numbered(&mut self.files, file, &mut self.frames.file_names);
        let function_name_id = match function {
            "" => 0,
            _ => numbered(&mut self.functions, function, &mut self.frames.function_names),
        };
        let number = |value: u32| value.cast_signed();
        let (line, column) = (number(start.0), number(start.1));
        let (end_line, end_column) = (number(end.0), number(end.1));
        let place = FileLocation { file_name_id, function_name_id, line, end_line, column, end_column };
        let key = [file_name_id, function_name_id, line, end_line, column, end_column];
        let places = &mut self.frames.file_locations;
        let file_location_id = *self.places.entry(key).or_insert_with(|| {
            places.push(place);
            places.len() as i32
        });
        let frames = &mut self.frames.frames;
        *self.stacks.entry([file_location_id, parent]).or_insert_with(|| {
            frames.push(StackFrame { file_location_id, parent_frame_id: parent });
            frames.len() as i32
        })
    }
}

/// The number of a name, from 1.
fn numbered(known: &mut FxHashMap<Box<str>, i32>, name: &str, names: &mut Vec<Box<str>>) -> i32 {
    if let Some(&number) = known.get(name) {
        return number;
    }
    names.push(name.into());
    known.insert(name.into(), names.len() as i32);
    names.len() as i32
}
