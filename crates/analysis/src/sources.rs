//! The line of the user's program that an instruction comes from.
//!
//! An instruction has a call stack, innermost line first. In a called computation, the call's stack continues it: JAX
//! gives the body of a jitted helper (`jax.nn.silu`) no lines, or only those of the library, while the call has the
//! user's.

use cranelift_entity::SecondaryMap;
use memplan_ir::{ComputationId, InstructionId, Metadata, Module, PackedOption};

/// A line of source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceFrame<'m> {
    /// The file, without the folder that all files of the program have in common.
    pub file: &'m str,
    /// The line, from 1.
    pub line: i32,
    /// The last line of the same expression.
    pub end_line: i32,
    /// The column, from 1; 0 if unknown.
    pub column: i32,
    /// The function; empty if unknown.
    pub function: &'m str,
    /// The owner of its code.
    pub owner: Owner,
}

/// The owner of a file's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// The user's.
    User,
    /// That of an installed package.
    Package,
    /// That of the framework itself, or of Python: what a program is written in.
    Framework,
}

/// `file:line`.
impl std::fmt::Display for SourceFrame<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)
    }
}

/// The source lines of a module's instructions.
#[derive(Clone, Debug)]
pub struct Sources<'m> {
    module: &'m Module,
    /// A call of each computation: the first that is listed.
    callers: SecondaryMap<ComputationId, PackedOption<InstructionId>>,
    /// Bytes of the folder that the user's files have in common.
    folder: usize,
}

impl<'m> Sources<'m> {
    /// Takes time linear in the module.
    pub fn new(module: &'m Module) -> Sources<'m> {
        let mut callers: SecondaryMap<ComputationId, PackedOption<InstructionId>> = SecondaryMap::new();
        // The last written stays, so that it is that of the first call.
        for &computation in module.computations.keys().collect::<Vec<_>>().iter().rev() {
            for &id in module.computations[computation].instructions.iter().rev() {
                module.instructions[id].called.iter().for_each(|&callee| callers[callee] = id.into());
            }
        }
        Sources { module, callers, folder: common_folder(files(module)) }
    }

    /// The line of the user's program that an instruction comes from: the innermost one that is not in an installed
    /// package, or else the innermost one of a package. The framework's own lines say nothing about the program. Takes
    /// time linear in the depth of the call stack.
    pub fn user(&self, id: InstructionId) -> Option<SourceFrame<'m>> {
        let of = |owner| self.frames(id).find(|frame| frame.owner == owner);
        of(Owner::User).or_else(|| of(Owner::Package))
    }

    /// The line that made an instruction, in any code.
    pub fn innermost(&self, id: InstructionId) -> Option<SourceFrame<'m>> {
        self.frames(id).next()
    }

    /// The call stack of an instruction, innermost first, followed by those of the calls that run it.
    pub fn frames(&self, id: InstructionId) -> impl Iterator<Item = SourceFrame<'m>> + '_ {
        let calls =
            std::iter::successors(Some(id), |&id| self.callers[self.module.instructions[id].parent].expand());
        // A call graph that leads in circles ends here, too.
        let calls = calls.take(self.module.computations.len() + 1);
        calls.flat_map(|id| stack(self.module, id)).map(|(file, [line, end_line, column], function)| {
            let owner = owner(file);
            SourceFrame { file: self.short(file, owner), line, end_line, column, function, owner }
        })
    }

    /// A file as people know it.
    fn short(&self, file: &'m str, owner: Owner) -> &'m str {
        match owner {
            Owner::User => &file[self.folder.min(folder_of(file).len())..],
            Owner::Package | Owner::Framework => {
                let begin = PACKAGES.iter().find_map(|folder| Some(file.rfind(folder)? + folder.len()));
                &file[begin.unwrap_or(0)..]
            }
        }
    }
}

/// Folders that installers use.
const PACKAGES: [&str; 2] = ["site-packages/", "dist-packages/"];

fn owner(file: &str) -> Owner {
    /// The library of Python, and packages that programs are written in.
    const FRAMEWORKS: [&str; 6] = [
        "/lib/python",
        "<frozen ",
        "-packages/jax/",
        "-packages/tensorflow/",
        "-packages/torch/",
        "-packages/torch_xla/",
    ];
    let is_package = PACKAGES.iter().any(|folder| file.contains(folder));
    let is_framework = |folder: &&str| match is_package {
        true => folder.starts_with('-') && file.contains(*folder),
        false => file.contains(*folder),
    };
    match FRAMEWORKS.iter().any(is_framework) {
        true => Owner::Framework,
        false if is_package => Owner::Package,
        false => Owner::User,
    }
}

/// All files that a module names.
fn files(module: &Module) -> impl Iterator<Item = &str> {
    let written = module.instructions.values().filter_map(|instruction| instruction.metadata.as_ref());
    let written = written.map(|metadata| &*metadata.source_file).filter(|file| !file.is_empty());
    module.config.stack_frames.file_names.iter().map(|name| &**name).chain(written)
}

/// Bytes of the folder that the user's files have in common, with the slash behind it.
fn common_folder<'a>(files: impl Iterator<Item = &'a str>) -> usize {
    let folders = files.filter(|file| owner(file) == Owner::User).map(folder_of);
    let common = folders.reduce(|common, folder| {
        let n = common.bytes().zip(folder.bytes()).take_while(|(a, b)| a == b).count();
        let end = (0..=n).rev().find(|&end| common.is_char_boundary(end)).unwrap_or(0);
        folder_of(&common[..end])
    });
    common.map_or(0, str::len)
}

/// The folder of a file, with the slash behind it; empty where none is named.
fn folder_of(file: &str) -> &str {
    &file[..file.rfind(['/', '\\']).map_or(0, |slash| slash + 1)]
}

/// The call stack of an instruction by itself, innermost first: file, first line, last line and column, and function. They
/// come from the module's table, else from the instruction's own metadata.
fn stack(module: &Module, id: InstructionId) -> impl Iterator<Item = (&str, [i32; 3], &str)> {
    let lines = |first: i32, last: i32, column| [first, last.max(first), column];
    let metadata: Option<&Metadata> = module.instructions[id].metadata.as_deref();
    let tables = &module.config.stack_frames;
    let mut next = metadata.map_or(0, |metadata| metadata.stack_frame_id);
    // A table that leads in circles ends here, too.
    let stack = (0..tables.frames.len()).map_while(move |_| {
        let frame = tables.frames.get(from_one(next)?)?;
        let location = tables.file_locations.get(from_one(frame.file_location_id)?)?;
        next = frame.parent_frame_id;
        let function = name_of(&tables.function_names, location.function_name_id).unwrap_or_default();
        Some((
            name_of(&tables.file_names, location.file_name_id)?,
            lines(location.line, location.end_line, location.column),
            function,
        ))
    });
    let mut stack = stack.peekable();
    let written = metadata.filter(|metadata| stack.peek().is_none() && !metadata.source_file.is_empty());
    let written = written.map(move |metadata| {
        let lines = lines(metadata.source_line, metadata.source_end_line, metadata.source_column);
        (&*metadata.source_file, lines, "")
    });
    stack.chain(written)
}

fn name_of(names: &[Box<str>], id: i32) -> Option<&str> {
    Some(names.get(from_one(id)?)?)
}

/// An index from an id that counts from 1.
fn from_one(id: i32) -> Option<usize> {
    usize::try_from(id).ok()?.checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, of: &str, expected: &str) {
        let text = format!("HloModule m\n\n{body}");
        let module = memplan_hlo::parse(&text).unwrap();
        let sources = Sources::new(&module);
        let id = module.instructions.iter().find(|(_, it)| *it.name == *of).map(|(id, _)| id).unwrap();
        let user = sources.user(id).map_or_else(String::new, |frame| frame.to_string());
        assert_eq!(user, expected, "{of}");
    }

    /// `jit(silu)` has no line of its own, `jit(gelu)` only the library's.
    const HELPERS: &str = "\
silu {
  p = f32[8] parameter(0)
  ROOT n = f32[8] logistic(p), metadata={op_name=\"jit(silu)/logistic\"}
}

gelu {
  q = f32[8] parameter(0)
  ROOT e = f32[8] erf(q), metadata={source_file=\"/usr/lib/python3/site-packages/jax/_src/nn/functions.py\" source_line=3}
}

ENTRY main {
  x = f32[8] parameter(0)
  a = f32[8] call(x), to_apply=silu, metadata={source_file=\"/home/me/net/model.py\" source_line=12}
  b = f32[8] call(a), to_apply=gelu, metadata={source_file=\"/home/me/net/blocks/mlp.py\" source_line=7}
  ROOT c = f32[8] negate(b), metadata={source_file=\"/opt/site-packages/flax/linear.py\" source_line=1}
}
";

    #[test]
    fn bodies_of_jitted_helpers_come_from_their_calls() {
        check(HELPERS, "n", "model.py:12");
        check(HELPERS, "e", "blocks/mlp.py:7");
    }

    #[test]
    fn paths_lose_their_common_folder() {
        check(HELPERS, "a", "model.py:12");
        check(HELPERS, "c", "flax/linear.py:1");
    }

    #[test]
    fn lines_of_the_framework_itself_are_no_lines_of_the_program() {
        let text = "ENTRY main {\n  ROOT x = f32[8] parameter(0), metadata={op_name=\"model/dense/MatMul\" \
                    source_file=\"/usr/lib/python3/dist-packages/tensorflow/python/ops/math_ops.py\" source_line=4}\n}\n";
        check(text, "x", "");
    }

    #[test]
    fn folders_end_at_slashes() {
        for (files, folder) in [
            (&["/a/b/c.py", "/a/bd/e.py"][..], "/a/"),
            (&["/a/b/c.py"], "/a/b/"),
            (&["c.py", "/a/b.py"], ""),
            (&["C:\\\\x\\a.py", "C:\\\\x\\b.py"], "C:\\\\x\\"),
            (&[], ""),
        ] {
            assert_eq!(common_folder(files.iter().copied()), folder.len(), "{files:?}");
        }
    }
}
