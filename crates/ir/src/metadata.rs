//! The source of an instruction, and other notes that do not affect its computation.

use smallvec::SmallVec;

use crate::ShapeIndex;

/// `metadata={...}`: the framework operation and source line behind an instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct Metadata {
    pub op_type: Box<str>,
    pub op_name: Box<str>,
    pub source_file: Box<str>,
    pub source_line: i32,
    pub source_end_line: i32,
    pub source_column: i32,
    pub source_end_column: i32,
    /// Index into [`StackFrames::frames`], counted from 1; 0 is none.
    pub stack_frame_id: i32,
    pub profile_types: SmallVec<[i32; 2]>,
    pub deduplicated_name: Box<str>,
    pub scheduling_name: Box<str>,
    /// Contents of `metadata_payload`.
    pub payload: Box<[u8]>,
    /// Wire bytes of fields this version does not know.
    pub unknown_fields: Box<[u8]>,
}

/// The tables that `stack_frame_id` points into. Ids count from 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct StackFrames {
    pub file_names: Vec<Box<str>>,
    pub function_names: Vec<Box<str>>,
    pub file_locations: Vec<FileLocation>,
    pub frames: Vec<StackFrame>,
}

/// A range in a source file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct FileLocation {
    pub file_name_id: i32,
    pub function_name_id: i32,
    pub line: i32,
    pub end_line: i32,
    pub column: i32,
    pub end_column: i32,
}

/// One frame of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StackFrame {
    /// Its position in the source.
    pub file_location_id: i32,
    /// The caller's frame, counted from 1; 0 is none. HLO text prints this plus one.
    pub parent_frame_id: i32,
}

/// A value of the program before optimization, named by instruction and shape index.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "XLA's names")]
pub struct OriginalArray {
    pub instruction: Box<str>,
    pub index: ShapeIndex,
}

/// `origin={...}`: which values of the original program the leaves of a value are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum OriginalValue {
    /// `{[synthetic_call]}`.
    SyntheticCall,
    /// A tree shaped like the value.
    Tree(OriginalTree),
}

/// A tree shaped like a value, with an original array at each leaf.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum OriginalTree {
    Leaf(Option<OriginalArray>),
    Tuple(Vec<OriginalTree>),
}

/// `statistics={visualizing_index=i,name=number,...}`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Which one to show.
    pub visualizing_index: i64,
    /// Names and values.
    pub values: Vec<(Box<str>, f64)>,
}
