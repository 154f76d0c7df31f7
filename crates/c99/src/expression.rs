//! Expressions of C, with the parentheses that they need.

use std::fmt::Display;

use memplan_ir::ElementType;

use crate::dag::Type;
use crate::operations::{Form, Function};
use crate::runtime::{Runtime, value_type};

/// An expression, and whether it can be an operand as it is.
#[derive(Clone, Debug)]
pub(crate) struct Expression {
    pub(crate) text: String,
    is_atom: bool,
}

impl Expression {
    /// A name, a number, or a call.
    pub(crate) fn atom(text: impl Display) -> Expression {
        Expression { text: text.to_string(), is_atom: true }
    }

    fn composite(text: String) -> Expression {
        Expression { text, is_atom: false }
    }

    /// The expression as an operand.
    pub(crate) fn operand(&self) -> String {
        if self.is_atom { self.text.clone() } else { format!("({})", self.text) }
    }

    pub(crate) fn infix(x: &Expression, operator: &str, y: &Expression) -> Expression {
        Expression::composite(format!("{} {operator} {}", x.operand(), y.operand()))
    }

    pub(crate) fn cast(&self, to: &str) -> Expression {
        Expression { text: format!("({to}){}", self.operand()), is_atom: true }
    }

    /// A sum of expressions times constants, and a constant.
    pub(crate) fn sum(terms: &[(Expression, i64)], base: i64) -> Expression {
        let mut text = String::new();
        // The greatest coefficient first, as people write offsets; positive ones before negative ones.
        let mut terms: Vec<&(Expression, i64)> = terms.iter().collect();
        terms.sort_by_key(|(_, coefficient)| -coefficient);
        let n = terms.len() + usize::from(base != 0);
        for (x, coefficient) in terms {
            let size = coefficient.abs();
            let term = if size == 1 { x.operand() } else { format!("{} * {size}", x.operand()) };
            match (text.is_empty(), *coefficient < 0) {
                (true, true) => text = format!("-{term}"),
                (true, false) => text = term,
                (false, true) => text.push_str(&format!(" - {term}")),
                (false, false) => text.push_str(&format!(" + {term}")),
            }
        }
        match base {
            0 if !text.is_empty() => {}
            _ if text.is_empty() => text = base.to_string(),
            base if base < 0 => text.push_str(&format!(" - {}", -base)),
            base => text.push_str(&format!(" + {base}")),
        }
        let is_atom = n <= 1 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        Expression { text, is_atom }
    }

    /// A function of expressions of some types.
    pub(crate) fn apply(
        function: &Function,
        inputs: &[Expression],
        types: &[Type],
        runtime: &mut Runtime,
    ) -> Expression {
        let list = || inputs.iter().map(|x| x.text.as_str()).collect::<Vec<_>>().join(", ");
        let result = match function.result {
            Type::Index => "ptrdiff_t".to_string(),
            Type::Element(t) => value_type(t),
        };
        match function.form {
            Form::Infix(operator) => Expression::infix(&inputs[0], operator, &inputs[1]),
            Form::Narrow(operator) => Expression::infix(&inputs[0], operator, &inputs[1]).cast(&result),
            Form::Prefix(operator) => Expression::composite(format!("{operator}{}", inputs[0].operand())),
            Form::Math(name) => {
                let is_double = matches!(types[0], Type::Element(ElementType::F64));
                Expression::atom(format!("{name}{}({})", if is_double { "" } else { "f" }, list()))
            }
            Form::Helper(name, of, to) => {
                Expression::atom(format!("{}({})", runtime.name(name, of, to), list()))
            }
            Form::Cast => inputs[0].cast(&result),
            Form::NotZero => {
                let is_double = matches!(types[0], Type::Element(t) if t.is_floating());
                Expression::infix(&inputs[0], "!=", &Expression::atom(if is_double { "0.0f" } else { "0" }))
            }
            Form::Choose => Expression::composite(format!(
                "{} ? {} : {}",
                inputs[0].operand(),
                inputs[1].operand(),
                inputs[2].operand()
            )),
        }
    }
}

/// A number of the program, by its bits: those of an `f32` for narrower floats.
pub(crate) fn literal(t: ElementType, bits: u64) -> Expression {
    let signed = |width: u32| (bits as i64) << (64 - width) >> (64 - width);
    let negative = |text: String| match text.starts_with('-') {
        true => Expression::composite(text),
        false => Expression::atom(text),
    };
    match t {
        ElementType::Pred => Expression::atom(if bits & 1 == 1 { "true" } else { "false" }),
        ElementType::F64 => negative(float(f64::from_bits(bits), "")),
        t if t.is_floating() => {
            let value = f32::from_bits(bits as u32);
            negative(match value.is_finite() {
                true => format!("{value:?}f"),
                false => float(f64::from(value), "f"),
            })
        }
        ElementType::S64 if signed(64) == i64::MIN => Expression::atom("INT64_MIN"),
        ElementType::S32 if signed(32) == i64::from(i32::MIN) => Expression::atom("INT32_MIN"),
        ElementType::S64 if signed(64) > i64::from(i32::MAX) || signed(64) < i64::from(i32::MIN) => {
            negative(format!(
                "{}{}",
                if signed(64) < 0 { "-" } else { "" },
                format_args!("INT64_C({})", signed(64).abs())
            ))
        }
        t if t.is_signed() => negative(signed(t.bits()).to_string()),
        ElementType::U64 if bits > u64::from(u32::MAX) => Expression::atom(format!("UINT64_C({bits})")),
        t => {
            let value = bits & (u64::MAX >> (64 - t.bits()));
            Expression::atom(if t.bits() < 32 { value.to_string() } else { format!("{value}u") })
        }
    }
}

fn float(value: f64, suffix: &str) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    match value {
        v if v.is_nan() => format!("{sign}NAN"),
        v if v.is_infinite() => format!("{sign}INFINITY"),
        v => format!("{v:?}{suffix}"),
    }
}
