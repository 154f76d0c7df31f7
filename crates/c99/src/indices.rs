//! Indices: sums of expressions times constants, with their ranges.
//!
//! Digits of an index that make up the index again are joined, and ranges tell where a division or a limit is not needed:
//! so a reshape that only splits or joins dimensions costs nothing.

use memplan_ir::ElementType;
use smallvec::{SmallVec, smallvec};

use crate::dag::{Dag, Node, NodeId, Type};

impl Dag {
    /// A constant index.
    pub(crate) fn integer(&mut self, value: i64) -> NodeId {
        let node = Node::Affine { terms: smallvec![], base: value };
        self.insert(node, Type::Index, smallvec![], (value, value))
    }

    pub(crate) fn as_integer(&self, node: NodeId) -> Option<i64> {
        match &self.nodes[node] {
            Node::Affine { terms, base } if terms.is_empty() => Some(*base),
            _ => None,
        }
    }

    /// `base` and the sum of indices times coefficients.
    pub(crate) fn affine(&mut self, terms: &[(NodeId, i64)], base: i64) -> NodeId {
        let mut sum = Sum { base, terms: SmallVec::new() };
        terms.iter().for_each(|&(node, coefficient)| sum.add(self, node, coefficient));
        // digits of one index make up the index again: `x / d * d + x % d`
        while let Some((remainder, quotient, whole, coefficient)) = sum.whole(self) {
            sum.terms.retain(|term| term.0 != remainder && term.0 != quotient);
            sum.add(self, whole, coefficient);
        }
        sum.terms.sort_unstable();
        if sum.terms.is_empty() {
            return self.integer(sum.base);
        }
        if let ([(node, 1)], 0) = (&*sum.terms, sum.base) {
            return *node;
        }
        let (mut low, mut high) = (sum.base, sum.base);
        for &(node, coefficient) in &sum.terms {
            let (a, b) = self.range(node);
            let (a, b) = (a.saturating_mul(coefficient), b.saturating_mul(coefficient));
            (low, high) = (low.saturating_add(a.min(b)), high.saturating_add(a.max(b)));
        }
        let vars = self.joined(&sum.terms.iter().map(|t| t.0).collect::<Vec<_>>());
        self.insert(Node::Affine { terms: sum.terms, base: sum.base }, Type::Index, vars, (low, high))
    }

    /// The parts of an index that a divisor divides, divided, and what is left.
    fn divided(&mut self, node: NodeId, divisor: i64) -> (NodeId, NodeId) {
        let (terms, base) = match &self.nodes[node] {
            Node::Affine { terms, base } => (terms.clone(), *base),
            _ => (smallvec![(node, 1)], 0),
        };
        let (whole, rest): (Vec<_>, Vec<_>) = terms.into_iter().partition(|t| t.1 % divisor == 0);
        let whole: Vec<_> = whole.into_iter().map(|(n, c)| (n, c / divisor)).collect();
        (self.affine(&whole, base.div_euclid(divisor)), self.affine(&rest, base.rem_euclid(divisor)))
    }

    /// An index that is not negative, divided by a positive constant.
    pub(crate) fn quotient(&mut self, node: NodeId, divisor: i64) -> NodeId {
        if divisor == 1 {
            return node;
        }
        if let Node::Quotient(inner, by) = self.nodes[node] {
            return self.quotient(inner, by * divisor);
        }
        let (whole, rest) = self.divided(node, divisor);
        let (low, high) = self.range(rest);
        if low >= 0 && high < divisor {
            return whole;
        }
        // A part that is divided must not be negative by itself.
        if low >= 0 && rest != node {
            let rest = self.quotient(rest, divisor);
            return self.affine(&[(whole, 1), (rest, 1)], 0);
        }
        let (low, high) = self.range(node);
        let vars = self.vars(node).into();
        self.insert(
            Node::Quotient(node, divisor),
            Type::Index,
            vars,
            (low.max(0) / divisor, high.max(0) / divisor),
        )
    }

    /// The remainder of [`Dag::quotient`].
    pub(crate) fn remainder(&mut self, node: NodeId, divisor: i64) -> NodeId {
        if divisor == 1 {
            return self.integer(0);
        }
        let (_, rest) = self.divided(node, divisor);
        let (low, high) = self.range(rest);
        if low >= 0 && high < divisor {
            return rest;
        }
        let of = if low >= 0 { rest } else { node };
        let vars = self.vars(of).into();
        self.insert(Node::Remainder(of, divisor), Type::Index, vars, (0, divisor - 1))
    }

    /// An integer within `[0, high]`.
    pub(crate) fn clamp(&mut self, value: NodeId, high: i64) -> NodeId {
        let high = high.max(0);
        if self.of(value) == Type::Index {
            let (low, most) = self.range(value);
            if low >= 0 && most <= high {
                return value;
            }
            if low == most {
                return self.integer(low.clamp(0, high));
            }
        }
        if high == 0 {
            return self.integer(0);
        }
        let vars = self.vars(value).into();
        self.insert(Node::Clamp { value, high }, Type::Index, vars, (0, high))
    }

    /// Whether an index or an integer is in a range; `None` if it always is.
    pub(crate) fn in_range(&mut self, value: NodeId, low: i64, high: i64) -> Option<NodeId> {
        if self.of(value) == Type::Index {
            let (least, most) = self.range(value);
            if low <= least && most < high {
                return None;
            }
        }
        let (low, high) = match self.of(value) {
            Type::Index => (low, high),
            // Limits beyond the type's are none.
            Type::Element(t) => {
                let most = if t.is_signed() {
                    i64::MAX >> (64 - t.bits())
                } else {
                    (u64::MAX >> (65 - t.bits().min(63))) as i64 * 2 + 1
                };
                let least = if t.is_signed() { -most - 1 } else { 0 };
                (if low <= least { i64::MIN } else { low }, if high > most { i64::MAX } else { high })
            }
        };
        if (low, high) == (i64::MIN, i64::MAX) {
            return None;
        }
        let vars = self.vars(value).into();
        let of = Type::Element(ElementType::Pred);
        Some(self.insert(Node::InRange { value, low, high }, of, vars, (0, 1)))
    }
}

/// A sum under construction.
struct Sum {
    base: i64,
    terms: SmallVec<[(NodeId, i64); 4]>,
}

impl Sum {
    fn add(&mut self, dag: &Dag, node: NodeId, coefficient: i64) {
        if coefficient == 0 {
            return;
        }
        if let Node::Affine { terms, base } = &dag.nodes[node] {
            self.base += base * coefficient;
            terms.iter().for_each(|&(node, c)| self.add_term(node, c * coefficient));
        } else {
            self.add_term(node, coefficient);
        }
    }

    fn add_term(&mut self, node: NodeId, coefficient: i64) {
        match self.terms.iter().position(|t| t.0 == node) {
            Some(at) => self.terms[at].1 += coefficient,
            None => self.terms.push((node, coefficient)),
        }
        self.terms.retain(|t| t.1 != 0);
    }

    /// A remainder and the quotient that belongs to it, with the index of which they are digits and its coefficient.
    fn whole(&self, dag: &mut Dag) -> Option<(NodeId, NodeId, NodeId, i64)> {
        for &(remainder, coefficient) in &self.terms {
            let Node::Remainder(whole, divisor) = dag.nodes[remainder] else { continue };
            let quotient = dag.quotient(whole, divisor);
            if self.terms.contains(&(quotient, coefficient * divisor)) {
                return Some((remainder, quotient, whole, coefficient));
            }
        }
        None
    }
}
