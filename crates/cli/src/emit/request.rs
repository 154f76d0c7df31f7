//! Requests to write a form, and their results.

use std::path::PathBuf;

use super::PlannedModule;

/// One thing to write.
pub(super) struct Request<'a> {
    pub(super) program: &'a PlannedModule<'a>,
    /// The path; its extension may select a format.
    pub(super) path: &'a str,
    /// The instruction that graphs are drawn around.
    pub(super) around: Option<&'a str>,
    /// How many steps around it.
    pub(super) depth: u32,
    /// Whether C calls kernels of CMSIS-NN.
    pub(super) cmsis_nn: bool,
}

/// The content to write.
pub(super) enum Contents {
    File(Vec<u8>),
    /// Files by their path within a folder.
    Folder(Vec<(PathBuf, Vec<u8>)>),
    /// Files by their path, which are written together or not at all.
    Together(Vec<(PathBuf, Vec<u8>)>),
}

impl From<Vec<u8>> for Contents {
    fn from(bytes: Vec<u8>) -> Contents {
        Contents::File(bytes)
    }
}

impl From<String> for Contents {
    fn from(text: String) -> Contents {
        Contents::File(text.into_bytes())
    }
}
