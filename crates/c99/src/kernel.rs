//! The loops of one instruction: nests that write its results.
//!
//! Results of equal extents are written by one nest, so each may be written over an operand that is read at the same place.
//! Updates and scatters write into an array that is there before, or is copied first. Nests that read an operand come
//! before those that overwrite it.

use memplan_ir::scopes::Name;
use memplan_ir::{ArrayShape, InstructionId, Module, Op};
use smallvec::SmallVec;

use crate::blocks::{ROWS, in_blocks};
use crate::dag::{ArrayId, Dag, Level, Node, NodeId, VarId};
use crate::error::{Refusal, refusal};
use crate::lower::{Array, ArrayPlace, Leaf, Lower, Rows};
use crate::tiling::{Limits, Tiling};
use crate::updates::is_top_k;
use cranelift_entity::PrimaryMap;

/// What is written at each step of a nest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Store {
    pub(crate) array: ArrayId,
    /// In elements.
    pub(crate) offset: NodeId,
    pub(crate) value: NodeId,
}

/// Loops, and what they write.
#[derive(Clone)]
pub(crate) struct Nest {
    pub(crate) levels: Vec<Level>,
    pub(crate) stores: Vec<Store>,
    /// How it uses the registers and the stack.
    pub(crate) tiling: Tiling,
}

/// Results of equal extents.
type Together = (Vec<i64>, Vec<(ArrayId, Name)>);

/// Nests that write some results, in order.
pub(crate) type Group = Vec<Nest>;

/// The loops of an instruction.
pub(crate) struct Kernel {
    pub(crate) dag: Dag,
    pub(crate) arrays: PrimaryMap<ArrayId, Array>,
    pub(crate) nests: Vec<Nest>,
    /// Whether it only brings an array into another layout.
    pub(crate) is_relayout: bool,
}

/// Bytes of an allocation: number, begin, end.
pub(crate) type Bytes = (u32, u64, u64);

/// Where a kernel's operand is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Given {
    /// In memory.
    Bytes(Bytes),
    /// It is this constant, of the code.
    Constant(InstructionId),
    /// It has no bytes.
    Nothing,
}

/// The leaves of an instruction's operands and result.
pub(crate) struct Leaves {
    pub(crate) operands: Vec<Given>,
    pub(crate) results: Vec<Option<Bytes>>,
}

impl Kernel {
    /// The loops of an instruction, of which `n_written` leaves of the result are written.
    pub(crate) fn new(
        module: &Module,
        id: InstructionId,
        leaves: &Leaves,
        n_written: usize,
        limits: Limits,
    ) -> Result<Kernel, Refusal> {
        let mut builder = Builder { lower: Lower::new(module), leaves, id, limits, results: Vec::new() };
        builder.declare(n_written)?;
        let groups = builder.groups()?;
        let mut nests = builder.in_order(groups)?;
        for nest in &mut nests {
            let dag = &mut builder.lower.dag;
            nest.tiling = Tiling::new(dag, nest, limits);
            if let Some(lanes) = nest.tiling.lanes
                && let Some(mut block) = in_blocks(dag, nest, lanes)
            {
                block.tiling = Tiling::new(dag, &block, limits);
                if block.tiling.lanes == nest.tiling.lanes {
                    *nest = block;
                }
            }
        }
        Ok(Kernel { dag: builder.lower.dag, arrays: builder.lower.arrays, nests, is_relayout: false })
    }
}

/// The nests of an instruction under construction.
pub(crate) struct Builder<'m, 'l> {
    pub(crate) lower: Lower<'m>,
    leaves: &'l Leaves,
    pub(crate) id: InstructionId,
    limits: Limits,
    results: Vec<ArrayId>,
}

impl Builder<'_, '_> {
    /// Declares the arrays of operands and results.
    fn declare(&mut self, n_written: usize) -> Result<(), Refusal> {
        let module = self.lower.module;
        let mut number = 0;
        for &operand in &module.instructions[self.id].operands {
            let parts = module.shape(operand).leaves();
            let n = parts.len();
            for (leaf, (index, shape)) in parts.into_iter().enumerate() {
                let name = Name { scope: 0, instruction: operand, leaf };
                match (self.leaves.operands[number], shape.as_array()) {
                    (Given::Bytes(_), Some(shape)) => {
                        let mut called = module.instructions[operand].name.to_string();
                        if n > 1 {
                            called.push_str(&index.0.iter().map(|i| format!("_{i}")).collect::<String>());
                        }
                        let array = self.lower.array(operand, called, shape, ArrayPlace::Operand(number))?;
                        self.lower.scopes.store(name, Leaf::Array(array));
                    }
                    (Given::Constant(constant), _) if constant != operand => {
                        let constant = Name { scope: 0, instruction: constant, leaf: 0 };
                        self.lower.scopes.store(name, Leaf::Value(constant));
                    }
                    _ => {}
                }
                number += 1;
            }
        }
        let parts = module.shape(self.id).leaves();
        for (leaf, (index, shape)) in parts.into_iter().enumerate().take(n_written) {
            let mut called = module.instructions[self.id].name.to_string();
            if n_written > 1 {
                called.push_str(&index.0.iter().map(|i| format!("_{i}")).collect::<String>());
            }
            let shape = shape.as_array().ok_or_else(|| refusal(module, self.id, "it makes no array"))?;
            let array = self.lower.array(self.id, called, shape, ArrayPlace::Result(leaf))?;
            self.results.push(array);
        }
        Ok(())
    }

    /// The nests of all results.
    fn groups(&mut self) -> Result<Vec<Group>, Refusal> {
        let module = self.lower.module;
        let parts = module.shape(self.id).leaves();
        let mut groups: Vec<Group> = Vec::new();
        let mut loops: Vec<Together> = Vec::new();
        let mut scatters: Vec<Name> = Vec::new();
        for (k, (_, part)) in parts.iter().enumerate().take(self.results.len()) {
            let shape = part.as_array().expect("declared results are arrays");
            if shape.element_count() == Some(0) {
                continue;
            }
            let (array, root) = self.root(k)?;
            let op = match self.lower.resolve(root)? {
                Leaf::Value(name) => Some((name, &module.instructions[name.instruction].op)),
                _ => None,
            };
            match op {
                Some((name, Op::DynamicUpdateSlice)) => groups.push(self.update(name, array)?),
                Some((name, Op::SelectAndScatter(_))) => groups.push(self.select_and_scatter(name, array)?),
                Some((name, op)) if matches!(op, Op::Scatter(_) | Op::Sort { .. }) || is_top_k(op) => {
                    if !scatters.iter().any(|s| (s.scope, s.instruction) == (name.scope, name.instruction)) {
                        scatters.push(name);
                    }
                }
                _ => {
                    let extents = shape.dimensions.to_vec();
                    match loops.iter_mut().find(|(known, _)| *known == extents) {
                        Some((_, group)) => group.push((array, root)),
                        None => loops.push((extents, vec![(array, root)])),
                    }
                }
            }
        }
        for name in scatters {
            let arrays = self.arrays_of(name)?;
            groups.push(match module.instructions[name.instruction].op {
                Op::Scatter(_) => self.scatter(name, &arrays)?,
                Op::Sort { .. } => self.sort(name, &arrays)?,
                ref op => self.top_k(name, &arrays, !matches!(op, Op::TopK { largest: false, .. }))?,
            });
        }
        for (extents, roots) in loops {
            groups.push(self.elementwise_by_borders(&extents, &roots)?);
        }
        Ok(groups)
    }

    /// A result's array and value. Bitcasts of a value that is updated in place are other names of the array.
    fn root(&mut self, k: usize) -> Result<(ArrayId, Name), Refusal> {
        let module = self.lower.module;
        let (mut array, mut root) = (self.results[k], Name { scope: 0, instruction: self.id, leaf: k });
        if let Op::CopyStart { .. } = module.instructions[self.id].op {
            root = Name { scope: 0, instruction: module.instructions[self.id].operands[0], leaf: k };
        }
        while let Leaf::Value(name) = self.lower.resolve(root)?
            && module.instructions[name.instruction].op == Op::Bitcast
        {
            let operand =
                Name { instruction: module.instructions[name.instruction].operands[0], leaf: 0, ..name };
            let Leaf::Value(of) = self.lower.resolve(operand)? else { break };
            let is_update = |op: &Op| matches!(op, Op::DynamicUpdateSlice | Op::Scatter(_) | Op::Bitcast);
            if !is_update(&module.instructions[of.instruction].op) {
                break;
            }
            let shape = self.lower.shape(operand.instruction)?;
            let called = self.lower.arrays[array].name.clone();
            array = self.lower.array(self.id, called, shape, ArrayPlace::Result(k))?;
            root = operand;
        }
        Ok((array, root))
    }

    /// The arrays of all leaves of an instruction whose leaves are all results.
    fn arrays_of(&mut self, of: Name) -> Result<Vec<ArrayId>, Refusal> {
        let module = self.lower.module;
        let n = module.shape(of.instruction).leaf_count();
        let mut found = vec![None; n];
        for k in 0..self.results.len() {
            let (array, root) = self.root(k)?;
            if let Leaf::Value(name) = self.lower.resolve(root)?
                && (name.scope, name.instruction) == (of.scope, of.instruction)
            {
                if found[name.leaf].is_some() {
                    return Err(refusal(module, of.instruction, "it is two results of its fusion"));
                }
                found[name.leaf] = Some(array);
            }
        }
        let all: Option<Vec<ArrayId>> = found.into_iter().collect();
        all.ok_or_else(|| refusal(module, of.instruction, "not all of it are results of its fusion"))
    }

    /// One nest for results of equal extents.
    pub(crate) fn elementwise(
        &mut self,
        extents: &[i64],
        roots: &[(ArrayId, Name)],
    ) -> Result<Nest, Refusal> {
        let n: i64 = extents.iter().product();
        // One loop over all elements, if no index needs a division there.
        if extents.iter().filter(|&&e| e > 1).count() > 1 {
            let mut levels = Vec::new();
            let position = self.lower.open_loop(n, &mut levels);
            let rows = self.lower.digits(position, extents);
            let nest = self.stores(levels, &rows, roots)?;
            let divides = |&node: &NodeId| {
                matches!(self.lower.dag.nodes[node], Node::Quotient(..) | Node::Remainder(..))
            };
            if !self.lower.dag.reachable(nest.inputs()).iter().any(divides) {
                return Ok(nest);
            }
        }
        self.nest_over(&whole(extents), roots)
    }

    /// As [`Builder::elementwise`]; where windows reach beyond borders, what they reach from is a nest of its own, and the
    /// others need not ask. On machines with vector registers, since it makes code longer.
    fn elementwise_by_borders(
        &mut self,
        extents: &[i64],
        roots: &[(ArrayId, Name)],
    ) -> Result<Group, Refusal> {
        let nest = self.elementwise(extents, roots)?;
        // The innermost loop is for lanes, and the one around it for blocks of rows.
        let around = self.lower.arrays[roots[0].0].major_to_minor().into_iter().filter(|&d| extents[d] > 1);
        let inner = around.rev().nth(1).filter(|_| self.limits.has_vectors());
        let at = nest.levels.len().checked_sub(2);
        let (Some(d), Some(Level::Loop { var, extent })) = (inner, at.map(|at| nest.levels[at])) else {
            return Ok(vec![nest]);
        };
        // A nest that writes what another reads could not be followed by it.
        if extent != extents[d] || self.meets(&nest, &nest, false) {
            return Ok(vec![nest]);
        }
        let Some((from, to)) = within_borders(&self.lower.dag, &nest, var, extent) else {
            return Ok(vec![nest]);
        };
        let mut nests = Vec::new();
        for part in [(0, from), (from, to), (to, extent)].into_iter().filter(|part| part.0 < part.1) {
            let mut ranges = whole(extents);
            ranges[d] = part;
            nests.push(self.nest_over(&ranges, roots)?);
        }
        Ok(nests)
    }

    /// One nest for the elements of results in some ranges of indices.
    fn nest_over(&mut self, ranges: &[(i64, i64)], roots: &[(ArrayId, Name)]) -> Result<Nest, Refusal> {
        let (levels, rows) = self.loops_over(ranges, roots[0].0);
        let mut nest = self.stores(levels, &rows, roots)?;
        self.put_folds_outside(&mut nest);
        Ok(nest)
    }

    /// Puts those loops outside on whose indices more folds depend, so that the others need not repeat them.
    fn put_folds_outside(&self, nest: &mut Nest) {
        let dag = &self.lower.dag;
        let nodes = dag.reachable(nest.inputs());
        let folds: Vec<NodeId> =
            nodes.into_iter().filter(|&node| matches!(dag.nodes[node], Node::Folded(..))).collect();
        let of = |level: &Level| folds.iter().filter(|&&fold| dag.vars(fold).contains(&level.var())).count();
        nest.levels.sort_by_key(|level| std::cmp::Reverse(of(level)));
    }

    /// Loops over ranges of indices in the order of an array in memory.
    pub(crate) fn loops_over(&mut self, ranges: &[(i64, i64)], array: ArrayId) -> (Vec<Level>, Rows) {
        let zero = self.lower.dag.integer(0);
        let mut rows: Rows = SmallVec::from_elem(zero, ranges.len());
        let mut levels = Vec::new();
        for d in self.lower.arrays[array].major_to_minor() {
            let (from, to) = ranges[d];
            let index = self.lower.open_loop(to - from, &mut levels);
            rows[d] = self.lower.dag.affine(&[(index, 1)], from);
        }
        (levels, rows)
    }

    fn stores(
        &mut self,
        levels: Vec<Level>,
        rows: &[NodeId],
        roots: &[(ArrayId, Name)],
    ) -> Result<Nest, Refusal> {
        let mut stores = Vec::new();
        for &(array, root) in roots {
            let value = self.lower.value(root, rows)?;
            stores.push(Store { array, offset: self.lower.offset(array, rows), value });
        }
        Ok(Nest::new(levels, stores))
    }

    /// Nests that make an array equal to a value, unless it is the value's.
    pub(crate) fn initial(&mut self, value: Name, array: ArrayId) -> Result<Group, Refusal> {
        let module = self.lower.module;
        if self.is_in(value, array)? {
            return Ok(Vec::new());
        }
        if let Leaf::Value(name) = self.lower.resolve(value)? {
            match module.instructions[name.instruction].op {
                Op::DynamicUpdateSlice => return self.update(name, array),
                // The array starts as storage without contents.
                ref op if op.is_allocation() => return Ok(Vec::new()),
                _ => {}
            }
        }
        let extents = self.lower.shape(value.instruction)?.dimensions.to_vec();
        Ok(vec![self.elementwise(&extents, &[(array, value)])?])
    }

    /// Whether a value is an operand that has the bytes of an array.
    fn is_in(&mut self, value: Name, array: ArrayId) -> Result<bool, Refusal> {
        let module = self.lower.module;
        let mut at = value;
        loop {
            match self.lower.resolve(at)? {
                Leaf::Array(operand) => {
                    let (a, b) = (self.bytes(operand), self.bytes(array));
                    return Ok(a.is_some() && a == b);
                }
                Leaf::Value(name) if module.instructions[name.instruction].op == Op::Bitcast => {
                    at = Name {
                        instruction: module.instructions[name.instruction].operands[0],
                        leaf: 0,
                        ..name
                    };
                }
                _ => return Ok(false),
            }
        }
    }

    pub(crate) fn bytes(&self, array: ArrayId) -> Option<Bytes> {
        match self.lower.arrays[array].place {
            ArrayPlace::Operand(k) => match self.leaves.operands[k] {
                Given::Bytes(bytes) => Some(bytes),
                _ => None,
            },
            ArrayPlace::Result(k) => self.leaves.results[k],
            ArrayPlace::Constant(_) => None,
        }
    }
}

/// All indices below some extents.
pub(crate) fn whole(extents: &[i64]) -> Vec<(i64, i64)> {
    extents.iter().map(|&extent| (0, extent)).collect()
}

/// The steps of a loop in which all windows are within the borders that its variable moves them over, if these are most of
/// the steps, and not all. A few are left out if the others are then blocks of rows.
fn within_borders(dag: &Dag, nest: &Nest, var: VarId, extent: i64) -> Option<(i64, i64)> {
    let nodes = dag.reachable(nest.inputs());
    let (mut from, mut to) = (0, extent);
    for &node in &nodes {
        let Node::Folded(fold, _) = dag.nodes[node] else { continue };
        for level in dag.folds[fold].loops() {
            let Level::If { condition, .. } = *level else { continue };
            if !dag.vars(condition).contains(&var) {
                continue;
            }
            let Node::InRange { value, low, high } = dag.nodes[condition] else { return None };
            let Node::Affine { terms, base } = &dag.nodes[value] else { return None };
            let (mut step, mut least, mut most) = (0, *base, *base);
            for &(term, coefficient) in terms {
                let (a, b) = dag.range(term);
                match dag.nodes[term] {
                    Node::Var(v) if v == var => step = coefficient,
                    _ if dag.vars(term).contains(&var) => return None,
                    _ => {
                        let (a, b) = (a.saturating_mul(coefficient), b.saturating_mul(coefficient));
                        (least, most) = (least.saturating_add(a.min(b)), most.saturating_add(a.max(b)));
                    }
                }
            }
            if step <= 0 {
                return None;
            }
            from = from.max((low - least + step - 1).div_euclid(step));
            to = to.min((high - 1 - most).div_euclid(step) + 1);
        }
    }
    let n = to - from;
    let has_blocks = (ROWS..=2 * ROWS).any(|rows| n % rows == 0);
    to -= if has_blocks { 0 } else { n.rem_euclid(ROWS) };
    ((from, to) != (0, extent) && 2 * (to - from) > extent).then_some((from, to))
}

impl Nest {
    pub(crate) fn new(levels: Vec<Level>, stores: Vec<Store>) -> Nest {
        Nest { levels, stores, tiling: Tiling::default() }
    }

    /// The expressions that a nest computes.
    pub(crate) fn inputs(&self) -> Vec<NodeId> {
        let of_levels = self.levels.iter().filter_map(|level| match *level {
            Level::If { condition, .. } | Level::Unless { condition, .. } => Some(condition),
            Level::Down { from, .. } => Some(from),
            _ => None,
        });
        self.stores.iter().flat_map(|s| [s.offset, s.value]).chain(of_levels).collect()
    }
}

impl Kernel {
    /// A copy of an array in another layout, of operand 0 to result 0.
    pub(crate) fn relayout(
        module: &Module,
        id: InstructionId,
        from: &ArrayShape,
        to: &ArrayShape,
    ) -> Result<Kernel, Refusal> {
        let mut lower = Lower::new(module);
        let source = lower.array(id, "from".to_string(), from, ArrayPlace::Operand(0))?;
        let target = lower.array(id, "to".to_string(), to, ArrayPlace::Result(0))?;
        let leaves = Leaves { operands: vec![Given::Nothing], results: vec![None] };
        let limits = Limits::none();
        let mut builder = Builder { lower, leaves: &leaves, id, limits, results: vec![target] };
        let (levels, rows) = builder.loops_over(&whole(&to.dimensions), target);
        let value = builder.lower.load(source, &rows);
        let offset = builder.lower.offset(target, &rows);
        let nest = Nest::new(levels, vec![Store { array: target, offset, value }]);
        Ok(Kernel {
            dag: builder.lower.dag,
            arrays: builder.lower.arrays,
            nests: vec![nest],
            is_relayout: true,
        })
    }
}
