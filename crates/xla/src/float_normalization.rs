//! `float-normalization`: does arithmetic in the types that the code generator supports.
//!
//! ```text
//!   a = bf16[4] add(x, y)      =>     xw = f32[4] convert(x)
//!                                     yw = f32[4] convert(y)
//!                                     aw = f32[4] add(xw, yw)
//!                                     a = bf16[4] convert(aw)
//! ```
//!
//! Before jaxlib 0.12, XLA's CPU compiler can only convert narrow floats, so it widens the operands of slices,
//! transposes and updates like those of sums: an array that is read in narrow slices exists in the wide type as a
//! whole. Since jaxlib 0.12 it moves and compares bf16 without conversions ([`FloatNormalization::keeps`]), and its library
//! of kernels computes with it ([`FloatNormalization::library`]); it widens the operands of all other products. The GPU
//! compiler widens divisions, roots, logarithms and the like. Floats of eight bits are even moved in f16. Every operation still
//! rounds its result, as in the program, but for readers that convert it to the wide type; collectives use the wide type on
//! CPUs.
//!
//! Left alone: parameters, tuples, control flow, calls, conversions, reinterpretations, constants, updates of slices of bf16
//! (XLA widens and fuses them with the conversions around them), before jaxlib 0.12 products with a wide result, and
//! operations that call computations with other than elementwise operations. *Changed* means that a value was widened.

use memplan_ir::{
    ArrayShape, BinaryOp, ComputationId, Cursor, ElementType, Insert, InstructionId, Module, Names, Op,
    Opcode, Shape, ShapeId, UnaryOp,
};
use memplan_memory::by_name;
use memplan_rewriter::{Context, Outcome, Pass, PassError, call_graph};
use rustc_hash::FxHashMap;
use serde::Deserialize;

use super::library_fusion::{LibraryOperations, LibraryRules};

/// The pass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FloatNormalization {
    /// Operations that stay in bf16, beside those that every version keeps.
    #[serde(with = "by_name::list")]
    pub keeps: Vec<Opcode>,
    /// The library whose products and reductions stay narrow; `None` where none does.
    pub library: Option<LibraryRules>,
}

/// The pass, of a compiler that keeps nothing narrow for a library.
pub const FLOAT_NORMALIZATION: FloatNormalization = FloatNormalization { keeps: Vec::new(), library: None };

impl Pass for FloatNormalization {
    fn name(&self) -> &'static str {
        "float-normalization"
    }

    fn description(&self) -> &'static str {
        "compute in f32 what is bf16, and in f16 what is narrower, as XLA does"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        run(module, self).map(Outcome::from)
    }
}

fn run(module: &mut Module, pass: &FloatNormalization) -> Result<bool, PassError> {
    if module.shapes.iter().all(|shape| wide_shape(shape).is_none()) {
        return Ok(false);
    }
    let computations = call_graph(module, FLOAT_NORMALIZATION.name())?.sequential().to_vec();
    let names = Names::new(module);
    let mut widen = Widen {
        module,
        pass,
        names,
        instead: FxHashMap::default(),
        unrounded: FxHashMap::default(),
        wide: FxHashMap::default(),
        bodies: FxHashMap::default(),
    };
    let mut changed = false;
    for computation in computations {
        changed |= widen.computation(computation);
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// The type that numbers of another are computed in; `None` where it is that type itself.
fn wide_type(element_type: ElementType) -> Option<ElementType> {
    match element_type {
        ElementType::Bf16 => Some(ElementType::F32),
        other if other.is_floating() && other.bits() <= 8 => Some(ElementType::F16),
        _ => None,
    }
}

struct Widen<'m> {
    module: &'m mut Module,
    pass: &'m FloatNormalization,
    names: Names,
    /// What replaces a value whose instruction now makes a wide one: the conversion back.
    instead: FxHashMap<InstructionId, InstructionId>,
    /// The result that a conversion back rounds.
    unrounded: FxHashMap<InstructionId, InstructionId>,
    /// The wide form of a value.
    wide: FxHashMap<InstructionId, InstructionId>,
    /// The wide form of a computation; `None` where it has none.
    bodies: FxHashMap<(ComputationId, bool), Option<ComputationId>>,
}

impl Widen<'_> {
    fn computation(&mut self, computation: ComputationId) -> bool {
        let listed = std::mem::take(&mut self.module.computations[computation].instructions);
        let before = self.wide.len() + self.instead.len();
        for id in listed {
            for i in 0..self.module.instructions[id].operands.len() {
                let operand = self.module.instructions[id].operands[i];
                let is_element = matches!(self.module.instructions[id].op, Op::GetTupleElement { .. });
                if let Some(&instead) = self.instead.get(&operand)
                    && !is_element
                {
                    self.module.instructions[id].operands[i] = instead;
                }
            }
            if let Some(wide) = self.unrounded(id) {
                self.instead.insert(id, wide);
            } else if self.is_element_of_wide(id) {
                self.module.list(id);
                self.narrow(id);
            } else if self.is_to_widen(id) {
                self.widen(id);
            } else {
                self.module.list(id);
            }
        }
        let root = self.module.computations[computation].root;
        if let Some(&instead) = self.instead.get(&root) {
            self.module.computations[computation].root = instead;
        }
        self.wide.len() + self.instead.len() > before
    }

    /// What a conversion of a rounded result makes wide again: the result before it was rounded.
    fn unrounded(&self, id: InstructionId) -> Option<InstructionId> {
        let instruction = &self.module.instructions[id];
        let &[rounded] = &instruction.operands[..] else { return None };
        let wide = *self.unrounded.get(&rounded)?;
        let is_back =
            matches!(instruction.op, Op::Convert) && self.module.shape(wide) == self.module.shape(id);
        is_back.then_some(wide)
    }

    /// Whether an instruction takes an element out of a tuple whose elements were widened.
    fn is_element_of_wide(&self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let Op::GetTupleElement { index } = instruction.op else { return false };
        let tuple = self.module.shape(instruction.operands[0]).as_tuple();
        tuple.is_some_and(|elements| {
            wide_shape(self.module.shape(id)).is_some_and(|wide| elements[index as usize] == wide)
        })
    }

    fn is_to_widen(&mut self, id: InstructionId) -> bool {
        let instruction = &self.module.instructions[id];
        let result = self.module.shape(id);
        let keeps =
            instruction.op == Op::DynamicUpdateSlice || self.pass.keeps.contains(&instruction.op.opcode());
        let has_bytes = |id: &InstructionId| has_bytes(self.module.shape(*id));
        if is_kept(&instruction.op) || keeps && !has_bytes(&id) && !instruction.operands.iter().any(has_bytes)
        {
            return false;
        }
        let is_narrow = |id: &InstructionId| wide_shape(self.module.shape(*id)).is_some();
        let narrows = wide_shape(result).is_some();
        if let Some(rules) = &self.pass.library {
            let is_offered = matches!(instruction.op, Op::Dot(_) | Op::Reduce { .. } | Op::ReduceWindow(_));
            if is_offered && (LibraryOperations { module: self.module, rules }).has(id) {
                return false;
            }
        }
        let is_product = matches!(instruction.op, Op::Dot(_) | Op::Convolution(_));
        let widens =
            !(is_product && self.pass.library.is_none()) && instruction.operands.iter().any(is_narrow);
        if !(narrows || widens) {
            return false;
        }
        // A tuple is taken apart by its readers, if it is not the result as a whole.
        if result.is_tuple() && self.module.computations[instruction.parent].root == id {
            return false;
        }
        let (called, rounds) = (instruction.called.clone(), rounds(&instruction.op));
        called.iter().all(|&called| self.body(called, rounds).is_some())
    }

    fn widen(&mut self, id: InstructionId) {
        for i in 0..self.module.instructions[id].operands.len() {
            let operand = self.module.instructions[id].operands[i];
            self.module.instructions[id].operands[i] = self.wide(operand);
        }
        for i in 0..self.module.instructions[id].called.len() {
            let instruction = &self.module.instructions[id];
            let (called, rounds) = (instruction.called[i], rounds(&instruction.op));
            let body = self.body(called, rounds).expect("asked before");
            self.module.instructions[id].called[i] = body;
        }
        self.module.list(id);
        self.narrow(id);
    }

    /// Makes an instruction's result wide, and those who read it read a conversion back.
    fn narrow(&mut self, id: InstructionId) {
        let old = self.module.instructions[id].shape;
        let Some(wide) = wide_shape(self.module.shape(id)) else { return };
        let is_tuple = wide.is_tuple();
        self.module.set_shape(id, wide);
        if !is_tuple {
            let back = self.convert(id, old);
            self.instead.insert(id, back);
            self.unrounded.insert(back, id);
        }
    }

    /// The wide form of a value.
    fn wide(&mut self, id: InstructionId) -> InstructionId {
        let Some(shape) = wide_shape(self.module.shape(id)) else { return id };
        if let Some(&wide) = self.wide.get(&id) {
            return wide;
        }
        let shape = self.module.intern(shape);
        let wide = self.convert(id, shape);
        self.wide.insert(id, wide);
        wide
    }

    fn convert(&mut self, id: InstructionId, shape: ShapeId) -> InstructionId {
        let shape = self.module.shape_of(shape).clone();
        Cursor::beside(self.module, &mut self.names, id).insert_shaped(Op::Convert, [id], shape)
    }

    /// Computes a copy of a computation in wide types, and rounds every result if it `rounds`, which makes a sum of narrow
    /// numbers another operation than a sum of wide ones.
    fn widen_body(&mut self, body: ComputationId, rounds: bool) {
        let mut rounded: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
        let listed = std::mem::take(&mut self.module.computations[body].instructions);
        for id in listed {
            for operand in &mut self.module.instructions[id].operands {
                *operand = rounded.get(operand).copied().unwrap_or(*operand);
            }
            self.module.list(id);
            let narrow = self.module.instructions[id].shape;
            let Some(wide) = wide_shape(self.module.shape(id)) else { continue };
            if matches!(self.module.instructions[id].op, Op::Constant(_)) {
                let wide = self.module.intern(wide);
                rounded.insert(id, self.convert(id, wide));
                continue;
            }
            self.module.set_shape(id, wide);
            if rounds && self.module.instructions[id].op.is_elementwise() {
                let wide = self.module.instructions[id].shape;
                let back = self.convert(id, narrow);
                let again = self.convert(back, wide);
                rounded.insert(id, again);
            }
        }
        let root = &mut self.module.computations[body].root;
        *root = rounded.get(root).copied().unwrap_or(*root);
    }

    /// The wide form of a computation of numbers, such as a reducer.
    fn body(&mut self, computation: ComputationId, rounds: bool) -> Option<ComputationId> {
        if let Some(&body) = self.bodies.get(&(computation, rounds)) {
            return body;
        }
        let computes_numbers = self.module.instructions_of(computation).all(|(_, instruction)| {
            instruction.op.is_elementwise()
                || matches!(
                    instruction.op,
                    Op::Parameter { .. } | Op::Tuple | Op::Broadcast { .. } | Op::Constant(_)
                )
        });
        let body = computes_numbers.then(|| {
            let name = self.names.fresh(&self.module.computations[computation].name.clone());
            let body = self.module.clone_computation(computation, name);
            self.widen_body(body, rounds);
            body
        });
        self.bodies.insert((computation, rounds), body);
        body
    }
}

/// Operations that XLA has for every type, or that touch no numbers.
fn is_kept(op: &Op) -> bool {
    matches!(
        op,
        Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::Convert
            | Op::BitcastConvert
            | Op::Bitcast
            | Op::Call { .. }
            | Op::While
            | Op::Conditional
            | Op::Fusion(_)
            | Op::CustomCall(_)
            | Op::OptimizationBarrier
            | Op::Binary(BinaryOp::ShiftRightLogical | BinaryOp::ShiftRightArithmetic)
            | Op::Unary(UnaryOp::CountLeadingZeros)
            | Op::CopyStart { .. }
            | Op::CopyDone
            | Op::AsyncStart(_)
            | Op::AsyncUpdate(_)
            | Op::AsyncDone(_)
    ) || op.collective().is_some() && !is_collective_of_arrays(op)
}

/// Whether this sends whole arrays between devices and waits for them.
fn is_collective_of_arrays(op: &Op) -> bool {
    op.is_whole_collective() && !matches!(op, Op::RaggedAllToAll(_))
}

/// Whether the computations that an operation calls round all that they compute.
fn rounds(op: &Op) -> bool {
    !is_collective_of_arrays(op)
}

/// Whether a shape has floats of a byte or less.
fn has_bytes(shape: &Shape) -> bool {
    match shape {
        Shape::Tuple(elements) => elements.iter().any(has_bytes),
        other => {
            other.as_array().is_some_and(|array| wide_type(array.element_type) == Some(ElementType::F16))
        }
    }
}

/// A shape with narrow floats widened; `None` where it has none.
fn wide_shape(shape: &Shape) -> Option<Shape> {
    match shape {
        Shape::Array(array) => {
            let element_type = wide_type(array.element_type)?;
            Some(Shape::Array(ArrayShape { element_type, ..array.clone() }))
        }
        Shape::Tuple(elements) => {
            let wide: Vec<Option<Shape>> = elements.iter().map(wide_shape).collect();
            let is_any = wide.iter().any(Option::is_some);
            let parts = wide.into_iter().zip(elements.iter());
            is_any
                .then(|| Shape::Tuple(parts.map(|(wide, old)| wide.unwrap_or_else(|| old.clone())).collect()))
        }
        _ => None,
    }
}
