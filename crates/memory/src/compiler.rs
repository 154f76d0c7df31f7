//! Compilers as data: how a compiler other than memplan transforms a program before it assigns addresses.
//!
//! A target describes a machine; a compiler describes how the code generators and libraries for such machines use it.
//! [`Compiler::on`] combines both: the machine, with the kernels of that compiler.

use std::collections::BTreeMap;

use memplan_ir::{ElementType, Opcode};
use rustc_hash::FxHashSet;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny, IntoDeserializer};
use toml::Spanned;
use toml::de::DeValue;

use crate::closest::did_you_mean;
use crate::compiler_file::{self, BUILT_IN};
use crate::target_spans::span_of;
use crate::{Alignment, Bytes, Family, FusionRules, Intervals, MemorySpaceId, Target, by_name};

/// A compiler whose memory can be estimated.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiler {
    /// The name on the command line, without a version.
    pub name: String,
    /// The version of jaxlib that it came with, major and minor: `0.12`. Empty for compilers without versions.
    #[serde(default)]
    pub version: String,
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
    /// Over which operands a kernel may write its results.
    #[serde(default)]
    pub writes_over: WritesOver,
    /// The order in which it places temporaries, each into the smallest gap that holds it.
    #[serde(default)]
    pub packs: PackingOrder,
    /// The alignment of its temporaries in main memory; that of the machine where it is not given.
    #[serde(default)]
    pub temp_alignment: Option<Alignment>,
    /// Operations that it makes library calls of, which return their result in a tuple, with their working memory. No kernel
    /// writes over such a result.
    #[serde(default, with = "by_name::list")]
    pub results_in_tuples: Vec<Opcode>,
    /// A kernel that returns more reductions than this writes no other result over an operand.
    #[serde(default)]
    pub reductions_beside: Option<u32>,
    /// Whether a kernel writes a result only over an operand that it is computed from.
    #[serde(default)]
    pub over_sources: bool,
    /// How it orders computations to hide transfers; nothing where it does not.
    #[serde(default)]
    pub latency_hiding: Option<LatencyHiding>,
    /// Whether the memory of a result holds temps before the result is there.
    #[serde(default)]
    pub temps_in_results: bool,
    /// It keeps values near the cores, on machines that have memory there, in programs whose temporaries are at most so many
    /// times that memory: larger ones need hardly less main memory for it. 0: in none.
    #[serde(default)]
    pub fast_memory_reach: u64,
    /// A value leaves that memory if its next use is further away than so many times the time in which a transfer fills all of
    /// it; nothing where it may always stay.
    #[serde(default)]
    pub fast_memory_stay: Option<f64>,
    /// Whether it multiplies f32 as TF32, at default precision, on machines that can.
    #[serde(default)]
    pub products_in_tf32: bool,
    /// For which copies from and to the host's memory kernels wait.
    #[serde(default)]
    pub waits_for_host: HostWaits,
    /// Main memory for tuples of addresses.
    #[serde(default)]
    pub tuples: TupleSize,
    /// Its fusion rules.
    pub fusion: FusionRules,
    /// How far its own figures are from estimates; nothing where nobody measured.
    #[serde(default)]
    pub intervals: Option<Intervals>,
    /// At most how many times as much a program needs, of nine in ten, where the compiler finds the device and tries kernels
    /// on it; nothing where it does not, or nobody measured.
    #[serde(default)]
    pub with_device: Option<f64>,
    /// The passes with options of their own, which only the passes can read: [`Compiler::options_of`].
    #[serde(default)]
    options: BTreeMap<String, IgnoredAny>,
    /// The path of its file, and the text in it.
    #[serde(skip)]
    file: (String, String),
}

/// The operands over which a kernel may write its results. What must be in one place, such as the state of a loop, is in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WritesOver {
    /// Those that it reads in step.
    #[default]
    Operands,
    /// Of these, those of the same shape as the result.
    SameShapes,
    /// Of these, those that are arrays by themselves: no elements of tuples, and none that something renames in between.
    Arrays,
}

/// An order in which temporaries are placed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PackingOrder {
    /// The largest first, or the longest life first, whichever needs less.
    #[default]
    Decreasing,
    /// As they begin.
    Beginning,
}

/// Main memory for tuples of addresses, which a program on a TPU keeps beside its temporaries if it has any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TupleSize {
    /// Bytes of each tuple: the results of a kernel, the state of a loop, a copy that is under way.
    pub per_tuple: Bytes,
    /// Arrays of at least so many bytes are copied into the memory near the cores in slices.
    pub sliced_from: Bytes,
    /// In how many. Each takes two tuples.
    pub slices: u64,
}

/// The copies from and to the host's memory for which kernels wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HostWaits {
    /// None: they start early and are waited for late.
    #[default]
    Never,
    /// Those from the host.
    Reads,
    /// All.
    Always,
}

/// How a scheduler hides the time of transfers between devices, and of slices that loops read, behind other work.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyHiding {
    /// Bytes that a transfer moves in a second, by its model; all-reduces move theirs twice.
    pub bandwidth: f64,
    /// Bytes in a second of sums that are scattered.
    pub scatter_bandwidth: f64,
    /// Seconds that every transfer takes besides.
    pub transfer: f64,
    /// For each device that takes part.
    pub transfer_per_device: f64,
    /// How many times those seconds an all-reduce takes.
    pub all_reduce: f64,
    /// Operations of a product with a result of 16 bits or fewer in a second, by its tables.
    pub narrow_rate: f64,
    /// Of a product with a wider result.
    pub wide_rate: f64,
    /// Of a product of 32-bit floats.
    pub f32_rate: f64,
    /// Seconds that every product takes besides.
    pub product: f64,
    /// Seconds for each element of a product's result, besides.
    pub element: f64,
    /// How many times as long a product takes whose result has more columns than rows.
    pub more_columns: f64,
    /// Seconds that a loop's read of a slice of its state takes, by its model; `None` where such reads run in order with all
    /// else.
    #[serde(default)]
    pub slice: Option<f64>,
    /// It takes bytes for time while the program needs at most this share of the machine's memory.
    pub memory_share: f64,
    /// The option that sets that share, in percent.
    pub option: String,
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

impl Compiler {
    /// The newest version of each compiler.
    pub fn built_in() -> Vec<Compiler> {
        let mut all = Compiler::versions();
        let mut seen = FxHashSet::default();
        all.retain(|compiler| seen.insert(compiler.name.clone()));
        all
    }

    /// All versions of all compilers, the newest of each first.
    pub fn versions() -> Vec<Compiler> {
        BUILT_IN.iter().map(|&(path, text)| Compiler::parse_built_in(path, text)).collect()
    }

    fn parse_built_in(path: &str, text: &str) -> Compiler {
        Compiler::parse(text, path).expect("built-in compiler files are valid")
    }

    /// The built-in compiler with a name, the newest version where the name ends in none (`xla-gpu`, `xla-gpu@0.10`), or the
    /// one in a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No compiler has the name and version, or the file is none.
    pub fn find(name: &str) -> Result<Compiler, CompilerError> {
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|source| CompilerError::Read { path: name.to_string(), source })?;
            return Compiler::parse(&text, name);
        }
        if let Some((path, text)) = compiler_file::built_in(name) {
            return Ok(Compiler::parse_built_in(path, text));
        }
        let versions: Vec<&str> = compiler_file::versions().collect();
        let mut names: Vec<&str> = versions.iter().map(|it| compiler_file::without_version(it)).collect();
        names.dedup();
        let meant = did_you_mean(name, names.iter().chain(&versions).copied());
        let known = format!("{}, by version {}", names.join(", "), versions.join(", "));
        Err(CompilerError::Unknown { name: name.to_string(), meant, known })
    }

    /// The version of a compiler that is nearest to a version of jaxlib (`0.11.3`): the newest that is not newer, or else
    /// the oldest.
    ///
    /// # Errors
    /// No compiler has the name.
    pub fn nearest(name: &str, jaxlib: &str) -> Result<Compiler, CompilerError> {
        let newest = Compiler::find(name)?;
        let of_name = Compiler::versions().into_iter().filter(|compiler| compiler.name == newest.name);
        let mut nearest = None;
        for compiler in of_name {
            let is_newer = numbers(&compiler.version) > numbers(jaxlib);
            nearest = Some(compiler);
            if !is_newer {
                break;
            }
        }
        Ok(nearest.unwrap_or(newest))
    }

    /// `xla-gpu@0.12`; the name alone where there are no versions.
    pub fn name_with_version(&self) -> String {
        match self.version.as_str() {
            "" => self.name.clone(),
            version => format!("{}@{version}", self.name),
        }
    }

    /// Reads a compiler from the text of a TOML file; `path` is for errors alone. A file that is `based_on` a built-in
    /// compiler says only what differs: tables are merged, all else is replaced, passes that are named in `without` are not
    /// run, and those in `before` are run before others.
    ///
    /// # Errors
    /// The text is not TOML or does not describe a compiler. The options of passes are not parsed.
    pub fn parse(text: &str, path: &str) -> Result<Compiler, CompilerError> {
        let document = compiler_file::document(text, path)?;
        let document = Spanned::new(0..text.len(), DeValue::Table(document));
        let compiler = Compiler::deserialize(document.into_deserializer());
        let compiler = compiler.map_err(|error| compiler_file::error_at(path, text, &error))?;
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
            let mut document = compiler_file::document(text, path).ok()?;
            let DeValue::Table(mut options) = document.remove("options")?.into_inner() else { return None };
            options.remove(pass)
        };
        let options = of_pass().map(|options| T::deserialize(options.into_deserializer()));
        options.transpose().map_err(|error| compiler_file::error_at(path, text, &error))
    }

    /// The error that something is wrong with a field of its file, named by keys and list indices between dots:
    /// `passes.3`.
    pub fn wrong(&self, field: &str, message: impl Into<String>) -> CompilerError {
        let (path, text) = &self.file;
        let offset = span_of(text, field).map_or(0, |span| span.start);
        compiler_file::error(path, text, offset, message.into())
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

    /// A machine, as this compiler uses it: with the kernels that it makes, and at the rates that they reach.
    pub fn on(&self, target: &Target) -> Target {
        let mut machine = Target { fusion: self.fusion.clone(), ..target.clone() };
        let main = machine.spaces.iter_mut().filter(|space| space.id == MemorySpaceId::MAIN);
        main.for_each(|space| space.alignment = self.temp_alignment.unwrap_or(space.alignment));
        if let Some(rate) = target.tf32_rate.filter(|_| self.products_in_tf32) {
            machine.rates = target.rates.with(ElementType::F32, rate);
        }
        for transfer in &mut machine.transfers {
            let waits = match self.waits_for_host {
                HostWaits::Never => false,
                HostWaits::Reads => transfer.from == MemorySpaceId::HOST,
                HostWaits::Always => [transfer.from, transfer.to].contains(&MemorySpaceId::HOST),
            };
            transfer.blocks_kernels |= waits;
        }
        machine
    }
}

/// The numbers of a version.
fn numbers(version: &str) -> [u64; 2] {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    [(); 2].map(|()| parts.next().unwrap_or(0))
}
