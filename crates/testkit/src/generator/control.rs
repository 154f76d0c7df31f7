//! Called computations, and their calls.

use memplan_ir::ElementType::{Pred, S32};
use memplan_ir::{
    BinaryOp, BuildError, ComparisonDirection, ComputationId, FusionKind, Insert, InstructionId, Literal,
    ModuleBuilder, Shape,
};

use crate::Random;

use super::rare::{RareLoop, rare_loop};
use super::scans::{Scan, scan};
use super::{Body, Combiners, Family, GenerateOptions, Kind, callees, shape};

/// A computation to call, with its parameters.
pub(super) enum Callee {
    Call {
        computation: ComputationId,
        parameters: Vec<Kind>,
    },
    /// A call that is started and done later; perhaps one that overwrites its first operand.
    Start {
        computation: ComputationId,
        parameters: Vec<Kind>,
        overwrites: bool,
    },
    While {
        body: ComputationId,
        condition: ComputationId,
        state: Vec<Kind>,
    },
    Conditional {
        branches: Vec<ComputationId>,
        parameters: Vec<Kind>,
    },
    Fusion {
        computation: ComputationId,
        parameters: Vec<Kind>,
        kind: FusionKind,
    },
    Scan(Scan),
    Rare(RareLoop),
}

impl Callee {
    /// Whether it is started and done later: such a computation belongs to one start.
    pub(super) fn is_asynchronous(&self) -> bool {
        matches!(self, Callee::Start { .. })
    }
}

/// How a loop uses a part of its state.
#[derive(Clone, Copy)]
enum Role {
    /// Makes something new of it.
    Update,
    /// Only reads it.
    Keep,
    /// Exchanges it with the next part, which is of the same kind.
    Swap,
    /// Writes a slice of it.
    UpdateSlice,
}

pub(super) fn callee(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    depth: usize,
) -> Result<Callee, BuildError> {
    if options.unusual && random.one_in(4) {
        return super::unusual::fused_update(module, random);
    }
    match options.family {
        Family::Scans if random.one_in(2) => {
            return Ok(Callee::Scan(scan(module, random, combiners, options)?));
        }
        Family::Rare if random.one_in(2) => {
            return Ok(Callee::Rare(rare_loop(module, random, combiners, options)?));
        }
        _ => {}
    }
    match random.below(5) {
        0 => called(module, random, combiners, options, depth),
        1 => conditional(module, random, combiners, options, depth),
        _ => while_loop(module, random, combiners, options, depth),
    }
}

fn called(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    depth: usize,
) -> Result<Callee, BuildError> {
    let inner = callees(module, random, combiners, options, depth)?;
    let is_asynchronous = options.asynchronous && random.one_in(3);
    let mut body = Body::new(module, "called", random, combiners, options);
    let mut parameters = Vec::new();
    for number in 0..1 + body.random.below(3) {
        let kind = body.random_kind();
        let parameter = body.computation.parameter(&format!("p{number}"), shape(&kind));
        body.take(parameter)?;
        parameters.push(kind);
    }
    body.fill(&inner, options.steps / 3)?;
    let overwrites =
        is_asynchronous && options.unusual && !parameters[0].1.is_empty() && body.random.one_in(2);
    let root = match overwrites {
        true => {
            let first = body.pool[0];
            let row = body.of_kind(&(S32, Vec::new()))?;
            body.write_slice(first, &parameters[0], row)?
        }
        false => body.result()?.0,
    };
    let computation = body.computation.finish(root)?;
    Ok(match is_asynchronous {
        true => Callee::Start { computation, parameters, overwrites },
        false => Callee::Call { computation, parameters },
    })
}

fn conditional(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    depth: usize,
) -> Result<Callee, BuildError> {
    let (mut parameters, mut results) = (Vec::new(), Vec::new());
    let mut branches = Vec::new();
    for branch in 0..2 + random.below(2) {
        let inner = callees(module, random, combiners, options, depth)?;
        let mut body = Body::new(module, &format!("branch_{branch}"), random, combiners, options);
        if branch == 0 {
            parameters = (0..1 + body.random.below(3)).map(|_| body.random_kind()).collect();
            results = (0..1 + body.random.below(2)).map(|_| body.random_kind()).collect();
        }
        let tuple = Shape::Tuple(parameters.iter().map(shape).collect());
        let parameter = body.computation.parameter("p", tuple);
        body.take(parameter)?;
        body.fill(&inner, options.steps / 4)?;
        let parts = results.iter().map(|kind| body.of_kind(kind)).collect::<Result<Vec<_>, _>>()?;
        let root = body.computation.tuple(parts)?;
        branches.push(body.computation.finish(root)?);
    }
    Ok(Callee::Conditional { branches, parameters })
}

fn while_loop(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    depth: usize,
) -> Result<Callee, BuildError> {
    let inner = callees(module, random, combiners, options, depth)?;
    let trip_count = random.below(4) as i32;
    let (body, state) = {
        let mut body = Body::new(module, "body", random, combiners, options);
        // The entry alone calls it, and it takes as many steps everywhere.
        body.exchanges = options.family == Family::Devices && depth + 1 == options.depth;
        let (mut state, mut roles) = (vec![(S32, Vec::new())], Vec::new());
        for _ in 0..1 + body.random.below(4) {
            let kind = body.random_kind();
            let role =
                body.random.pick(&[Role::Update, Role::Update, Role::Keep, Role::Swap, Role::UpdateSlice]);
            roles.push(role);
            state.push(kind.clone());
            if let Role::Swap = role {
                roles.push(Role::Swap);
                state.push(kind);
            }
        }
        let parameter = body.computation.parameter("state", Shape::Tuple(state.iter().map(shape).collect()));
        body.take(parameter)?;
        let parts = body.pool.clone();
        body.fill(&inner, options.steps / 3)?;
        let one = body.computation.constant(Literal::s32(1));
        let mut next = vec![body.computation.binary(BinaryOp::Add, parts[0], one)?];
        while next.len() < parts.len() {
            let (k, kind) = (next.len(), state[next.len()].clone());
            match roles[k - 1] {
                Role::Update => {
                    let value = body.of_kind(&kind)?;
                    next.push(value);
                }
                Role::Keep => next.push(parts[k]),
                Role::Swap => next.extend([parts[k + 1], parts[k]]),
                Role::UpdateSlice => {
                    let value = body.write_slice(parts[k], &kind, parts[0])?;
                    next.push(value);
                }
            }
        }
        let root = body.computation.tuple(next)?;
        (body.computation.finish(root)?, state)
    };
    let mut condition = module.computation("condition");
    let parameter = condition.parameter("state", Shape::Tuple(state.iter().map(shape).collect()));
    let count = condition.get_tuple_element(parameter, 0)?;
    let limit = condition.constant(Literal::s32(trip_count));
    let root = condition.compare(ComparisonDirection::Lt, count, limit)?;
    let condition = condition.finish(root)?;
    Ok(Callee::While { body, condition, state })
}

impl Body<'_, '_> {
    /// Writes the row of the current step.
    fn write_slice(
        &mut self,
        x: InstructionId,
        kind: &Kind,
        count: InstructionId,
    ) -> Result<InstructionId, BuildError> {
        if kind.1.is_empty() {
            return Ok(x);
        }
        let mut sizes = kind.1.clone();
        sizes[0] = 1;
        let row = self.of_kind(&(kind.0, sizes))?;
        let zero = self.computation.constant(Literal::s32(0));
        let starts: Vec<_> = (0..kind.1.len()).map(|d| if d == 0 { count } else { zero }).collect();
        self.computation.dynamic_update_slice(x, row, starts)
    }

    /// Calls a computation with arguments from the pool.
    pub(super) fn call(&mut self, callee: &Callee) -> Result<(), BuildError> {
        let result = match callee {
            Callee::Call { computation, parameters } => {
                let arguments = self.arguments(parameters)?;
                self.computation.call(*computation, arguments)?
            }
            Callee::Start { computation, parameters, overwrites } => {
                let arguments = self.arguments(parameters)?;
                self.call_asynchronously(*computation, arguments, *overwrites)?
            }
            Callee::Fusion { computation, parameters, kind } => {
                let arguments = self.arguments(parameters)?;
                self.fuse(*computation, arguments, *kind)?
            }
            Callee::While { body, condition, state } => {
                let zero = self.computation.constant(Literal::s32(0));
                let mut parts = vec![zero];
                parts.extend(self.arguments(&state[1..])?);
                let initial = self.computation.tuple(parts)?;
                self.computation.while_loop(initial, *condition, *body)?
            }
            Callee::Conditional { branches, parameters } => {
                let selector = match branches.len() {
                    2 => self.of_kind(&(Pred, Vec::new()))?,
                    _ => self.of_kind(&(S32, Vec::new()))?,
                };
                let arguments = self.arguments(parameters)?;
                let tuple = self.computation.tuple(arguments)?;
                let branches: Vec<_> = branches.iter().map(|&branch| (branch, tuple)).collect();
                self.computation.conditional(selector, &branches)?
            }
            Callee::Scan(scan) => return self.run_scan(scan),
            Callee::Rare(looped) => return self.run_rare_loop(looped),
        };
        if self.computation.shape(result).is_tuple() {
            self.tuples.push(result);
        }
        self.take(result)
    }

    fn arguments(&mut self, kinds: &[Kind]) -> Result<Vec<InstructionId>, BuildError> {
        kinds.iter().map(|kind| self.of_kind(kind)).collect()
    }
}
