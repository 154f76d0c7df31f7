//! Classes of values in the author's terms: a parameter, a gradient, an activation, ...
//!
//! HLO does not say. The class follows from aliasing, from whether the value crosses from the forward half of a
//! training step to the backward half ([`Phases`]), and from its readers.

use cranelift_entity::{PrimaryMap, SecondaryMap};
use memplan_ir::{InstructionId, Module, Op};
use strum::{EnumString, IntoStaticStr, VariantArray};

use crate::weights::weights;
use crate::{BufferId, Facts, Phase, Phases, ValueId, ValueKind};

/// The class of a value.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, EnumString, IntoStaticStr, VariantArray,
)]
#[strum(serialize_all = "kebab-case")]
pub enum ValueClass {
    /// A weight of the model: an argument that is trained, or that products multiply data by.
    Parameter,
    /// An argument that only the update of parameters reads: moments, counters.
    OptimizerState,
    /// An argument that comes back changed in a program that trains nothing: caches, states of recurrent networks.
    State,
    /// Any other argument: the batch.
    Input,
    /// Computed in the backward half, for the update or for the caller.
    Gradient,
    /// Computed in the forward half, and kept for the backward half.
    Activation,
    /// Anything else that the program computes.
    Temporary,
    /// A result.
    Output,
    /// Data that is part of the program.
    Constant,
}

/// As in files and on screens: `parameter`, `optimizer-state`, ...
impl std::fmt::Display for ValueClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.into())
    }
}

/// The class of every value.
#[derive(Clone, Debug)]
pub struct ValueClasses {
    of: SecondaryMap<ValueId, Option<ValueClass>>,
    /// The halves of the program.
    pub phases: Phases,
}

impl ValueClasses {
    /// Finds the class of every value, in time close to linear in the module. Values that must share a buffer have one
    /// class; values that share storage by choice may have different ones.
    pub fn new(module: &Module, facts: &Facts) -> ValueClasses {
        let phases = Phases::new(module, &facts.graph);
        let uses = uses(module, facts, &phases);
        let weights = weights(module, &facts.graph, &facts.flow, &phases);
        let mut of = SecondaryMap::new();
        for (buffer, values) in facts.buffers.values.iter() {
            let uses = uses[buffer];
            let argument =
                values.iter().copied().find(|&value| facts.flow.values[value].kind == ValueKind::Parameter);
            let is_constant = || {
                values.iter().all(|&value| {
                    let definition = facts.flow.positions.instruction(facts.flow.values[value].definition);
                    matches!(module.instructions[definition].op, Op::Constant(_))
                })
            };
            let is_result = values.iter().any(|&value| facts.live.is_live_out(value));
            let class = match argument {
                Some(argument) if phases.has_backward() => {
                    trained(uses, weights.contains(&argument) || facts.live.is_given_up(argument))
                }
                // Operands of products may be written, too: a cache is not a weight.
                Some(_) if is_result => ValueClass::State,
                Some(argument) if weights.contains(&argument) => ValueClass::Parameter,
                Some(_) => ValueClass::Input,
                None if is_constant() => ValueClass::Constant,
                None => computed(uses, is_result),
            };
            for &value in values {
                of[value] = Some(class);
            }
        }
        ValueClasses { of, phases }
    }

    /// The class of a value.
    pub fn of(&self, value: ValueId) -> ValueClass {
        self.of[value].unwrap_or(ValueClass::Temporary)
    }
}

/// In which halves of the program a buffer is written and read.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    written: Set,
    read: Set,
}

/// A set of phases.
#[derive(Clone, Copy, Debug, Default)]
struct Set(u8);

impl Set {
    fn add(&mut self, phase: Phase) {
        self.0 |= 1 << phase as u8;
    }

    fn has(self, phase: Phase) -> bool {
        self.0 & (1 << phase as u8) != 0
    }
}

/// An argument of a program that computes gradients.
fn trained(uses: Uses, is_weight: bool) -> ValueClass {
    let is_used = uses.read.has(Phase::Forward) || uses.read.has(Phase::Backward);
    match uses.read.has(Phase::Update) {
        true if !is_used => ValueClass::OptimizerState,
        // A kernel of the update may compute a gradient within it, and reads the batch for that.
        _ if is_weight => ValueClass::Parameter,
        _ => ValueClass::Input,
    }
}

fn computed(uses: Uses, is_result: bool) -> ValueClass {
    let is_backward = uses.written.has(Phase::Backward);
    if is_backward && (uses.read.has(Phase::Update) || is_result) {
        ValueClass::Gradient
    } else if is_result {
        ValueClass::Output
    } else if !is_backward && uses.written.has(Phase::Forward) && uses.read.has(Phase::Backward) {
        ValueClass::Activation
    } else {
        ValueClass::Temporary
    }
}

fn uses(module: &Module, facts: &Facts, phases: &Phases) -> PrimaryMap<BufferId, Uses> {
    let flow = &facts.flow;
    let mut uses: PrimaryMap<BufferId, Uses> = facts.buffers.values.iter().map(|_| Uses::default()).collect();
    for value in flow.values.keys() {
        if flow.values[value].kind == ValueKind::Written {
            let by = flow.positions.instruction(flow.values[value].definition);
            uses[facts.buffers.of(value)].written.add(phases.of(by));
        }
    }
    let reads = |id: &&InstructionId| module.instructions[**id].op.reads_operands();
    for &id in facts.line.instructions.iter().filter(reads) {
        for &operand in &module.instructions[id].operands {
            for value in flow.positions.of(operand).filter_map(|position| flow.value_at(position)) {
                uses[facts.buffers.of(value)].read.add(phases.of(id));
            }
        }
    }
    uses
}

#[cfg(test)]
mod tests {
    use memplan_ir::Schedule;

    use super::*;

    /// The classes of the named instructions.
    #[track_caller]
    fn check(text: &str, expected: &[(&str, ValueClass)]) {
        let module = memplan_hlo::parse(text).unwrap();
        let facts = Facts::new(&module, &Schedule::in_textual_order(&module)).unwrap();
        let classes = ValueClasses::new(&module, &facts);
        for &(name, class) in expected {
            let (id, _) = module.instructions.iter().find(|(_, i)| &*i.name == name).unwrap();
            assert_eq!(classes.of(facts.flow.value_of(id).unwrap()), class, "{name}");
        }
    }

    /// One layer with momentum; the marks stand for names of JAX, which a program need not have.
    fn training_step(forward: &str, backward: &str) -> String {
        let f = format!("metadata={{op_name=\"{forward}\"}}");
        let b = format!("metadata={{op_name=\"{backward}\"}}");
        let u = "metadata={op_name=\"jit(step)/mul\"}";
        format!(
            "HloModule step, is_scheduled=true
             add {{ x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }}
             ENTRY main {{
               w = f32[8,4] parameter(0)
               moment = f32[8,4] parameter(1)
               batch = f32[16,8] parameter(2)
               h = f32[16,4] dot(batch, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {f}
               a = f32[16,4] tanh(h), {f}
               zero = f32[] constant(0)
               loss = f32[] reduce(a, zero), dimensions={{0,1}}, to_apply=add, {f}
               slope = f32[16,4] multiply(a, a), {b}
               g = f32[8,4] dot(batch, slope), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {b}
               rate = f32[] constant(0.1)
               rates = f32[8,4] broadcast(rate), dimensions={{}}, {u}
               decayed = f32[8,4] multiply(moment, rates), {u}
               next = f32[8,4] add(decayed, g), {u}
               change = f32[8,4] multiply(next, rates), {u}
               new_w = f32[8,4] subtract(w, change), {u}
               ROOT r = (f32[8,4], f32[8,4], f32[]) tuple(new_w, next, loss)
             }}"
        )
    }

    const TRAINED: [(&str, ValueClass); 8] = [
        ("w", ValueClass::Parameter),
        ("moment", ValueClass::OptimizerState),
        ("batch", ValueClass::Input),
        ("h", ValueClass::Temporary),
        ("a", ValueClass::Activation),
        ("g", ValueClass::Gradient),
        ("change", ValueClass::Temporary),
        ("new_w", ValueClass::Output),
    ];

    #[test]
    fn a_training_step_with_names() {
        check(&training_step("jit(step)/jvp()/tanh", "jit(step)/transpose(jvp())/mul"), &TRAINED);
    }

    #[test]
    fn a_training_step_without_names() {
        check(&training_step("", ""), &TRAINED);
    }

    /// A kernel that computes a gradient and updates with it has the name of the update, and reads the batch.
    #[test]
    fn a_gradient_within_the_kernel_of_the_update() {
        check(
            "HloModule step, is_scheduled=true
             add { x = f32[] parameter(0)  y = f32[] parameter(1)  ROOT s = f32[] add(x, y) }
             fused {
               b = f32[16,8] parameter(0)
               d = f32[16,4] parameter(1)
               m = f32[8,4] parameter(2)
               g = f32[8,4] dot(b, d), lhs_contracting_dims={0}, rhs_contracting_dims={0},
                 metadata={op_name=\"jit(step)/transpose(jvp())/dot_general\"}
               ROOT n = f32[8,4] add(m, g), metadata={op_name=\"jit(step)/add\"}
             }
             ENTRY main {
               w = f32[8,4] parameter(0)
               moment = f32[8,4] parameter(1)
               batch = f32[16,8] parameter(2)
               h = f32[16,4] dot(batch, w), lhs_contracting_dims={1}, rhs_contracting_dims={0},
                 metadata={op_name=\"jit(step)/jvp()/dot_general\"}
               next = f32[8,4] fusion(batch, h, moment), kind=kLoop, calls=fused,
                 metadata={op_name=\"jit(step)/add\"}
               new_w = f32[8,4] subtract(w, next), metadata={op_name=\"jit(step)/sub\"}
               ROOT r = (f32[8,4], f32[8,4]) tuple(new_w, next)
             }",
            &[
                ("w", ValueClass::Parameter),
                ("moment", ValueClass::OptimizerState),
                ("batch", ValueClass::Input),
                ("next", ValueClass::Output),
            ],
        );
    }

    #[test]
    fn a_step_of_decoding() {
        check(
            "HloModule decode, input_output_alias={ {1}: (2, {}, must-alias) }
             ENTRY main {
               table = f32[100,8] parameter(0)
               w = bf16[8,8] parameter(1)
               cache = f32[32,8] parameter(2)
               ids = s32[1,1] parameter(3)
               scale = f32[8] parameter(4)
               zero = s32[] constant(0)
               x = f32[1,8] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0},
                 start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
               wide = f32[8,8] convert(w)
               y = f32[1,8] dot(x, wide), lhs_contracting_dims={1}, rhs_contracting_dims={0}
               scales = f32[1,8] broadcast(scale), dimensions={1}
               z = f32[1,8] multiply(y, scales)
               new = f32[32,8] dynamic-update-slice(cache, z, zero, zero)
               scores = f32[1,32] dot(z, new), lhs_contracting_dims={1}, rhs_contracting_dims={1}
               ROOT r = (f32[1,32], f32[32,8]) tuple(scores, new)
             }",
            &[
                ("table", ValueClass::Parameter),
                ("w", ValueClass::Parameter),
                ("scale", ValueClass::Parameter),
                ("cache", ValueClass::State),
                ("new", ValueClass::State),
                ("ids", ValueClass::Input),
                ("y", ValueClass::Temporary),
                ("scores", ValueClass::Output),
            ],
        );
    }
}
