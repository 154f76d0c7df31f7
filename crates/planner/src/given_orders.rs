//! Orders of a computation's instructions as XLA's memory schedulers find them, replayed on instructions rather than on nodes: what
//! only passes values on has users and operands like any other, and that is what these schedulers count.
//!
//! | order | visits next | source |
//! |---|---|---|
//! | depth-first | the operand with more extra users behind it, then with more bytes, then by name | XLA's `DFSMemoryScheduler` |
//! | post-order | control predecessors, then operands from left to right | XLA's `MakeInstructionPostOrder` |
//! | breadth-first | what has been ready longest | XLA's `BFScheduler` |
//!
//! What is behind an operand counts once for each way that leads to it. XLA keeps these sums from overflowing: there are no more extra
//! users than instructions, and no more bytes than those of the instructions so far, in post-order. In deep programs almost
//! all sums are at these limits, and then it is the latest operand in post-order that is visited first.
//!
//! n log n in instructions and operands.

use std::cmp::Reverse;

use memplan_ir::{ComputationId, InstructionId, Module, Op, Role};
use memplan_memory::Target;
use memplan_plan::Method;
use rustc_hash::FxHashMap;

/// XLA's depth-first order, among those that come with a region.
pub const DEPTH_FIRST_AS_XLA: Method = Method::Given(0);
/// XLA's post-order, among those that come with a region.
pub const POST_ORDER_AS_XLA: Method = Method::Given(1);

/// XLA's breadth-first order, among those that come with a region.
pub const BREADTH_FIRST_AS_XLA: Method = Method::Given(2);

/// All orders that are read off instructions, by their numbers.
pub(crate) fn given_orders(
    module: &Module,
    target: &Target,
    computation: ComputationId,
) -> [Vec<InstructionId>; 3] {
    let listed = Listed::new(module, target, computation);
    let post_order = listed.post_order();
    let depth_first = listed.depth_first(&post_order);
    let breadth_first = listed.breadth_first();
    [depth_first, post_order, breadth_first]
        .map(|order| order.into_iter().map(|at| listed.ids[at as usize]).collect())
}

/// The instructions of a computation by their place in its list.
struct Listed<'a> {
    module: &'a Module,
    ids: &'a [InstructionId],
    operands: Vec<Vec<u32>>,
    control_predecessors: Vec<Vec<u32>>,
    /// How many instructions use each.
    n_users: Vec<u32>,
    has_control_successors: Vec<bool>,
    /// Bytes that each defines, tables of addresses included.
    bytes: Vec<u64>,
    root: u32,
}

impl<'a> Listed<'a> {
    fn new(module: &'a Module, target: &Target, computation: ComputationId) -> Listed<'a> {
        let body = &module.computations[computation];
        let ids = &body.instructions;
        let places: FxHashMap<InstructionId, u32> = ids.iter().copied().zip(0..).collect();
        let of = |list: &[InstructionId]| list.iter().map(|id| places[id]).collect::<Vec<u32>>();
        let instructions = || ids.iter().map(|&id| &module.instructions[id]);
        let mut listed = Listed {
            module,
            ids,
            operands: instructions().map(|instruction| of(&instruction.operands)).collect(),
            control_predecessors: instructions().map(|i| of(&i.control_predecessors)).collect(),
            n_users: vec![0; ids.len()],
            has_control_successors: vec![false; ids.len()],
            bytes: ids.iter().map(|&id| defined_bytes(module, target, id)).collect(),
            root: places[&body.root],
        };
        for at in 0..ids.len() {
            unique(&listed.operands[at]).for_each(|operand| listed.n_users[operand as usize] += 1);
            for &before in &listed.control_predecessors[at] {
                listed.has_control_successors[before as usize] = true;
            }
        }
        listed
    }

    fn post_order(&self) -> Vec<u32> {
        let unused = (0..self.ids.len() as u32).filter(|&at| self.n_users[at as usize] == 0);
        self.visit(unused, |at, next| {
            next.extend(&self.control_predecessors[at as usize]);
            next.reverse();
            next.extend(&self.operands[at as usize]);
        })
    }

    fn depth_first(&self, post_order: &[u32]) -> Vec<u32> {
        let n = self.ids.len();
        let mut behind = vec![(0u64, 0u64); n];
        let mut all_bytes = 0u64;
        for &at in post_order {
            let own = self.bytes[at as usize];
            all_bytes = all_bytes.saturating_add(own);
            let mut sum = (u64::from(self.n_users[at as usize].saturating_sub(1)), own);
            for operand in unique(&self.operands[at as usize]) {
                let (users, bytes) = behind[operand as usize];
                sum = (sum.0 + users, sum.1.saturating_add(bytes));
            }
            behind[at as usize] = (sum.0.min(n as u64), sum.1.min(all_bytes));
        }
        let name = |at: u32| &self.module.instructions[self.ids[at as usize]].name;
        let is_unused =
            |&at: &u32| self.n_users[at as usize] == 0 && !self.has_control_successors[at as usize];
        let others = (0..n as u32).filter(|at| is_unused(at) && *at != self.root);
        self.visit(others.chain([self.root]), |at, next| {
            next.extend(&self.operands[at as usize]);
            next.extend(&self.control_predecessors[at as usize]);
            next.sort_unstable_by_key(|&at| (Reverse(behind[at as usize]), name(at)));
        })
    }

    fn breadth_first(&self) -> Vec<u32> {
        let n = self.ids.len();
        let mut users: Vec<Vec<u32>> = vec![Vec::new(); n];
        let mut n_awaited = vec![0u32; n];
        for (at, n_awaited) in n_awaited.iter_mut().enumerate() {
            let awaited = [&self.operands[at][..], &self.control_predecessors[at]].concat();
            for before in unique(&awaited) {
                users[before as usize].push(at as u32);
                *n_awaited += 1;
            }
        }
        let mut order: Vec<u32> = (0..n as u32).filter(|&at| n_awaited[at as usize] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for &user in &users[order[next] as usize] {
                n_awaited[user as usize] -= 1;
                if n_awaited[user as usize] == 0 {
                    order.push(user);
                }
            }
            next += 1;
        }
        order
    }

    /// Everything behind some instructions, in post-order; `children` lists what an instruction waits for, in the order in which it
    /// is visited.
    fn visit(&self, roots: impl Iterator<Item = u32>, children: impl Fn(u32, &mut Vec<u32>)) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.ids.len());
        let (mut is_open, mut is_done) = (vec![false; self.ids.len()], vec![false; self.ids.len()]);
        let (mut stack, mut next) = (Vec::new(), Vec::new());
        for root in roots {
            stack.push(root);
            while let Some(&at) = stack.last() {
                if std::mem::replace(&mut is_open[at as usize], true) {
                    stack.pop();
                    if !std::mem::replace(&mut is_done[at as usize], true) {
                        order.push(at);
                    }
                    continue;
                }
                next.clear();
                children(at, &mut next);
                stack.extend(next.iter().rev().filter(|&&child| !is_open[child as usize]));
            }
        }
        order
    }
}

/// The elements of a list, each once.
fn unique(list: &[u32]) -> impl Iterator<Item = u32> {
    let mut sorted = list.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.into_iter()
}

/// Bytes of an address in the table of a tuple.
const ADDRESS: u64 = 8;

fn defined_bytes(module: &Module, target: &Target, id: InstructionId) -> u64 {
    let (op, shape) = (&module.instructions[id].op, module.shape(id));
    let table = |n: usize| ADDRESS * n as u64;
    match (op, op.traits().role) {
        (Op::Tuple, _) => table(module.instructions[id].operands.len()),
        (_, Role::PassesOn | Role::Regroups | Role::Orders) => 0,
        _ => {
            let mut sum = 0u64;
            shape.for_each_subshape(|_, part| {
                let bytes = match part.as_tuple() {
                    Some(elements) => table(elements.len()),
                    None => target.size_of(part).0,
                };
                sum = sum.saturating_add(bytes);
            });
            sum
        }
    }
}
