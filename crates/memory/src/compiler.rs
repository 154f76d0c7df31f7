//! Compilers as data: how a compiler other than memplan transforms a program before it assigns addresses.
//!
//! A target describes a machine; a compiler describes how the code generators and libraries for such machines use it.
//! [`Compiler::on`] combines both: the machine, with the kernels of that compiler.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, IntoDeserializer};
use toml::de::{DeTable, DeValue};

use crate::closest::did_you_mean;
use crate::target_spans::{line_and_column, span_of};
use crate::{Bytes, Family, FusionRules, Target};

/// A compiler whose memory can be estimated.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiler {
    /// The name on the command line.
    pub name: String,
    /// One line for people: whose it is, and which version was looked at.
    pub description: String,
    /// The default machine of estimates.
    pub target: String,
    /// Whether optimization barriers are there until it has merged common subexpressions and has an order.
    pub keeps_barriers: bool,
    /// The passes that it runs before it orders the program, by name.
    pub passes: Vec<String>,
    /// The ways in which it orders a program, of which it takes the best.
    pub schedulers: Vec<Scheduler>,
    /// Whether a result takes over the memory of an operand only where both have one shape.
    #[serde(default)]
    pub same_shapes: bool,
    /// Whether the memory of a result holds temps before the result is there.
    #[serde(default)]
    pub temps_in_results: bool,
    /// It keeps values near the cores, on machines that have memory there, in programs whose temporaries are at most so many
    /// times that memory: larger ones need hardly less main memory for it. 0: in none.
    #[serde(default)]
    pub fast_memory_reach: u64,
    /// Bytes of main memory that the program itself takes.
    #[serde(default)]
    pub code: CodeSize,
    /// Its fusion rules.
    pub fusion: FusionRules,
    /// The passes with options of their own, which only the passes can read: [`Compiler::options_of`].
    #[serde(default)]
    options: BTreeMap<String, IgnoredAny>,
    /// The path of its file, and the text in it.
    #[serde(skip)]
    file: (String, String),
}

/// Main memory for code, on machines that load it from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CodeSize {
    /// Bytes of every program.
    pub base: Bytes,
    /// Bytes for each kernel.
    pub per_kernel: Bytes,
}

impl CodeSize {
    /// Bytes of a program with so many kernels.
    pub fn of(&self, n_kernels: u64) -> Bytes {
        self.base.saturating_add(Bytes(self.per_kernel.0.saturating_mul(n_kernels)))
    }
}

/// A way to order a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// The instruction that frees the most bytes comes first.
    List,
    /// Depth first, operands with more behind them first.
    DepthFirst,
    /// Depth first, operands from left to right.
    PostOrder,
    /// Ready instructions run in the order in which they became ready.
    BreadthFirst,
}

/// Why there is no such compiler.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompilerError {
    /// No built-in compiler has the name.
    #[error(
        "there is no compiler `{name}`{meant}\n  the built-in ones are {known}, and a FILE.toml describes your own"
    )]
    Unknown {
        /// The name asked for.
        name: String,
        /// The name that was likely meant, as the end of a sentence; or nothing.
        meant: String,
        /// The names there are.
        known: String,
    },
    /// The file cannot be read.
    #[error("cannot read compiler file `{path}`")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file does not describe a compiler.
    #[error("{path}:{line}:{column}: {message}")]
    File {
        /// The file.
        path: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// The error.
        message: String,
    },
}

/// The compilers, each a TOML file in this crate.
const BUILT_IN: &[(&str, &str)] = &[
    ("xla-gpu.toml", include_str!("../compilers/xla-gpu.toml")),
    ("xla-cpu.toml", include_str!("../compilers/xla-cpu.toml")),
    ("xla-tpu.toml", include_str!("../compilers/xla-tpu.toml")),
];

impl Compiler {
    /// All compilers.
    pub fn built_in() -> Vec<Compiler> {
        let parse =
            |&(path, text): &_| Compiler::parse(text, path).expect("built-in compiler files are valid");
        BUILT_IN.iter().map(parse).collect()
    }

    /// The built-in compiler with a name, or the one in a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No compiler has the name, or the file is none.
    pub fn find(name: &str) -> Result<Compiler, CompilerError> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|source| CompilerError::Read { path: name.to_string(), source })?;
            return Compiler::parse(&text, name);
        }
        let mut all = Compiler::built_in();
        match all.iter().position(|compiler| compiler.name == name) {
            Some(i) => Ok(all.swap_remove(i)),
            None => {
                let known: Vec<&str> = all.iter().map(|compiler| compiler.name.as_str()).collect();
                let meant = did_you_mean(name, known.iter().copied());
                Err(CompilerError::Unknown { name: name.to_string(), meant, known: known.join(", ") })
            }
        }
    }

    /// Reads a compiler from the text of a TOML file; `path` is for errors alone.
    ///
    /// # Errors
    /// The text is not TOML or does not describe a compiler. The options of passes are not parsed.
    pub fn parse(text: &str, path: &str) -> Result<Compiler, CompilerError> {
        let compiler = toml::from_str(text).map_err(|error| error_at(path, text, &error))?;
        Ok(Compiler { file: (path.to_string(), text.to_string()), ..compiler })
    }

    /// The passes that its file has a table of options for.
    pub fn passes_with_options(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// The options of a pass in the compiler's file, parsed by the caller: the table `[options.PASS]`. `None` if there
    /// is no such table.
    ///
    /// # Errors
    /// The table does not have those options.
    pub fn options_of<T: DeserializeOwned>(&self, pass: &str) -> Result<Option<T>, CompilerError> {
        let (path, text) = &self.file;
        let of_pass = || {
            let mut document = DeTable::parse(text).ok()?.into_inner();
            let DeValue::Table(mut options) = document.remove("options")?.into_inner() else { return None };
            options.remove(pass)
        };
        let options = of_pass().map(|options| T::deserialize(options.into_deserializer()));
        options.transpose().map_err(|error| error_at(path, text, &error))
    }

    /// The error that something is wrong with a field of its file, named by keys and list indices between dots:
    /// `passes.3`.
    pub fn wrong(&self, field: &str, message: impl Into<String>) -> CompilerError {
        let (path, text) = &self.file;
        let offset = span_of(text, field).map_or(0, |span| span.start);
        file_error(path, text, offset, message.into())
    }

    /// Whether this compiler makes code for a machine: for machines of the family of its usual one, and for machines of
    /// unknown family.
    pub fn compiles_for(&self, target: &Target) -> bool {
        let is_open = matches!(target.family, Family::Other | Family::Toy);
        is_open || Target::find(&self.target).is_ok_and(|usual| usual.family == target.family)
    }

    /// The compiler that people have for machines like this one; `None` where none is known.
    pub fn usual_for(target: &Target) -> Option<Compiler> {
        let is_known = !matches!(target.family, Family::Other | Family::Toy);
        Compiler::built_in().into_iter().find(|compiler| is_known && compiler.compiles_for(target))
    }

    /// A machine, with the kernels that this compiler makes for it.
    pub fn on(&self, target: &Target) -> Target {
        Target { fusion: self.fusion.clone(), ..target.clone() }
    }
}

fn error_at(path: &str, text: &str, error: &toml::de::Error) -> CompilerError {
    file_error(path, text, error.span().map_or(0, |span| span.start), error.message().to_string())
}

fn file_error(path: &str, text: &str, offset: usize, message: String) -> CompilerError {
    let (line, column) = line_and_column(text, offset);
    CompilerError::File { path: path.to_string(), line, column, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_compiler_has_a_machine() {
        for compiler in Compiler::built_in() {
            assert!(Compiler::find(&compiler.name).is_ok_and(|found| found == compiler));
            assert!(Target::find(&compiler.target).is_ok(), "{}", compiler.name);
        }
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let error = |name| Compiler::find(name).map(|_| ()).unwrap_err().to_string();
        let known = "\n  the built-in ones are xla-gpu, xla-cpu, xla-tpu, and a FILE.toml describes your own";
        assert_eq!(error("gcc"), format!("there is no compiler `gcc`{known}"));
        assert_eq!(
            error("xla_gpu"),
            format!("there is no compiler `xla_gpu`; did you mean `xla-gpu`?{known}")
        );
    }

    #[test]
    fn options_are_for_who_knows_them() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Own {
            n: u32,
        }
        let text = format!("{}\n[options.own]\nn = 3\n", BUILT_IN[0].1);
        let of = |text: &str| Compiler::parse(text, "mine.toml").unwrap().options_of("own");
        assert_eq!(of(&text).unwrap(), Some(Own { n: 3 }));
        assert_eq!(of(BUILT_IN[0].1).unwrap(), None);
        let wrong = text.replace("\nn = 3", "\nm = 3");
        let line = wrong.lines().position(|line| line == "m = 3").unwrap() + 1;
        let error = format!("mine.toml:{line}:1: unknown field `m`, expected `n`");
        assert_eq!(of(&wrong).unwrap_err().to_string(), error);
    }

    #[test]
    fn compilers_are_for_machines_of_one_family() {
        let [gpu, cpu, tpu] = ["xla-gpu", "xla-cpu", "xla-tpu"].map(|name| Compiler::find(name).unwrap());
        let target = |name| Target::find(name).unwrap();
        assert!(gpu.compiles_for(&target("gpu-a100")) && !gpu.compiles_for(&target("tpu-v5e")));
        assert!(tpu.compiles_for(&target("tpu-v6e")) && !tpu.compiles_for(&target("cpu")));
        // Nobody knows what compiles for a machine that is described as another one.
        assert!(cpu.compiles_for(&Target { family: Family::Other, ..target("cpu") }));
    }
}
