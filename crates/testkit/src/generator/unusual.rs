//! Rare features: fusions in the source that update their operands, tuples that are copied, constant, or returned by
//! control flow, and arrays with dynamic extents.

use memplan_ir::ElementType::{F32, S32};
use memplan_ir::{
    BinaryOp, BuildError, Fusion, FusionKind, Insert, InstructionId, Literal, ModuleBuilder, Op, Shape,
    SliceDimension, UnaryOp,
};

use crate::Random;

use super::control::Callee;
use super::{Body, Kind, shape};

/// A fusion that updates its first operand, and may do other things with it as well.
pub(super) fn fused_update(module: &mut ModuleBuilder, random: &mut Random) -> Result<Callee, BuildError> {
    let base: Kind = (F32, random.pick(&[&[4, 8][..], &[8, 4], &[8]]).to_vec());
    let mut piece = base.clone();
    piece.1[0] = 2;
    let mut fused = module.computation("fused");
    let p = fused.parameter("p", shape(&base));
    let u = fused.parameter("u", shape(&piece));
    let i = fused.parameter("i", Shape::scalar(S32));
    let zero = fused.constant(Literal::s32(0));
    let starts = |first: InstructionId| std::iter::once(first).chain(vec![zero; base.1.len() - 1]);
    let mut outputs = vec![fused.dynamic_update_slice(p, u, starts(i))?];
    for _ in 0..random.below(3) {
        let output = match random.below(7) {
            0 => fused.dynamic_slice(p, starts(i), piece.1.clone())?,
            1 => fused.unary(UnaryOp::Negate, p)?,
            2 => fused.transpose(p, (0..base.1.len() as i64).rev())?,
            3 => {
                let one = fused.constant(Literal::s32(1));
                fused.binary(BinaryOp::Add, i, one)?
            }
            4 => {
                let cut = fused.dynamic_slice(p, starts(i), piece.1.clone())?;
                let negated = fused.unary(UnaryOp::Negate, cut)?;
                fused.dynamic_update_slice(p, negated, starts(i))?
            }
            5 => {
                let whole = |&limit: &i64| SliceDimension { start: 0, limit, stride: 1 };
                let cut = fused.slice(p, piece.1.iter().map(whole))?;
                let negated = fused.unary(UnaryOp::Negate, cut)?;
                fused.dynamic_update_slice(p, negated, starts(zero))?
            }
            _ => {
                let next = fused.binary(BinaryOp::Add, i, i)?;
                fused.dynamic_update_slice(outputs[0], u, starts(next))?
            }
        };
        outputs.push(output);
    }
    let root = match outputs.as_slice() {
        &[only] => only,
        _ => fused.tuple(outputs)?,
    };
    let kind = random.pick(&[FusionKind::Loop, FusionKind::Custom]);
    let computation = fused.finish(root)?;
    Ok(Callee::Fusion { computation, parameters: vec![base, piece, (S32, Vec::new())], kind })
}

impl Body<'_, '_> {
    pub(super) fn fuse(
        &mut self,
        computation: memplan_ir::ComputationId,
        arguments: Vec<InstructionId>,
        kind: FusionKind,
    ) -> Result<InstructionId, BuildError> {
        let op = Op::Fusion(Box::new(Fusion { kind, output_operand_aliasing: Vec::new() }));
        self.computation.insert_calling(op, arguments, [computation])
    }

    pub(super) fn unusual(&mut self) -> Result<Option<InstructionId>, BuildError> {
        match self.random.below(3) {
            0 => self.constant_tuple().map(|()| None),
            1 => self.copied_tuple().map(|()| None),
            _ => self.dynamic_extent(),
        }
    }

    fn constant_tuple(&mut self) -> Result<(), BuildError> {
        let ones = Literal::array(S32, [4], [1i32, 2, 3, 4].map(i32::to_le_bytes).concat());
        let inner = Literal::Tuple(vec![ones.clone(), Literal::f32(0.5)]);
        let constant = self.computation.constant(Literal::Tuple(vec![inner, ones]));
        self.tuples.push(constant);
        self.take(constant)
    }

    fn copied_tuple(&mut self) -> Result<(), BuildError> {
        let tuple = match self.tuples.last() {
            Some(&tuple) => tuple,
            None => {
                let [a, b] = [self.any(), self.any()];
                self.computation.tuple([a, b])?
            }
        };
        let copy = self.computation.insert(Op::Copy, [tuple])?;
        self.tuples.push(copy);
        self.take(copy)
    }

    /// The sum of the rows of an array that an extent leaves.
    fn dynamic_extent(&mut self) -> Result<Option<InstructionId>, BuildError> {
        let Some(x) = self.any_where(|x| x.rank() > 0 && x.element_type == S32) else { return Ok(None) };
        let extent = self.array(x).dimensions[0];
        let rank = self.array(x).rank() as i64;
        let limit = self.computation.constant(Literal::s32(1 + self.random.below(extent as usize) as i32));
        let mut bounded = self.computation.insert(Op::SetDimensionSize { dimension: 0 }, [x, limit])?;
        if self.random.one_in(2) {
            bounded = self.computation.unary(UnaryOp::Negate, bounded)?;
        }
        if self.random.one_in(3) {
            let other = self.computation.constant(Literal::s32(1));
            bounded = self.computation.insert(Op::SetDimensionSize { dimension: 0 }, [bounded, other])?;
        }
        let zero = self.computation.constant(Literal::s32(0));
        self.computation.reduce(bounded, zero, 0..rank, self.combiners.sum_s32).map(Some)
    }
}
