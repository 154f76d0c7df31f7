//! Puts expressions into loops, and writes them as C.
//!
//! At each level of loops, the expressions that need its variable and no deeper one become variables of C, in the order in
//! which they were made, operands first. Those that are used once, in the same loop, and are short are written where they
//! are used.

use std::fmt::Write;

use cranelift_entity::PrimaryMap;
use memplan_ir::ElementType;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::dag::{Accumulated, ArrayId, Dag, FoldId, Level, Node, NodeId, Type, VarId};
use crate::expression::{Expression, literal};
use crate::kernel::{Kernel, Nest, Store};
use crate::lower::Array;
use crate::names::Identifiers;
use crate::operations::{Form, Function};
use crate::runtime::{Runtime, memory_type, value_type};

/// Operations in one expression of C, beyond which it becomes a variable: what people read at a glance.
const MAX_INLINE: usize = 8;

/// The statements of a kernel.
pub(crate) struct Body {
    pub(crate) text: String,
    /// Arrays that it reads or writes, in order, with their names in the text.
    pub(crate) arrays: Vec<(ArrayId, String)>,
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
    let mut text = String::new();
    for nest in &kernel.nests {
        // Names of one nest are in scope in those after it.
        let mut writer = Writer {
            dag: &kernel.dag,
            arrays: &kernel.arrays,
            array_names: arrays.iter().cloned().collect(),
            runtime,
            identifiers: identifiers.clone(),
            known: FxHashMap::default(),
            vars: FxHashMap::default(),
            inline: FxHashSet::default(),
            text: String::new(),
            indent: 1,
            is_in_nest: false,
        };
        writer.nest(nest);
        text.push_str(&writer.text);
        identifiers = writer.identifiers;
    }
    Body { text, arrays }
}

struct Writer<'k> {
    dag: &'k Dag,
    arrays: &'k PrimaryMap<ArrayId, Array>,
    array_names: FxHashMap<ArrayId, String>,
    runtime: &'k mut Runtime,
    identifiers: Identifiers,
    /// What C calls expressions that are variables.
    known: FxHashMap<NodeId, Expression>,
    vars: FxHashMap<VarId, String>,
    /// Expressions that are written where they are used.
    inline: FxHashSet<NodeId>,
    text: String,
    indent: usize,
    is_in_nest: bool,
}

impl Writer<'_> {
    fn line(&mut self, line: &str) {
        writeln!(self.text, "{:1$}{line}", "", self.indent * 4).expect("strings can be written");
    }

    fn open(&mut self, line: &str) {
        self.line(&format!("{line} {{"));
        self.indent += 1;
    }

    fn close(&mut self) {
        self.indent -= 1;
        self.line("}");
    }

    fn nest(&mut self, nest: &Nest) {
        let reads: Vec<NodeId> = self.dag.reachable(nest.inputs());
        self.choose_inline(&reads, nest);
        self.level(&nest.levels, &[], &reads, &mut |writer| writer.stores(&nest.stores));
    }

    fn stores(&mut self, stores: &[Store]) {
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

    /// The expressions that are written where they are used.
    fn choose_inline(&mut self, nodes: &[NodeId], nest: &Nest) {
        let mut uses: FxHashMap<NodeId, SmallVec<[Option<NodeId>; 2]>> = FxHashMap::default();
        for &node in nodes {
            self.dag.inputs(node).iter().for_each(|&input| uses.entry(input).or_default().push(Some(node)));
        }
        nest.inputs().iter().for_each(|&input| uses.entry(input).or_default().push(None));
        // All is read before anything is written.
        let keeps_loads = nest.stores.len() > 1;
        let mut size: FxHashMap<NodeId, usize> = FxHashMap::default();
        for &node in nodes {
            let of_inputs = |writer: &Self| -> usize {
                let inputs = writer.dag.inputs(node);
                let inline = inputs.iter().filter(|n| writer.inline.contains(n));
                inline.map(|n| size.get(n).copied().unwrap_or(1)).sum()
            };
            let own = 1 + of_inputs(self);
            let is_atom = matches!(self.dag.nodes[node], Node::Constant(..) | Node::Var(_) | Node::Accumulator(..));
            let is_affine = matches!(self.dag.nodes[node], Node::Affine { .. } | Node::Under(..));
            let is_single = match uses.get(&node).map(|u| u.as_slice()) {
                Some([None]) => true,
                Some([Some(user)]) => {
                    let is_fold = matches!(self.dag.nodes[*user], Node::Folded(..));
                    is_fold || self.same_home(*user, node)
                }
                _ => false,
            };
            let is_kept = match self.dag.nodes[node] {
                Node::Load { mark, .. } => mark.is_some() || keeps_loads,
                Node::Folded(..) => true,
                _ => false,
            };
            let is_inline = is_atom || is_affine || is_single && !is_kept && own <= MAX_INLINE;
            size.insert(node, if is_inline { own } else { 1 });
            if is_inline {
                self.inline.insert(node);
            }
        }
    }

    /// Whether two expressions are computed in the same loop.
    fn same_home(&self, a: NodeId, b: NodeId) -> bool {
        self.dag.places(a).max() == self.dag.places(b).max()
    }

    /// Opens levels of loops, writes what belongs into each, and in the innermost what `inside` writes.
    fn level(
        &mut self,
        levels: &[Level],
        path: &[VarId],
        nodes: &[NodeId],
        inside: &mut dyn FnMut(&mut Self),
    ) {
        let is_nest = !self.is_in_nest;
        self.is_in_nest = true;
        let mut path = path.to_vec();
        let all: FxHashSet<VarId> = path.iter().copied().chain(levels.iter().map(|l| l.var())).collect();
        let mut homes: Vec<Vec<NodeId>> = vec![Vec::new(); levels.len() + 1];
        for &node in nodes {
            let vars = self.dag.vars(node);
            if self.known.contains_key(&node) || vars.iter().any(|v| !all.contains(v)) {
                continue;
            }
            // What a fold needs and its loops do not change was written before it.
            let depth = levels.iter().rposition(|level| vars.contains(&level.var())).map_or(0, |at| at + 1);
            if depth > 0 || is_nest {
                homes[depth].push(node);
            }
        }
        let mut opened = 0;
        let mut begin = None;
        for depth in 0..=levels.len() {
            for &node in &homes[depth] {
                self.define(node, &path, nodes);
            }
            // Names that are defined within loops are free after them.
            begin.get_or_insert_with(|| self.identifiers.clone());
            let Some(level) = levels.get(depth) else { break };
            path.push(level.var());
            match *level {
                Level::Loop { var, extent } => {
                    let name = self.identifiers.counter(path.len());
                    self.open(&format!("for (ptrdiff_t {name} = 0; {name} < {extent}; ++{name})"));
                    self.vars.insert(var, name);
                    opened += 1;
                }
                Level::Down { var, from } => {
                    let name = self.identifiers.counter(path.len());
                    let from = self.expression(from).text;
                    self.open(&format!("for (ptrdiff_t {name} = {from}; {name} > 0; --{name})"));
                    self.vars.insert(var, name);
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
        self.identifiers = begin.expect("the first level was visited");
    }

    /// Makes an expression a variable, if it is one.
    fn define(&mut self, node: NodeId, path: &[VarId], nodes: &[NodeId]) {
        if self.inline.contains(&node) || self.known.contains_key(&node) {
            return;
        }
        if let Node::Folded(fold, _) = self.dag.nodes[node] {
            return self.fold(fold, path, nodes);
        }
        let value = self.expression(node);
        let (of, hint) = match self.dag.of(node) {
            Type::Index => ("ptrdiff_t".to_string(), "at"),
            Type::Element(t) => (value_type(t), "x"),
        };
        let name = self.dag.names.get(&node).map_or(hint, |name| name);
        let name = self.identifiers.unique(name);
        self.line(&format!("const {of} {name} = {};", value.text));
        self.known.insert(node, Expression::atom(name));
    }

    /// The loops of a fold, around its accumulators.
    fn fold(&mut self, id: FoldId, path: &[VarId], nodes: &[NodeId]) {
        let dag = self.dag;
        let fold = &dag.folds[id];
        let mut names = Vec::new();
        for (k, (&Accumulated(of), &initial)) in fold.types.iter().zip(&fold.initial).enumerate() {
            let name = self.identifiers.unique(&fold.name);
            let of = match of {
                Type::Index => "ptrdiff_t".to_string(),
                Type::Element(t) => value_type(t),
            };
            let initial = self.expression(initial).text;
            self.line(&format!("{of} {name} = {initial};"));
            names.push((k as u32, name));
        }
        for (node, known) in &dag.nodes {
            if let Node::Accumulator(of, k) | Node::Folded(of, k) = *known && of == id {
                self.known.insert(node, Expression::atom(names[k as usize].1.clone()));
            }
        }
        let next = fold.next.clone();
        self.level(&fold.levels, path, nodes, &mut |writer| writer.accumulate(&next, &names));
    }

    /// Sets accumulators to their next values.
    fn accumulate(&mut self, next: &[NodeId], names: &[(u32, String)]) {
        let is_own = |writer: &Self, node: NodeId, name: &str| writer.expression_is(node, name);
        let changed: Vec<(&String, NodeId)> = (names.iter().zip(next))
            .filter(|((_, name), node)| !is_own(self, **node, name))
            .map(|((_, name), &node)| (name, node))
            .collect();
        // A next value may be that of another accumulator, or be made of it.
        let mut values: Vec<String> = changed.iter().map(|&(_, node)| self.expression(node).text).collect();
        if changed.len() > 1 {
            for (value, &(name, node)) in values.iter_mut().zip(&changed) {
                let of = match self.dag.of(node) {
                    Type::Index => "ptrdiff_t".to_string(),
                    Type::Element(t) => value_type(t),
                };
                let next = self.identifiers.unique(&format!("next_{name}"));
                self.line(&format!("const {of} {next} = {value};"));
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

    fn expression_is(&self, node: NodeId, name: &str) -> bool {
        self.known.get(&node).is_some_and(|known| known.text == name)
    }

    /// An expression of C.
    fn expression(&mut self, node: NodeId) -> Expression {
        if let Some(known) = self.known.get(&node) {
            return known.clone();
        }
        let dag = self.dag;
        match &dag.nodes[node] {
            Node::Var(var) => Expression::atom(self.vars[var].clone()),
            Node::Affine { terms, base } => {
                let terms: Vec<(Expression, i64)> =
                    terms.iter().map(|&(node, coefficient)| (self.expression(node), coefficient)).collect();
                Expression::sum(&terms, *base)
            }
            Node::Quotient(x, divisor) => Expression::infix(&self.expression(*x), "/", &Expression::atom(divisor)),
            Node::Remainder(x, divisor) => Expression::infix(&self.expression(*x), "%", &Expression::atom(divisor)),
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
                    Type::Element(t) => (x.cast(&format!("{}64", if t.is_signed() { "s" } else { "u" })), (i64::MIN, i64::MAX)),
                };
                let is_unsigned = matches!(dag.of(*value), Type::Element(t) if t.is_unsigned());
                let limit = |n: i64| literal(if is_unsigned { ElementType::U64 } else { ElementType::S64 }, n as u64);
                let limit = |n: i64| if dag.of(*value) == Type::Index { Expression::atom(n) } else { limit(n) };
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
                    ElementType::Pred => Expression::infix(&Expression::atom(element), "!=", &Expression::atom(0)),
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
