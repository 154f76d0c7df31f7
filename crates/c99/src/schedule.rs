//! Puts expressions into loops, and writes them as C.
//!
//! At each level of loops, the expressions that need its variable and no deeper one become variables of C, in the order in
//! which they were made, operands first. The [tiling](crate::tiling) says what is kept in buffers, and whether neighboring
//! results are computed together.

use std::fmt::Write;

use cranelift_entity::PrimaryMap;
use memplan_ir::ElementType;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::dag::{Accumulated, ArrayId, Dag, FoldId, Level, Node, NodeId, Type, VarId};
use crate::expression::{Expression, literal};
use crate::inline::inline;
use crate::kernel::{Kernel, Nest, Store};
use crate::lower::Array;
use crate::names::Identifiers;
use crate::operations::{Form, Function, computed};
use crate::runtime::{Runtime, memory_type, value_type};
use crate::tiling::{Buffer, Tiling};

/// The statements of a kernel.
pub(crate) struct Body {
    pub(crate) text: String,
    /// Arrays that it reads or writes, in order, with their names in the text.
    pub(crate) arrays: Vec<(ArrayId, String)>,
    /// Bytes of its own arrays, which are on the stack.
    pub(crate) stack: u64,
}

/// Writes the nests of a kernel.
pub(crate) fn body(kernel: &Kernel, runtime: &mut Runtime) -> Body {
    let mut identifiers = Identifiers::default();
    let mut used: FxHashSet<ArrayId> = FxHashSet::default();
    for nest in &kernel.nests {
        used.extend(nest.stores.iter().map(|s| s.array));
        used.extend(kernel.dag.reachable(nest.inputs()).iter().filter_map(|&n| match kernel.dag.nodes[n] {
            Node::Load { array, .. } => Some(array),
            _ => None,
        }));
    }
    let used = kernel.arrays.iter().filter(|(id, _)| used.contains(id));
    let arrays: Vec<(ArrayId, String)> =
        used.map(|(id, array)| (id, identifiers.unique(&array.name))).collect();
    let (mut text, mut stack) = (String::new(), 0);
    for nest in &kernel.nests {
        let nodes = kernel.dag.reachable(nest.inputs());
        // Names of one nest are in scope in those after it.
        let mut writer = Writer {
            dag: &kernel.dag,
            arrays: &kernel.arrays,
            tiling: &nest.tiling,
            array_names: arrays.iter().cloned().collect(),
            runtime,
            identifiers,
            known: FxHashMap::default(),
            defined: Vec::new(),
            vars: FxHashMap::default(),
            inline: inline(&kernel.dag, &nodes, nest),
            filled: None,
            text: String::new(),
            stack: 0,
            indent: 1,
        };
        writer.nest(nest, &needed(&kernel.dag, nest));
        text.push_str(&writer.text);
        stack += writer.stack;
        identifiers = writer.identifiers;
    }
    Body { text, arrays, stack }
}

/// The expressions that a nest computes outside of the loops that fill its buffers, operands first.
fn needed(dag: &Dag, nest: &Nest) -> Vec<NodeId> {
    // The variables of the loops around: what depends on them is computed in there.
    let mut around: Vec<Vec<VarId>> = vec![Vec::new()];
    let mut seen: FxHashSet<(NodeId, usize)> = FxHashSet::default();
    let mut needed: FxHashSet<NodeId> = FxHashSet::default();
    let mut open: Vec<(NodeId, usize)> = nest.inputs().into_iter().map(|node| (node, 0)).collect();
    while let Some((node, mut place)) = open.pop() {
        if !seen.insert((node, place)) {
            continue;
        }
        if !dag.vars(node).iter().any(|var| around[place].contains(var)) {
            needed.insert(node);
        }
        if let Some(buffer) = nest.tiling.buffers.get(&node) {
            needed.insert(node);
            let vars = buffer.levels.iter().map(|level| level.var());
            around.push(around[place].iter().copied().chain(vars).collect());
            place = around.len() - 1;
        }
        open.extend(dag.inputs(node).into_iter().map(|input| (input, place)));
    }
    let mut needed: Vec<NodeId> = needed.into_iter().collect();
    needed.sort_unstable();
    needed
}

/// What C calls an expression that it has computed.
#[derive(Clone)]
pub(crate) enum Known {
    Variable(Expression),
    /// An element of a buffer.
    Element(String, NodeId),
}

/// The statements of a nest under construction.
pub(crate) struct Writer<'k> {
    pub(crate) dag: &'k Dag,
    arrays: &'k PrimaryMap<ArrayId, Array>,
    tiling: &'k Tiling,
    array_names: FxHashMap<ArrayId, String>,
    runtime: &'k mut Runtime,
    pub(crate) identifiers: Identifiers,
    pub(crate) known: FxHashMap<NodeId, Known>,
    /// Known expressions in the order in which they became so: those of a loop are forgotten after it.
    defined: Vec<NodeId>,
    pub(crate) vars: FxHashMap<VarId, Expression>,
    /// Expressions that are written where they are used.
    inline: FxHashSet<NodeId>,
    /// The expression whose buffer is being filled.
    filled: Option<NodeId>,
    text: String,
    /// Bytes of arrays that it has declared.
    stack: u64,
    indent: usize,
}

/// What is in scope before some loops.
pub(crate) struct Scope {
    identifiers: Identifiers,
    n_defined: usize,
}

impl Writer<'_> {
    pub(crate) fn line(&mut self, line: &str) {
        writeln!(self.text, "{:1$}{line}", "", self.indent * 4).expect("strings can be written");
    }

    pub(crate) fn open(&mut self, line: &str) {
        self.line(&format!("{line} {{"));
        self.indent += 1;
    }

    pub(crate) fn close(&mut self) {
        self.indent -= 1;
        self.line("}");
    }

    pub(crate) fn scope(&self) -> Scope {
        Scope { identifiers: self.identifiers.clone(), n_defined: self.defined.len() }
    }

    /// Forgets what was named since. Names are free again if a block of C has ended.
    pub(crate) fn leave(&mut self, scope: Scope, is_block: bool) {
        if is_block {
            self.identifiers = scope.identifiers;
        }
        for node in self.defined.split_off(scope.n_defined) {
            self.known.remove(&node);
        }
    }

    fn know(&mut self, node: NodeId, known: Known) {
        self.known.insert(node, known);
        self.defined.push(node);
    }

    /// A name for an expression, and its type.
    fn named(&mut self, node: NodeId) -> (String, String) {
        let hint = if self.dag.of(node) == Type::Index { "at" } else { "x" };
        let name = self.dag.names.get(&node).map_or(hint, |name| name);
        (c_type(self.dag.of(node)), self.identifiers.unique(name))
    }

    fn nest(&mut self, nest: &Nest, nodes: &[NodeId]) {
        let levels = (nest.levels.as_slice(), self.tiling.lanes);
        self.loops(levels, &[], nodes, &nest.inputs(), true, &mut |writer| writer.stores(&nest.stores));
    }

    /// Loops, of which the innermost may be in steps of lanes, around what `inside` writes and what it needs of `nodes`.
    fn loops(
        &mut self,
        (levels, lanes): (&[Level], Option<i64>),
        path: &[VarId],
        nodes: &[NodeId],
        needed: &[NodeId],
        is_nest: bool,
        inside: &mut dyn FnMut(&mut Self),
    ) {
        match (lanes, levels.split_last()) {
            (Some(lanes), Some((&Level::Loop { var, extent }, outer))) => {
                let around: Vec<VarId> = path.iter().copied().chain(outer.iter().map(|l| l.var())).collect();
                self.level(outer, path, nodes, is_nest, &mut |writer| {
                    writer.lanes(nodes, needed, &around, (var, extent, lanes), inside);
                });
            }
            _ => self.level(levels, path, nodes, is_nest, inside),
        }
    }

    pub(crate) fn stores(&mut self, stores: &[Store]) {
        for store in stores {
            let name = self.array_names[&store.array].clone();
            let t = self.arrays[store.array].element_type;
            let offset = self.expression(store.offset).text;
            let value = self.expression(store.value);
            let value = match t {
                ElementType::Pred => format!("(u8){}", value.operand()),
                ElementType::Bf16 | ElementType::F16 => {
                    format!("{}({})", self.runtime.name("store", t, None), value.text)
                }
                // GCC takes the same type in memory for another, to which a cast number is converted.
                t if t.is_unsigned() && self.is_cast(store.value) => value.cast(&memory_type(t)).text,
                _ => value.text,
            };
            self.line(&format!("{name}[{offset}] = {value};"));
        }
    }

    fn is_cast(&self, node: NodeId) -> bool {
        matches!(self.dag.nodes[node], Node::Apply(Function { form: Form::Cast, .. }, _))
    }

    /// What is to be computed for some expressions, operands first.
    pub(crate) fn live(&self, roots: impl IntoIterator<Item = NodeId>) -> Vec<NodeId> {
        let mut live: FxHashSet<NodeId> = FxHashSet::default();
        let mut open: Vec<NodeId> = roots.into_iter().collect();
        while let Some(node) = open.pop() {
            if !self.known.contains_key(&node) && live.insert(node) {
                open.extend(self.dag.inputs(node));
            }
        }
        let mut live: Vec<NodeId> = live.into_iter().collect();
        live.sort_unstable();
        live
    }

    /// Opens levels of loops, writes what belongs into each, and in the innermost what `inside` writes. Around the levels of
    /// a fold, what they do not change was written before.
    pub(crate) fn level(
        &mut self,
        levels: &[Level],
        path: &[VarId],
        nodes: &[NodeId],
        is_nest: bool,
        inside: &mut dyn FnMut(&mut Self),
    ) {
        let mut path = path.to_vec();
        let all: FxHashSet<VarId> = path.iter().copied().chain(levels.iter().map(|l| l.var())).collect();
        let mut homes: Vec<Vec<NodeId>> = vec![Vec::new(); levels.len() + 1];
        for &node in nodes {
            let vars = self.dag.vars(node);
            let depth = match self.tiling.buffers.get(&node) {
                _ if self.known.contains_key(&node) => continue,
                Some(buffer) if is_nest => buffer.depth,
                _ if vars.iter().any(|v| !all.contains(v)) => continue,
                _ => levels.iter().rposition(|level| vars.contains(&level.var())).map_or(0, |at| at + 1),
            };
            if depth > 0 || is_nest {
                homes[depth].push(node);
            }
        }
        let mut opened = 0;
        let mut scope = None;
        for (depth, home) in homes.iter().enumerate() {
            home.iter().for_each(|&node| self.define(node, &path));
            // What is outside all of the loops stays.
            scope.get_or_insert_with(|| self.scope());
            let Some(level) = levels.get(depth) else { break };
            path.push(level.var());
            match *level {
                Level::Loop { var, extent } => {
                    let name = self.identifiers.counter(path.len());
                    self.open(&format!("for (ptrdiff_t {name} = 0; {name} < {extent}; ++{name})"));
                    self.vars.insert(var, Expression::atom(name));
                    opened += 1;
                }
                Level::Down { var, from } => {
                    let name = self.identifiers.counter(path.len());
                    let from = self.expression(from).text;
                    self.open(&format!("for (ptrdiff_t {name} = {from}; {name} > 0; --{name})"));
                    self.vars.insert(var, Expression::atom(name));
                    opened += 1;
                }
                Level::If { condition, .. } => {
                    let condition = self.expression(condition).text;
                    self.open(&format!("if ({condition})"));
                    opened += 1;
                }
                Level::Unless { condition, .. } => {
                    let condition = self.expression(condition).operand();
                    self.open(&format!("if (!{condition})"));
                    self.line("break;");
                    self.close();
                }
                Level::Here { .. } => {}
            }
        }
        inside(self);
        (0..opened).for_each(|_| self.close());
        self.leave(scope.expect("the first level was visited"), opened > 0);
    }

    /// Makes an expression a variable, a buffer or the accumulator of a fold, if it is one.
    pub(crate) fn define(&mut self, node: NodeId, path: &[VarId]) {
        if self.inline.contains(&node) || self.known.contains_key(&node) {
            return;
        }
        let tiling = self.tiling;
        if let Some(buffer) = tiling.buffers.get(&node).filter(|_| self.filled != Some(node)) {
            return self.fill(node, buffer, path);
        }
        if let Node::Folded(fold, _) = self.dag.nodes[node] {
            return self.fold(fold, path);
        }
        let value = self.expression(node);
        let (of, name) = self.named(node);
        self.line(&format!("const {of} {name} = {};", value.text));
        self.know(node, Known::Variable(Expression::atom(name)));
    }

    /// The loops that fill a buffer.
    fn fill(&mut self, node: NodeId, buffer: &Buffer, path: &[VarId]) {
        let (_, name) = self.named(node);
        self.array(self.dag.of(node), &name, buffer.size);
        let is_fold = matches!(self.dag.nodes[node], Node::Folded(..));
        let mut needed = if is_fold { vec![node] } else { self.dag.inputs(node).to_vec() };
        let nodes = self.live(needed.iter().copied());
        needed.push(buffer.offset);
        // A fold is known as the element of the buffer only after it was written.
        let target = name.clone();
        let around = self.filled.replace(node);
        self.loops((&buffer.levels, buffer.lanes), path, &nodes, &needed, false, &mut |writer| {
            let value = writer.expression(node).text;
            let offset = writer.expression(buffer.offset).text;
            writer.line(&format!("{target}[{offset}] = {value};"));
        });
        self.filled = around;
        self.know(node, Known::Element(name, buffer.offset));
    }

    /// Declares an array on the stack.
    pub(crate) fn array(&mut self, of: Type, name: &str, extent: i64) {
        self.line(&format!("{} {name}[{extent}];", c_type(of)));
        let width = match of {
            Type::Index => 8,
            Type::Element(t) => computed(t).byte_width(),
        };
        self.stack += extent as u64 * u64::from(width);
    }

    /// Declares the accumulators of a fold, or arrays of so many, and gives their names.
    pub(crate) fn accumulators(&mut self, id: FoldId, lanes: Option<i64>) -> Vec<String> {
        let dag = self.dag;
        let fold = &dag.folds[id];
        let mut names = Vec::new();
        for (&Accumulated(of), &initial) in fold.types.iter().zip(&fold.initial) {
            let name = self.identifiers.unique(&fold.name);
            match lanes {
                Some(lanes) => self.array(of, &name, lanes),
                None => {
                    let initial = self.expression(initial).text;
                    self.line(&format!("{} {name} = {initial};", c_type(of)));
                }
            }
            names.push(name);
        }
        names
    }

    /// Makes accumulators known under their names.
    pub(crate) fn know_accumulators(&mut self, id: FoldId, names: &[String]) {
        let dag = self.dag;
        for (node, known) in &dag.nodes {
            if let Node::Accumulator(of, k) | Node::Folded(of, k) = *known
                && of == id
            {
                self.know(node, Known::Variable(Expression::atom(&names[k as usize])));
            }
        }
    }

    /// What the loops of a fold compute.
    pub(crate) fn of_fold(&self, id: FoldId) -> Vec<NodeId> {
        let fold = &self.dag.folds[id];
        let conditions = fold.levels.iter().filter_map(|level| match *level {
            Level::If { condition, .. } => Some(condition),
            _ => None,
        });
        self.live(fold.next.iter().copied().chain(conditions))
    }

    /// The loops of a fold, around its accumulators.
    fn fold(&mut self, id: FoldId, path: &[VarId]) {
        let dag = self.dag;
        if let Some(&parts) = self.tiling.parts.get(&id) {
            return self.fold_in_parts(id, path, parts);
        }
        let names = self.accumulators(id, None);
        self.know_accumulators(id, &names);
        let nodes = self.of_fold(id);
        let fold = &dag.folds[id];
        self.level(&fold.levels, path, &nodes, false, &mut |writer| writer.accumulate(&fold.next, &names));
    }

    /// Sets accumulators to their next values.
    pub(crate) fn accumulate(&mut self, next: &[NodeId], names: &[String]) {
        let changed: Vec<(&String, NodeId)> = names
            .iter()
            .zip(next.iter().copied())
            .filter(|(name, node)| !self.is_known_as(*node, name))
            .collect();
        // A next value may be that of another accumulator, or be made of it.
        let mut values: Vec<String> = changed.iter().map(|&(_, node)| self.expression(node).text).collect();
        if changed.len() > 1 {
            for (value, &(_, node)) in values.iter_mut().zip(&changed) {
                let next = self.identifiers.unique("next");
                self.line(&format!("const {} {next} = {value};", c_type(self.dag.of(node))));
                *value = next;
            }
        }
        for (&(name, _), value) in changed.iter().zip(values) {
            match value.strip_prefix(&format!("{name} + ")) {
                Some(added) => self.line(&format!("{name} += {added};")),
                None => self.line(&format!("{name} = {value};")),
            }
        }
    }

    fn is_known_as(&self, node: NodeId, name: &str) -> bool {
        matches!(self.known.get(&node), Some(Known::Variable(known)) if known.text == name)
    }

    /// A function of expressions of one type.
    pub(crate) fn applied(&mut self, function: &Function, inputs: &[Expression], of: Type) -> Expression {
        Expression::apply(function, inputs, &[of, of], self.runtime)
    }

    /// An expression of C.
    pub(crate) fn expression(&mut self, node: NodeId) -> Expression {
        match self.known.get(&node).cloned() {
            Some(Known::Variable(expression)) => return expression,
            Some(Known::Element(array, offset)) => {
                return Expression::atom(format!("{array}[{}]", self.expression(offset).text));
            }
            None => {}
        }
        let dag = self.dag;
        match &dag.nodes[node] {
            Node::Var(var) => self.vars[var].clone(),
            Node::Affine { terms, base } => {
                let terms: Vec<(Expression, i64)> =
                    terms.iter().map(|&(node, coefficient)| (self.expression(node), coefficient)).collect();
                Expression::sum(&terms, *base)
            }
            Node::Quotient(x, divisor) => {
                Expression::infix(&self.expression(*x), "/", &Expression::atom(divisor))
            }
            Node::Remainder(x, divisor) => {
                Expression::infix(&self.expression(*x), "%", &Expression::atom(divisor))
            }
            Node::Clamp { value, high } => {
                let x = self.expression(*value);
                let name = match dag.of(*value) {
                    Type::Index => self.runtime.index_clamp().to_string(),
                    Type::Element(t) => self.runtime.name("clamp", t, None),
                };
                Expression::atom(format!("{name}({}, {high})", x.text))
            }
            Node::InRange { value, low, high } => {
                let x = self.expression(*value);
                let (x, least) = match dag.of(*value) {
                    Type::Index => (x, dag.range(*value)),
                    Type::Element(t) => (
                        x.cast(&format!("{}64", if t.is_signed() { "s" } else { "u" })),
                        (i64::MIN, i64::MAX),
                    ),
                };
                let is_unsigned = matches!(dag.of(*value), Type::Element(t) if t.is_unsigned());
                let limit =
                    |n: i64| literal(if is_unsigned { ElementType::U64 } else { ElementType::S64 }, n as u64);
                let limit =
                    |n: i64| if dag.of(*value) == Type::Index { Expression::atom(n) } else { limit(n) };
                let low = (least.0 < *low).then(|| Expression::infix(&x, ">=", &limit(*low)));
                let high = (least.1 >= *high).then(|| Expression::infix(&x, "<", &limit(*high)));
                match (low, high) {
                    (Some(low), Some(high)) => Expression::infix(&low, "&&", &high),
                    (one, other) => one.or(other).unwrap_or_else(|| Expression::atom("true")),
                }
            }
            Node::Constant(t, bits) => literal(*t, *bits),
            Node::Load { array, offset, .. } => {
                let name = self.array_names[array].clone();
                let element = format!("{name}[{}]", self.expression(*offset).text);
                match self.arrays[*array].element_type {
                    ElementType::Pred => {
                        Expression::infix(&Expression::atom(element), "!=", &Expression::atom(0))
                    }
                    t @ (ElementType::Bf16 | ElementType::F16) => {
                        Expression::atom(format!("{}({element})", self.runtime.name("load", t, None)))
                    }
                    _ => Expression::atom(element),
                }
            }
            Node::Apply(function, inputs) => {
                let of = |n: NodeId| dag.of(n);
                let types: SmallVec<[Type; 3]> = inputs.iter().map(|&n| of(n)).collect();
                let inputs: SmallVec<[Expression; 3]> = inputs.iter().map(|&n| self.expression(n)).collect();
                Expression::apply(function, &inputs, &types, self.runtime)
            }
            Node::Under(x, _) => self.expression(*x),
            Node::Accumulator(..) | Node::Folded(..) => {
                unreachable!("a fold is written before what uses it")
            }
        }
    }
}

fn c_type(of: Type) -> String {
    match of {
        Type::Index => "ptrdiff_t".to_string(),
        Type::Element(t) => value_type(t),
    }
}
