//! Loops with rare state: references to memory that library calls overwrite, and arrays whose extents change from step
//! to step.

use memplan_ir::ElementType::S32;
use memplan_ir::{
    ArrayShape, BinaryOp, BuildError, ComparisonDirection, ComputationId, CustomCall, Insert, InstructionId,
    Literal, ModuleBuilder, Op, OutputOperandAlias, Shape, ShapeIndex, UnaryOp,
};

use crate::Random;

use super::{Body, Combiners, GenerateOptions, Kind, shape};

/// The library call that overwrites the memory of its reference; [`overwrite`] computes the new contents.
pub const OVERWRITES: &str = "overwrites";

/// Most steps of a loop whose end depends on data.
const MOST_STEPS: i32 = 3;

/// A loop: its counter, a limit from data, an array, a reference, and an array of dynamic extent.
pub(super) struct RareLoop {
    body: ComputationId,
    condition: ComputationId,
    kind: Kind,
}

pub(super) fn rare_loop(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
) -> Result<RareLoop, BuildError> {
    let kind: Kind = (S32, random.pick(&[&[8][..], &[4, 8]]).to_vec());
    let body = {
        let mut body = Body::new(module, "rare", random, combiners, options);
        let root = body.rare_step(&kind)?;
        body.computation.finish(root)?
    };
    let mut condition = module.computation("condition");
    let parameter = condition.parameter("state", state(&kind));
    let [count, limit] =
        [condition.get_tuple_element(parameter, 0)?, condition.get_tuple_element(parameter, 1)?];
    let root = condition.compare(ComparisonDirection::Lt, count, limit)?;
    Ok(RareLoop { body, condition: condition.finish(root)?, kind })
}

fn state(kind: &Kind) -> Shape {
    let scalar = Shape::scalar(S32);
    Shape::tuple([scalar.clone(), scalar, shape(kind), reference(kind), dynamic()])
}

fn reference(kind: &Kind) -> Shape {
    match shape(kind) {
        Shape::Array(array) => Shape::Buffer(array),
        _ => unreachable!("a kind is an array"),
    }
}

/// At most eight integers.
fn dynamic() -> Shape {
    let mut array = ArrayShape::new(S32, [8]);
    array.dynamic = [true].into_iter().collect();
    Shape::Array(array)
}

/// The contents that [`OVERWRITES`] writes: each integer's successor.
///
/// # Errors
/// When it is not given an array of integers.
pub fn overwrite(operands: &[Literal]) -> Result<Literal, String> {
    let array = operands.first().and_then(Literal::as_array).ok_or("an array is expected")?;
    let next =
        |word: &[u8]| i32::from_le_bytes(word.try_into().expect("words have four bytes")).wrapping_add(1);
    let bytes: Vec<u8> = array.bytes().chunks_exact(4).flat_map(|word| next(word).to_le_bytes()).collect();
    Ok(Literal::array(S32, array.dimensions.iter().copied(), bytes))
}

impl Body<'_, '_> {
    fn in_place_call(
        &mut self,
        target: &str,
        operand: InstructionId,
        result: Shape,
    ) -> Result<InstructionId, BuildError> {
        let alias = OutputOperandAlias {
            output_index: ShapeIndex::root(),
            operand: 0,
            operand_index: ShapeIndex::root(),
        };
        let call = CustomCall {
            target: target.into(),
            output_operand_aliasing: vec![alias],
            ..CustomCall::default()
        };
        self.computation.insert_shaped(Op::CustomCall(Box::new(call)), [operand], result)
    }

    fn pin(&mut self, x: InstructionId) -> Result<InstructionId, BuildError> {
        let kind = self.kind(x);
        self.in_place_call("Pin", x, reference(&kind))
    }

    fn unpin(&mut self, x: InstructionId, kind: &Kind) -> Result<InstructionId, BuildError> {
        self.in_place_call("Unpin", x, shape(kind))
    }

    fn cut(&mut self, x: InstructionId, size: InstructionId) -> Result<InstructionId, BuildError> {
        self.computation.insert(Op::SetDimensionSize { dimension: 0 }, [x, size])
    }

    /// A step that passes on the reference unchanged, overwritten, or another one.
    fn rare_step(&mut self, kind: &Kind) -> Result<InstructionId, BuildError> {
        let parameter = self.computation.parameter("state", state(kind));
        let part = |body: &mut Self, index| body.computation.get_tuple_element(parameter, index);
        let [count, limit, array, mut memory, dynamic] =
            [part(self, 0)?, part(self, 1)?, part(self, 2)?, part(self, 3)?, part(self, 4)?];
        self.pool.extend([count, limit, array]);
        // At most one operation may write the memory of a reference, and reading it counts as writing.
        memory = match self.random.below(6) {
            0 => memory,
            1 => {
                // The memory's contents may become the array, and the array the reference.
                let seen = self.unpin(memory, kind)?;
                let other = match self.random.below(2) {
                    0 => array,
                    _ => {
                        let other = self.of_kind(kind)?;
                        self.computation.unary(UnaryOp::Negate, other)?
                    }
                };
                self.pool.push(seen);
                self.pin(other)?
            }
            2 => {
                let seen = self.unpin(memory, kind)?;
                let read = self.computation.unary(UnaryOp::Negate, seen)?;
                self.pool.push(read);
                self.pin(seen)?
            }
            _ => self.in_place_call(OVERWRITES, memory, reference(kind))?,
        };
        let zero = self.computation.constant(Literal::s32(0));
        let sum = self.computation.reduce(dynamic, zero, [0], self.combiners.sum_s32)?;
        self.pool.push(sum);
        self.fill(&[], 4)?;
        let one = self.computation.constant(Literal::s32(1));
        let next_count = self.computation.binary(BinaryOp::Add, count, one)?;
        let next = self.of_kind(kind)?;
        let next_dynamic = match self.random.below(3) {
            0 => dynamic,
            // No larger than the array, since contents beyond its extent are undefined.
            1 => {
                let extent = self.computation.insert(Op::GetDimensionSize { dimension: 0 }, [dynamic])?;
                let size = self.computation.binary(BinaryOp::Minimum, extent, next_count)?;
                self.cut(dynamic, size)?
            }
            _ => {
                let whole = self.of_kind(&(S32, vec![8]))?;
                self.cut(whole, next_count)?
            }
        };
        self.computation.tuple([next_count, limit, next, memory, next_dynamic])
    }

    pub(super) fn run_rare_loop(&mut self, looped: &RareLoop) -> Result<(), BuildError> {
        let [zero, most] = [0, MOST_STEPS].map(|n| self.computation.constant(Literal::s32(n)));
        let any = self.of_kind(&(S32, Vec::new()))?;
        let limit = self.computation.binary(BinaryOp::Minimum, any, most)?;
        let [array, pinned, whole] =
            [self.of_kind(&looped.kind)?, self.of_kind(&looped.kind)?, self.of_kind(&(S32, vec![8]))?];
        let memory = self.pin(pinned)?;
        let size = self.computation.constant(Literal::s32(1 + self.random.below(8) as i32));
        let dynamic = self.cut(whole, size)?;
        let initial = self.computation.tuple([zero, limit, array, memory, dynamic])?;
        let result = self.computation.while_loop(initial, looped.condition, looped.body)?;
        let memory = self.computation.get_tuple_element(result, 3)?;
        let seen = self.unpin(memory, &looped.kind)?;
        let array = self.computation.get_tuple_element(result, 2)?;
        let dynamic = self.computation.get_tuple_element(result, 4)?;
        let sum = self.computation.reduce(dynamic, zero, [0], self.combiners.sum_s32)?;
        self.pool.extend([seen, array, sum]);
        Ok(())
    }
}
