//! Compilers as data: what one that is not memplan makes of a program before it gives it addresses.
//!
//! A target says what a machine has; a compiler says what the code generators and libraries that exist for such machines
//! do with it. Both meet in [`Compiler::on`]: the machine, with the kernels of that compiler.

use serde::{Deserialize, Serialize};

use crate::closest::did_you_mean;
use crate::{Bytes, Family, FusionRules, Target};

/// A compiler whose memory can be estimated.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compiler {
    /// The name on the command line.
    pub name: String,
    /// One line for people: whose it is, and which version was looked at.
    pub description: String,
    /// The machine that it is asked about where nobody names one.
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
    /// What it computes in one kernel.
    pub fusion: FusionRules,
    /// What its pass `instruction-fusion` takes in, where it runs one.
    #[serde(default)]
    pub instruction_fusion: Option<InstructionFusionRules>,
    /// What its pass `library-fusion` hands to a library, where it runs one.
    #[serde(default)]
    pub library: Option<LibraryRules>,
    /// What a library has for itself while it multiplies, where it runs a pass `gemm-workspace`.
    #[serde(default)]
    pub gemm_workspace: Option<Bytes>,
    /// What its pass `splitk-rewriter` reckons with, where it runs one.
    #[serde(default)]
    pub splitk: Option<SplitkRules>,
}

/// What is fused edge by edge, beside the rules of all kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InstructionFusionRules {
    /// How often the instructions of a computation may be duplicated, on average.
    pub max_duplication: usize,
    /// Concatenations of more are not fused: code looks for the right operand of each element.
    pub max_concatenated: usize,
    /// Nor are those that are this long or longer in the dimension in which elements lie side by side.
    pub max_minor_extent: i64,
    /// Most reductions in a kernel, before one more.
    pub max_reductions: usize,
    /// Code for a product with a matrix walks over a vector again and again: it has fewer bytes than this.
    pub max_vector_bytes: u64,
}

/// What a library of kernels takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LibraryRules {
    /// Smaller arrays are not worth a call.
    pub min_elements: u64,
    /// Most instructions in a kernel.
    pub max_instructions: usize,
    /// Most dimensions of an array.
    pub max_rank: usize,
    /// A matrix product with no side as long as this is not worth a call.
    pub min_dot_extent: i64,
    /// A convolution with fewer features than this is not worth a call.
    pub min_features: i64,
}

/// What cutting a small matrix product into parts costs and gains, in a unit of time of the compiler's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitkRules {
    /// Most parts, a power of two.
    pub max_parts: u64,
    /// Rows and columns that one multiprocessor computes at a time.
    pub tile: u64,
    /// Multiprocessors of the machine.
    pub multiprocessors: f64,
    /// The cost of an arithmetic operation.
    pub operation: f64,
    /// The cost of a byte that the product reads or writes.
    pub byte: f64,
    /// The cost of a byte that the sum of the parts reads or writes.
    pub byte_of_sum: f64,
    /// The cost of launching that sum.
    pub sum: f64,
}

/// Main memory for code, on machines that load it from there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scheduler {
    /// What frees the most bytes comes first.
    List,
    /// Depth first, operands with more behind them first.
    DepthFirst,
    /// Depth first, operands from left to right.
    PostOrder,
    /// What is ready runs in the order in which it became so.
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
    /// The file describes no compiler.
    #[error("`{path}` describes no compiler: {source}")]
    File {
        /// The file.
        path: String,
        /// Where, and what is wrong.
        source: toml::de::Error,
    },
}

/// The compilers, each a TOML file in this crate.
const BUILT_IN: &[&str] = &[
    include_str!("../compilers/xla-gpu.toml"),
    include_str!("../compilers/xla-cpu.toml"),
    include_str!("../compilers/xla-tpu.toml"),
];

impl Compiler {
    /// All compilers.
    pub fn built_in() -> Vec<Compiler> {
        let parse = |text: &&str| toml::from_str(text).expect("built-in compiler files are valid");
        BUILT_IN.iter().map(parse).collect()
    }

    /// The built-in compiler with a name, or the one in a file whose name ends in `.toml`.
    ///
    /// # Errors
    /// No compiler has the name, or the file is none.
    pub fn find(name: &str) -> Result<Compiler, CompilerError> {
        let path = || name.to_string();
        if name.ends_with(".toml") {
            let text = std::fs::read_to_string(name)
                .map_err(|source| CompilerError::Read { path: path(), source })?;
            return toml::from_str(&text).map_err(|source| CompilerError::File { path: path(), source });
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

    /// Whether this compiler makes code for a machine: for those of the family of its usual one, and for machines of no
    /// family that is known.
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
    fn compilers_are_for_machines_of_one_family() {
        let [gpu, cpu, tpu] = ["xla-gpu", "xla-cpu", "xla-tpu"].map(|name| Compiler::find(name).unwrap());
        let target = |name| Target::find(name).unwrap();
        assert!(gpu.compiles_for(&target("gpu-a100")) && !gpu.compiles_for(&target("tpu-v5e")));
        assert!(tpu.compiles_for(&target("tpu-v6e")) && !tpu.compiles_for(&target("cpu")));
        // Nobody knows what compiles for a machine that is described as another one.
        assert!(cpu.compiles_for(&Target { family: Family::Other, ..target("cpu") }));
    }
}
