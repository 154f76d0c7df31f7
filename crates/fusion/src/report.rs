//! Why each producer joined, or did not join, the kernels of its consumers.

use memplan_ir::{InstructionId, Module, Opcode};
use memplan_memory::Bytes;
use rustc_hash::FxHashMap;

/// The decision about every edge from a producer to a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FusionReport {
    /// The edges, computation by computation, consumers from last to first.
    pub edges: Vec<FusionEdge>,
    /// Names of the instructions and their computations. Fusion numbers instructions anew, so that nobody can look them up
    /// afterwards.
    names: FxHashMap<InstructionId, Name>,
}

/// Name of an instruction, and of its computation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    computation: Box<str>,
    instruction: Box<str>,
}

/// The decision about one edge, between instructions of the module as fusion found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusionEdge {
    /// The instruction that makes the value.
    pub producer: InstructionId,
    /// The instruction that reads it.
    pub consumer: InstructionId,
    /// The decision.
    pub verdict: Verdict,
}

/// Whether a producer is computed in the kernels of its consumers, and why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Verdict {
    /// It is computed there, and nowhere else.
    #[error("fused, into {kernels} kernel(s)")]
    Fused {
        /// How many kernels compute it.
        kernels: usize,
    },
    /// It is computed in the consumer's kernel, and in memory as well, for others.
    #[error("fused, and written for others")]
    Together,
    /// It moves no bytes: a reshape that is only another view.
    #[error("not fused: it is a view of its operand and costs nothing")]
    View,
    /// The producer is not an operation that fits into a kernel.
    #[error("not fused: {0} does not go into kernels")]
    Producer(Opcode),
    /// The value is needed in memory for a consumer that is not a kernel.
    #[error("not fused: {0} needs it in memory")]
    Consumer(Opcode),
    /// It is the result of its computation.
    #[error("not fused: it is the result of the computation")]
    Result,
    /// Control dependencies tie it to its place.
    #[error("not fused: it has control dependencies")]
    Control,
    /// The consumer writes into the buffer that the value is in.
    #[error("not fused: {0} updates it in place")]
    UpdatedInPlace(Opcode),
    /// The consumer's kernel writes in place into an array that the producer reads elsewhere.
    #[error("not fused: the kernel would read elements that it overwrites")]
    InPlaceHazard,
    /// The consumer is a reduction, whose kernel would read an array against its order.
    #[error("not fused: the reduction would read an array across its rows")]
    ReadsAcross,
    /// Expensive work is done once.
    #[error("not fused: {opcode} is too expensive to be computed in {kernels} kernels")]
    Expensive {
        /// The producer's operation.
        opcode: Opcode,
        /// How many kernels would compute it.
        kernels: usize,
    },
    /// The target has no kernel that goes on after this operation.
    #[error("not fused: the target has no {0} with such an epilogue")]
    Epilogue(Opcode),
    /// The target has no kernel that computes such an operand while loading it.
    #[error("not fused: the target has no {0} that computes such operands while it loads them")]
    Prologue(Opcode),
    /// The kernel would read too many arrays.
    #[error("not fused: a kernel would read {operands} arrays")]
    Operands {
        /// How many.
        operands: usize,
    },
    /// The kernel would have too many instructions.
    #[error("not fused: a kernel would have more than {limit} instructions")]
    Instructions {
        /// The limit.
        limit: usize,
    },
    /// The code would be repeated for too many different indices.
    #[error("not fused: its code would be needed at {evaluations} different indices")]
    Evaluations {
        /// How many.
        evaluations: usize,
    },
    /// The module as a whole has been duplicated enough.
    #[error("not fused: duplicating it would make the program too long")]
    CodeSize,
    /// Keeping its operands instead takes more memory.
    #[error("not fused: it takes {saved}, but its operands of {extended} would stay alive")]
    KeepsMore {
        /// The bytes of operands that would have to stay longer.
        extended: Bytes,
        /// The bytes of the producer.
        saved: Bytes,
    },
    /// The producer is narrower than its operand, which would be written instead: the kernel of the operand continues.
    #[error("not fused: it takes {bytes}, but its operand, which would be written instead, takes {than}")]
    Narrower {
        /// The bytes of the producer.
        bytes: Bytes,
        /// The bytes that would be written instead.
        than: Bytes,
    },
    /// It takes no more than the product that it is made from, whose kernel can compute it.
    #[error("not fused: the kernel of the {0} computes it, and it takes no more")]
    EndsProduct(Opcode),
    /// It is a copy into a layout with more padding, which somebody asked for.
    #[error("not fused: it is copied into a layout that takes more bytes, which its readers require")]
    Padded,
    /// By the compiler's model of time, a kernel that stores it saves more than it takes.
    #[error("not fused: a kernel that stores it takes less time than {kernels} that compute it")]
    Slower {
        /// How many kernels would compute it.
        kernels: usize,
    },
    /// Computing it several times reads too much.
    #[error("not fused: computing it in each consumer would read {moved}, the limit is {limit}")]
    MovesMore {
        /// The bytes to read.
        moved: Bytes,
        /// The bytes allowed.
        limit: Bytes,
    },
}

impl Verdict {
    /// Whether the producer is in the consumer's kernels.
    pub fn is_fused(&self) -> bool {
        matches!(self, Verdict::Fused { .. } | Verdict::Together)
    }
}

impl FusionReport {
    /// The report's text: one line per edge.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for FusionEdge { producer, consumer, verdict } in &self.edges {
            let [producer, consumer] = [producer, consumer].map(|id| &self.names[id]);
            text.push_str(&format!(
                "{}: {} -> {}: {verdict}\n",
                consumer.computation, producer.instruction, consumer.instruction
            ));
        }
        text
    }

    /// Adds decisions about the instructions of a module.
    pub(super) fn add(&mut self, module: &Module, decisions: &[FusionEdge]) {
        for edge in decisions {
            for id in [edge.producer, edge.consumer] {
                let instruction = &module.instructions[id];
                self.names.entry(id).or_insert_with(|| Name {
                    computation: module.computations[instruction.parent].name.clone(),
                    instruction: instruction.name.clone(),
                });
            }
        }
        self.edges.extend(decisions);
    }
}
