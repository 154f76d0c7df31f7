//! From instructions to expressions of single elements.
//!
//! Elements are pulled: the element of an instruction at some indices needs elements of its operands at other indices. A
//! broadcast drops indices, a transpose permutes them, a slice shifts them, a gather looks them up; none of them moves data.

use memplan_ir::scopes::{self, Name, NotPassed, Scopes};
use memplan_ir::{ArrayShape, ElementType, InstructionId, Module, Op};
use memplan_memory::Addressing;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::dag::{ArrayId, Dag, Level, NodeId, VarId, Vars};
use crate::error::{Refusal, refusal};
use crate::operations::{Function, is_supported};
use cranelift_entity::PrimaryMap;

/// Expressions of one kernel. A fusion of slices of slices of one value can need exponentially many.
const MAX_NODES: usize = 1 << 16;

/// How many operands deep expressions may nest: about what a thread's stack of [`STACK`](crate::STACK) bytes can take.
const MAX_DEPTH: usize = 20_000;

/// One index for each dimension.
pub(crate) type Rows = SmallVec<[NodeId; 6]>;

/// An array in memory that a kernel reads or writes.
#[derive(Clone, Debug)]
pub(crate) struct Array {
    pub(crate) name: String,
    pub(crate) element_type: ElementType,
    pub(crate) place: ArrayPlace,
    addressing: Addressing,
}

impl Array {
    /// The dimensions from slowest to fastest varying.
    pub(crate) fn major_to_minor(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.addressing.dimensions.len()).collect();
        let stride = |d: usize| self.addressing.dimensions[d].iter().map(|digit| digit.stride).max();
        order.sort_by_key(|&d| std::cmp::Reverse(stride(d)));
        order
    }
}

/// Whose array it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArrayPlace {
    /// A leaf of an operand, by its number among all of those.
    Operand(usize),
    /// A leaf of the result.
    Result(usize),
    /// The data of a constant.
    Constant(InstructionId),
}

/// Where a value comes from: an array in memory, an expression of a scalar, or an instruction that computes it.
pub(crate) type Leaf = scopes::Leaf<ArrayId, NodeId>;

/// A kernel's expressions under construction.
pub(crate) struct Lower<'m> {
    pub(crate) module: &'m Module,
    pub(crate) dag: Dag,
    pub(crate) arrays: PrimaryMap<ArrayId, Array>,
    pub(crate) scopes: Scopes<'m, ArrayId, NodeId>,
    /// For each scope the variables that its parameters depend on.
    scope_vars: Vec<Vars>,
    /// Variables of the loops of folds, with their extents: folds that are not within each other share them, so that equal
    /// expressions in both are one.
    fold_vars: Vec<(i64, VarId)>,
    values: FxHashMap<(Name, Rows), SmallVec<[NodeId; 2]>>,
    depth: usize,
    /// The mark that all loads of these arrays have: they change while the kernel runs.
    pub(crate) changing: FxHashMap<ArrayId, VarId>,
}

impl<'m> Lower<'m> {
    pub(crate) fn new(module: &'m Module) -> Lower<'m> {
        let mut scopes = Scopes::new(module);
        scopes.open(Vec::new());
        Lower {
            module,
            dag: Dag::default(),
            arrays: PrimaryMap::new(),
            scopes,
            scope_vars: Vec::new(),
            fold_vars: Vec::new(),
            values: FxHashMap::default(),
            depth: 0,
            changing: FxHashMap::default(),
        }
    }

    /// Declares an array.
    pub(crate) fn array(
        &mut self,
        id: InstructionId,
        name: String,
        shape: &ArrayShape,
        place: ArrayPlace,
    ) -> Result<ArrayId, Refusal> {
        let t = shape.element_type;
        if !is_supported(t) {
            return Err(refusal(self.module, id, format!("numbers of {t} are not supported")));
        }
        if shape.is_dynamic() {
            return Err(refusal(self.module, id, "its extents are dynamic"));
        }
        let addressing = Addressing::new(shape).filter(|a| a.packed_bits.is_none());
        let addressing =
            addressing.ok_or_else(|| refusal(self.module, id, "its layout packs or combines elements"))?;
        Ok(self.arrays.push(Array { name, element_type: t, place, addressing }))
    }

    /// The offset of an element of an array, in elements.
    pub(crate) fn offset(&mut self, array: ArrayId, rows: &[NodeId]) -> NodeId {
        let Array { addressing, element_type, .. } = &self.arrays[array];
        let width = i64::from(element_type.byte_width());
        let mut terms: SmallVec<[(NodeId, i64); 6]> = SmallVec::new();
        for (digits, &row) in addressing.dimensions.iter().zip(rows) {
            for digit in digits {
                let quotient = self.dag.quotient(row, digit.divisor);
                let node = match digit.modulus {
                    0 => quotient,
                    modulus => self.dag.remainder(quotient, modulus),
                };
                terms.push((node, digit.stride / width));
            }
        }
        self.dag.affine(&terms, 0)
    }

    /// An element of an array.
    pub(crate) fn load(&mut self, array: ArrayId, rows: &[NodeId]) -> NodeId {
        let offset = self.offset(array, rows);
        self.load_at(array, offset)
    }

    /// The element of an array at an offset.
    pub(crate) fn load_at(&mut self, array: ArrayId, offset: NodeId) -> NodeId {
        let mark = self.changing.get(&array).copied();
        self.dag.load(array, self.arrays[array].element_type, offset, mark)
    }

    /// The expression of an element of a value.
    pub(crate) fn value(&mut self, name: Name, rows: &[NodeId]) -> Result<NodeId, Refusal> {
        let name = match self.resolve(name)? {
            Leaf::Element(node) => return Ok(node),
            Leaf::Array(array) => return Ok(self.load(array, rows)),
            Leaf::Value(name) => name,
        };
        // The results of a reduction are computed together; others have indices of their own.
        let is_joint =
            matches!(self.module.instructions[name.instruction].op, Op::Reduce { .. } | Op::ReduceWindow(_));
        let (whole, at) = if is_joint { (Name { leaf: 0, ..name }, name.leaf) } else { (name, 0) };
        let key = (whole, Rows::from_slice(rows));
        if let Some(nodes) = self.values.get(&key) {
            return Ok(nodes[at]);
        }
        self.depth += 1;
        if self.depth > MAX_DEPTH || self.dag.nodes.len() > MAX_NODES {
            return Err(refusal(self.module, name.instruction, "its fusion is too complex"));
        }
        let nodes = self.pull(whole, rows)?;
        self.depth -= 1;
        for &node in &nodes {
            let called = &self.module.instructions[name.instruction].name;
            self.dag.names.entry(node).or_insert_with(|| called.clone());
        }
        let node = nodes[at];
        self.values.insert(key, nodes);
        Ok(node)
    }

    /// Applies functions one after the other.
    pub(crate) fn chain(&mut self, functions: Vec<Function>, inputs: &[NodeId]) -> NodeId {
        let mut inputs: SmallVec<[NodeId; 3]> = inputs.into();
        for function in functions {
            inputs = SmallVec::from_slice(&[self.dag.apply(function, &inputs)]);
        }
        inputs[0]
    }

    /// Where a leaf is stored or computed.
    pub(crate) fn resolve(&mut self, name: Name) -> Result<Leaf, Refusal> {
        self.scopes
            .resolve(name)
            .map_err(|NotPassed(id)| refusal(self.module, id, "nothing is passed for it"))
    }

    /// The variables that the parameters of a scope depend on; the parameters are of scopes that were opened before.
    fn scope_vars(&mut self, scope: usize) -> &Vars {
        for scope in self.scope_vars.len()..=scope {
            let mut vars = Vars::new();
            for leaf in self.scopes.parameters(scope) {
                match leaf {
                    Leaf::Element(node) => vars.extend_from_slice(self.dag.vars(node)),
                    Leaf::Value(name) => vars.extend_from_slice(&self.scope_vars[name.scope]),
                    Leaf::Array(_) => {}
                }
            }
            vars.sort_unstable();
            vars.dedup();
            self.scope_vars.push(vars);
        }
        &self.scope_vars[scope]
    }

    /// Opens a loop of a fold whose elements depend on some indices and on the variables of a scope.
    pub(crate) fn open_fold_loop(
        &mut self,
        extent: i64,
        levels: &mut Vec<Level>,
        scope: usize,
        rows: &[NodeId],
    ) -> NodeId {
        if extent == 1 {
            return self.dag.integer(0);
        }
        let of_scope = self.scope_vars(scope).clone();
        let is_taken = |lower: &Self, var: VarId| {
            levels.iter().any(|level| level.var() == var)
                || of_scope.contains(&var)
                || rows.iter().any(|&row| lower.dag.vars(row).contains(&var))
        };
        let free = self.fold_vars.iter().find(|&&(e, var)| e == extent && !is_taken(self, var));
        let var = match free {
            Some(&(_, var)) => var,
            None => {
                let var = self.dag.var(extent);
                self.fold_vars.push((extent, var));
                var
            }
        };
        levels.push(Level::Loop { var, extent });
        self.dag.loop_index(var)
    }

    /// The results of a computation of scalars.
    pub(crate) fn lambda(
        &mut self,
        of: InstructionId,
        called: usize,
        arguments: &[NodeId],
    ) -> Result<SmallVec<[NodeId; 2]>, Refusal> {
        let module = self.module;
        let root = module.computations[module.instructions[of].called[called]].root;
        let scope = self.scopes.open(arguments.iter().map(|&n| vec![Leaf::Element(n)]).collect());
        (0..module.shape(root).leaf_count())
            .map(|leaf| self.value(Name { scope, instruction: root, leaf }, &[]))
            .collect()
    }

    /// The shape of an instruction that must be an array.
    pub(crate) fn shape(&self, id: InstructionId) -> Result<&'m ArrayShape, Refusal> {
        self.module.shape(id).as_array().ok_or_else(|| refusal(self.module, id, "it is not an array"))
    }
}
