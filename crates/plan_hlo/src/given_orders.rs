//! The schedules of XLA's memory schedulers, replayed on instructions instead of nodes: XLA's schedulers also count
//! instructions that only pass values on, since these have users and operands too.
//!
//! | order | visits next | source |
//! |---|---|---|
//! | depth-first | the operand with more extra users behind it, then with more bytes, then by name | XLA's `DFSMemoryScheduler` |
//! | post-order | control predecessors, then operands from left to right | XLA's `MakeInstructionPostOrder` |
//! | breadth-first | the instruction that has been ready longest | XLA's `BFScheduler` |
//! | list | the instruction that frees the most, minus what it takes, then with more users, then ready last | XLA's `ListMemoryScheduler` |
//!
//! On modules scheduled by XLA, depth-first and post-order reproduce its schedule to the instruction wherever XLA used
//! them (jaxlib 0.10.2, corpus); list gives the same peak, and differs if several instructions free equally much. XLA
//! uses the scheduler with the lowest peak for the whole module; here each computation has its own.
//!
//! Sums behind an operand count an instruction once per path to it; parameters and constants count for nothing. XLA
//! bounds these sums: extra users by the number of instructions, and bytes by those of the instructions so far, in
//! post-order. In deep programs almost all sums reach these limits, and then the latest operand in post-order is
//! visited first.
//!
//! n log n in instructions and operands.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memplan_ir::{ComputationId, InstructionId, Module, Op, Role};
use memplan_memory::Target;
use memplan_plan::Method;
use rustc_hash::FxHashMap;

use crate::buffers_as_xla::Buffers;

/// XLA's depth-first order, among the orders that come with a region.
pub const DEPTH_FIRST_AS_XLA: Method = Method::Given(0);
/// XLA's post-order, among the orders that come with a region.
pub const POST_ORDER_AS_XLA: Method = Method::Given(1);

/// XLA's breadth-first order, among the orders that come with a region.
pub const BREADTH_FIRST_AS_XLA: Method = Method::Given(2);

/// XLA's list order, among the orders that come with a region.
pub const LIST_AS_XLA: Method = Method::Given(3);

/// The orders among some methods that are read off instructions, by their numbers, for each computation; callees come
/// first. Others are empty.
pub(crate) fn given_orders(
    module: &Module,
    target: &Target,
    computations: &[ComputationId],
    methods: &[Method],
) -> Vec<[Vec<InstructionId>; 4]> {
    let is_asked = |method| methods.contains(&method);
    if !methods.iter().any(|method| matches!(method, Method::Given(_))) {
        return Vec::new();
    }
    let mut peaks: FxHashMap<ComputationId, u64> = FxHashMap::default();
    let orders = computations.iter().map(|&computation| {
        let listed = Listed::new(module, target, computation);
        let post_order = listed.post_order();
        let depth_first = is_asked(DEPTH_FIRST_AS_XLA).then(|| listed.depth_first(&post_order));
        let breadth_first = is_asked(BREADTH_FIRST_AS_XLA).then(|| listed.breadth_first());
        let list = is_asked(LIST_AS_XLA).then(|| {
            let buffers = Buffers::new(&listed, |id| {
                let called = module.instructions[id].called.iter();
                called.filter_map(|called| peaks.get(called)).copied().max().unwrap_or(0)
            });
            let list = listed.list(&buffers, &post_order);
            peaks.insert(computation, buffers.peak(&list));
            list
        });
        [depth_first, is_asked(POST_ORDER_AS_XLA).then_some(post_order), breadth_first, list]
            .map(|order| order.unwrap_or_default().into_iter().map(|at| listed.ids[at as usize]).collect())
    });
    orders.collect()
}

/// The instructions of a computation by their place in its list.
pub(crate) struct Listed<'a> {
    pub(crate) module: &'a Module,
    pub(crate) target: &'a Target,
    pub(crate) ids: &'a [InstructionId],
    pub(crate) operands: Vec<Vec<u32>>,
    control_predecessors: Vec<Vec<u32>>,
    /// How many instructions use each.
    n_users: Vec<u32>,
    has_control_successors: Vec<bool>,
    /// Bytes that each defines, tables of addresses included.
    bytes: Vec<u64>,
    pub(crate) root: u32,
}

impl<'a> Listed<'a> {
    fn new(module: &'a Module, target: &'a Target, computation: ComputationId) -> Listed<'a> {
        let body = &module.computations[computation];
        let ids = &body.instructions;
        let places: FxHashMap<InstructionId, u32> = ids.iter().copied().zip(0..).collect();
        let of = |list: &[InstructionId]| list.iter().map(|id| places[id]).collect::<Vec<u32>>();
        let instructions = || ids.iter().map(|&id| &module.instructions[id]);
        let mut listed = Listed {
            module,
            target,
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
            if self.module.instructions[self.ids[at as usize]].op.is_input() {
                continue;
            }
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

    /// For each instruction, the instructions that wait for it, and the number that it waits for.
    fn waiting(&self) -> (Vec<Vec<u32>>, Vec<u32>) {
        let n = self.ids.len();
        let mut after: Vec<Vec<u32>> = vec![Vec::new(); n];
        let mut n_awaited = vec![0u32; n];
        for (at, n_awaited) in n_awaited.iter_mut().enumerate() {
            let awaited = [&self.operands[at][..], &self.control_predecessors[at]].concat();
            for before in unique(&awaited) {
                after[before as usize].push(at as u32);
                *n_awaited += 1;
            }
        }
        (after, n_awaited)
    }

    fn list(&self, buffers: &Buffers, post_order: &[u32]) -> Vec<u32> {
        let n = self.ids.len() as u32;
        let (after, mut n_awaited) = self.waiting();
        let mut n_reads = buffers.n_reads().to_vec();
        let mut readers: Vec<Vec<u32>> = vec![Vec::new(); n_reads.len()];
        for at in 0..n {
            buffers.read(at).iter().for_each(|&buffer| readers[buffer as usize].push(at));
        }
        let mut ready = Ready::default();
        let mut order: Vec<u32> = Vec::with_capacity(n as usize);
        let is_first = |at: &u32| n_awaited[*at as usize] == 0;
        for at in post_order.iter().copied().filter(is_first) {
            ready.set(at, buffers.freed(at, &n_reads), self.n_users[at as usize]);
        }
        while let Some(at) = ready.take() {
            order.push(at);
            let mut last_reads = Vec::new();
            for &buffer in buffers.read(at) {
                n_reads[buffer as usize] -= 1;
                if n_reads[buffer as usize] == 1 {
                    last_reads.push(buffer);
                }
            }
            for &next in &after[at as usize] {
                n_awaited[next as usize] -= 1;
                if n_awaited[next as usize] == 0 {
                    ready.set(next, buffers.freed(next, &n_reads), self.n_users[next as usize]);
                }
            }
            for reader in last_reads.into_iter().flat_map(|buffer| readers[buffer as usize].iter().copied()) {
                if ready.has(reader) {
                    ready.set(reader, buffers.freed(reader, &n_reads), self.n_users[reader as usize]);
                }
            }
        }
        order
    }

    fn breadth_first(&self) -> Vec<u32> {
        let n = self.ids.len();
        let (users, mut n_awaited) = self.waiting();
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

    /// Everything behind some instructions, in post-order; `children` lists the instructions that one waits for, in the
    /// order of visits.
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

/// Instructions that could run now.
#[derive(Default)]
struct Ready {
    /// Bytes freed, users, a number that grows with time; and the instruction.
    queue: BTreeMap<(i64, u32, u32), u32>,
    keys: FxHashMap<u32, (i64, u32, u32)>,
    n_entered: u32,
}

impl Ready {
    fn has(&self, at: u32) -> bool {
        self.keys.contains_key(&at)
    }

    /// Adds an instruction, or updates the bytes that it frees.
    fn set(&mut self, at: u32, freed: i64, n_users: u32) {
        if let Some(&old) = self.keys.get(&at) {
            if (old.0, old.1) == (freed, n_users) {
                return;
            }
            self.queue.remove(&old);
        }
        let key = (freed, n_users, self.n_entered);
        self.n_entered += 1;
        self.queue.insert(key, at);
        self.keys.insert(at, key);
    }

    /// The one that frees the most.
    fn take(&mut self) -> Option<u32> {
        let (_, at) = self.queue.pop_last()?;
        self.keys.remove(&at);
        Some(at)
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
pub(crate) const ADDRESS: u64 = 8;

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
