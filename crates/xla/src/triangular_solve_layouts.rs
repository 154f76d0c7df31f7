//! `triangular-solve-layouts`: makes matrices of triangular solves column-major, as LAPACK requires.
//!
//! ```text
//!   x = triangular-solve(a, b), left_side=true, lower=true
//!      =>
//!   at = transpose(a)
//!   bt = transpose(b)
//!   xt = triangular-solve(at, bt), left_side=false, lower=false
//!   x = transpose(xt)
//! ```
//!
//! XLA's CPU compiler calls LAPACK, its GPU compiler cuBLAS, and both libraries require columns (seen on jaxlib
//! 0.10.2). A column-major matrix is its row-major transpose, so the transposed solve has the numbers where the
//! libraries need them. Left alone: solves from the right, which were transposed already. *Changed* means that a solve
//! was transposed.

use memplan_ir::{Dimensions, InstructionId, Op};
use memplan_rewriter::{Rewriter, Sweep};

/// The pass.
pub const TRIANGULAR_SOLVE_LAYOUTS: Sweep = Sweep {
    name: "triangular-solve-layouts",
    description: "make matrices of triangular solves column-major, as XLA's CPU and GPU compilers do",
    rule: turn,
};

fn turn(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let Op::TriangularSolve(mut solve) = r.op(id).clone() else { return None };
    if !solve.left_side {
        return None;
    }
    (solve.left_side, solve.lower) = (!solve.left_side, !solve.lower);
    let operands = [r.operand(id, 0), r.operand(id, 1)];
    let operands = [transposed(r, operands[0])?, transposed(r, operands[1])?];
    let shape = r.shape(operands[1]).clone();
    let turned = r.emit(Op::TriangularSolve(solve), operands, shape);
    transposed(r, turned)
}

/// Matrices with rows and columns exchanged.
fn transposed(r: &mut Rewriter<'_>, id: InstructionId) -> Option<InstructionId> {
    let rank = r.array(id)?.rank();
    let mut order: Dimensions = (0..rank as i64).collect();
    order.swap(rank - 2, rank - 1);
    r.transposed(id, &order)
}
