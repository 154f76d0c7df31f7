//! Whether a kernel that multiplies can load and store through a transpose, by strides alone.
//!
//! ```text
//!   x = f32[8,128,8,64]                            batch, rows, batch, contracted
//!   t = f32[8,8,128,64] transpose(x)               batch, batch, rows, contracted
//!   d = f32[64,128,128] dot(reshape(t), ..)        batches are two stretches of x: t is in memory
//! ```
//!
//! A product's dimension is a stretch of an array if the array's dimensions that form it are adjacent there, in the
//! same order. The roles of dimensions are tracked through reshapes and elementwise operations; any other operation
//! counts as one stretch.

use memplan_ir::{BinaryOp, DotOperand, ElementType, Instruction, InstructionId, Module, Op, Users};
use memplan_rewriter::cost;
use smallvec::SmallVec;

/// The role of a dimension of an operand or of the result of a product.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Batch,
    /// Rows of the left operand, columns of the right one.
    Free(usize),
    Contracted,
}

/// Whether an operand loaded through a transpose consists of stretches.
pub(super) fn loads_stretches(
    module: &Module,
    users: &Users,
    transpose: InstructionId,
    members: &[InstructionId],
) -> bool {
    let mut at = transpose;
    for user in followers(users, transpose, members) {
        if let Op::Dot(_) = module.instructions[user].op {
            let side = usize::from(module.instructions[user].operands[0] != at);
            let Some(roles) = roles_of_operand(module, user, side) else { return true };
            let order = permutation(module, transpose);
            let element_type = module.shape(at).as_array().map(|array| array.element_type);
            return roles_through_reshape(module, at, transpose, &roles).is_none_or(|roles| {
                are_stretches(&roles, &order, |_| true, |role| most_stretches(role, element_type))
            });
        }
        if !keeps_order(module, user) {
            return true;
        }
        at = user;
    }
    true
}

/// Whether a result stored through a transpose consists of stretches of the transpose, in which rows or columns may be in any
/// order unless some of them become one dimension.
pub(super) fn stores_stretches(
    module: &Module,
    users: &Users,
    dot: InstructionId,
    members: &[InstructionId],
) -> bool {
    let mut at = dot;
    for user in followers(users, dot, members) {
        if let Op::Transpose { .. } = module.instructions[user].op {
            let Some(roles) = roles_of_result(module, dot) else { return true };
            // The new position of each transposed dimension.
            let order = permutation(module, user);
            let mut places: SmallVec<[usize; 8]> = SmallVec::from_elem(0, order.len());
            order.iter().enumerate().for_each(|(to, &from)| places[from] = to);
            let is_merged = users.of(user).iter().any(|&user| is_merging(module, user));
            let is_in_order = |role| role == Role::Batch || is_merged;
            return roles_through_reshape(module, dot, at, &roles)
                .is_none_or(|roles| are_stretches(&roles, &places, is_in_order, |_| 1));
        }
        if !keeps_order(module, user) {
            return true;
        }
        at = user;
    }
    true
}

/// Whether an instruction takes dimensions together.
fn is_merging(module: &Module, id: InstructionId) -> bool {
    let instruction = &module.instructions[id];
    let n_long = |id: InstructionId| {
        let array = module.shape(id).as_array();
        array.map_or(0, |array| array.dimensions.iter().filter(|&&extent| extent != 1).count())
    };
    matches!(instruction.op, Op::Reshape { .. }) && n_long(id) < n_long(instruction.operands[0])
}

/// Whether what is done to a result before it is stored is a chain: each operation reads the one before it once, and else
/// what is in memory, or repeats it.
pub(super) fn is_followed_by_chain(
    module: &Module,
    users: &Users,
    dot: InstructionId,
    members: &[InstructionId],
) -> bool {
    let mut at = dot;
    for user in followers(users, dot, members) {
        let instruction = &module.instructions[user];
        if !keeps_order(module, user) {
            return true;
        }
        let (chain, others): (Vec<_>, Vec<_>) =
            instruction.operands.iter().copied().partition(|&operand| operand == at);
        if chain.len() != 1 || !others.iter().all(|&operand| is_in_memory(module, users, operand)) {
            return false;
        }
        at = user;
    }
    !users.of(at).iter().any(|user| members.contains(user))
}

/// Whether all that a kernel does to a result is to compute on its elements, or to store a part of them.
pub(super) fn is_followed_by_slices(
    module: &Module,
    users: &Users,
    dot: InstructionId,
    members: &[InstructionId],
) -> bool {
    let is_slice = |user: InstructionId| matches!(module.instructions[user].op, Op::Slice { .. });
    followers(users, dot, members).all(|user| keeps_order(module, user) || is_slice(user))
}

/// Whether no loop of elements computes a value, but for repeating one, or for looking at it in another order.
fn is_in_memory(module: &Module, users: &Users, mut id: InstructionId) -> bool {
    while let Op::Broadcast { .. } | Op::Reshape { .. } | Op::Bitcast | Op::Transpose { .. } =
        module.instructions[id].op
    {
        id = module.instructions[id].operands[0];
    }
    (!cost::is_pointwise(module, id) || adds_product(module, users, id))
        && !matches!(module.instructions[id].op, Op::Slice { .. })
}

/// Whether a sum is one of a product that nothing else reads and of what was before, as after each layer of a network. The
/// product's kernel computes and stores it.
pub(super) fn adds_product(module: &Module, users: &Users, sum: InstructionId) -> bool {
    let Instruction { op, operands, .. } = &module.instructions[sum];
    let is_product = |&operand: &InstructionId| {
        let mut id = operand;
        while let Op::Reshape { .. } | Op::Bitcast = module.instructions[id].op
            && users.of(id).len() == 1
        {
            id = module.instructions[id].operands[0];
        }
        users.of(id).len() == 1 && matches!(module.instructions[id].op, Op::Dot(_))
    };
    *op == Op::Binary(BinaryOp::Add) && operands.iter().any(is_product)
}

/// What a kernel does to a value, one operation after the other, as long as each is the only user of the one before.
fn followers<'a>(
    users: &'a Users,
    id: InstructionId,
    members: &'a [InstructionId],
) -> impl Iterator<Item = InstructionId> {
    let only_user = |id: &InstructionId| match users.of(*id) {
        [user] if members.contains(user) => Some(*user),
        _ => None,
    };
    std::iter::successors(only_user(&id), only_user)
}

/// Whether elements stay in row-major order.
fn keeps_order(module: &Module, id: InstructionId) -> bool {
    matches!(module.instructions[id].op, Op::Reshape { .. }) || cost::is_pointwise(module, id)
}

fn permutation(module: &Module, transpose: InstructionId) -> SmallVec<[usize; 8]> {
    match &module.instructions[transpose].op {
        Op::Transpose { dimensions } => dimensions.iter().map(|&d| d as usize).collect(),
        _ => SmallVec::new(),
    }
}

type Roles = SmallVec<[Role; 8]>;

fn roles_of_operand(module: &Module, dot: InstructionId, side: usize) -> Option<Roles> {
    let instruction = &module.instructions[dot];
    let Op::Dot(numbers) = &instruction.op else { return None };
    let numbers = &numbers.dimensions;
    let which = [DotOperand::Lhs, DotOperand::Rhs][side];
    let (batch, contracting) = (numbers.batch(which), numbers.contracting(which));
    let rank = module.shape(instruction.operands[side]).as_array()?.dimensions.len();
    // Of a product that is summed up in parts, these are the first batch, behind the rows.
    let is_in_parts = numbers.lhs_batch.first().is_some_and(|&d| d != 0);
    let (parts, batch) = batch.split_at(usize::from(is_in_parts));
    let role = |d: i64| match d {
        d if batch.contains(&d) => Role::Batch,
        d if contracting.contains(&d) || parts.contains(&d) => Role::Contracted,
        _ => Role::Free(side),
    };
    Some((0..rank as i64).map(role).collect())
}

fn roles_of_result(module: &Module, dot: InstructionId) -> Option<Roles> {
    let instruction = &module.instructions[dot];
    let Op::Dot(numbers) = &instruction.op else { return None };
    let numbers = &numbers.dimensions;
    let n_batch = numbers.lhs_batch.len();
    let rank = module.shape(instruction.operands[0]).as_array()?.rank();
    let n_rows = numbers.free(DotOperand::Lhs, rank).len();
    let n_all = module.shape(dot).as_array()?.dimensions.len();
    let role = |d: usize| match d {
        d if d < n_batch => Role::Batch,
        d if d < n_batch + n_rows => Role::Free(0),
        _ => Role::Free(1),
    };
    Some((0..n_all).map(role).collect())
}

/// The roles of the dimensions of `to`, a reshape of `of`; dimensions of one element have none. `None` if a dimension
/// has parts of several roles.
fn roles_through_reshape(
    module: &Module,
    of: InstructionId,
    to: InstructionId,
    roles: &[Role],
) -> Option<SmallVec<[Option<Role>; 8]>> {
    let (known, wanted) = (module.shape(of).as_array()?, module.shape(to).as_array()?);
    let mut known = known.dimensions.iter().copied().zip(roles).filter(|&(extent, _)| extent != 1);
    // Elements of the known dimension at hand that are not matched yet, and its role.
    let mut open: (i64, Role) = (1, Role::Batch);
    let mut of_wanted = SmallVec::new();
    for &extent in &wanted.dimensions {
        let mut left = extent;
        let mut role = None;
        while left > 1 {
            if open.0 == 1 {
                open = known.next().map(|(extent, &role)| (extent, role))?;
            }
            if role.is_some_and(|role| role != open.1) {
                return None;
            }
            role = Some(open.1);
            let matched = left.min(open.0);
            if left % matched != 0 || open.0 % matched != 0 {
                return None;
            }
            left /= matched;
            open.0 /= matched;
        }
        of_wanted.push(role);
    }
    Some(of_wanted)
}

/// Rows of a left operand may be any number of stretches, and columns of a right one in `f32`; seen in 0.12 of XLA, on
/// operands with two and three stretches of each role.
fn most_stretches(role: Role, element_type: Option<ElementType>) -> usize {
    match role {
        Role::Free(0) => usize::MAX,
        Role::Free(_) if element_type == Some(ElementType::F32) => usize::MAX,
        _ => 1,
    }
}

/// Whether dimensions of one role are adjacent, in their order if that is asked for, except for the allowed number of gaps.
fn are_stretches(
    roles: &[Option<Role>],
    places: &[usize],
    is_in_order: impl Fn(Role) -> bool,
    most: impl Fn(Role) -> usize,
) -> bool {
    let mut by_place: SmallVec<[(usize, usize); 8]> =
        places.iter().enumerate().map(|(d, &place)| (place, d)).collect();
    by_place.sort_unstable();
    // Dimensions in the order of their positions, without those of one element.
    let order: SmallVec<[usize; 8]> =
        by_place.into_iter().map(|(_, d)| d).filter(|&d| roles[d].is_some()).collect();
    let follows = |a: usize, b: usize| (a + 1..b).all(|d| roles[d].is_none());
    [Role::Batch, Role::Free(0), Role::Free(1), Role::Contracted].into_iter().all(|role| {
        let mut n_stretches = 0;
        let mut before = None;
        for &d in &order {
            let is_mine = roles[d] == Some(role);
            let goes_on = before.is_some_and(|before| !is_in_order(role) || before < d && follows(before, d));
            n_stretches += usize::from(is_mine && !goes_on);
            before = is_mine.then_some(d);
        }
        n_stretches <= most(role)
    })
}
