//! Elementwise operations as functions of C, in one table.
//!
//! The meanings are those of XLA's evaluator: integers wrap, dividing by zero gives -1 with the dividend as remainder,
//! shifting by the width or more gives 0 (or the sign), minimum and maximum propagate NaN. `bf16` and `f16` are computed as
//! `float`, and rounded after each operation.

use memplan_ir::{BinaryOp, ComparisonDirection, ComparisonType, ElementType, UnaryOp};

use crate::dag::Type;

/// A function of scalars, as C writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    pub(crate) form: Form,
    /// The type of the result.
    pub(crate) result: Type,
}

/// How C writes a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// `x op y`, of the type of its operands after promotion.
    Infix(&'static str),
    /// `(T)(x op y)`, since C computes with `int`.
    Narrow(&'static str),
    /// `op x`
    Prefix(&'static str),
    /// A function of `math.h`.
    Math(&'static str),
    /// A function that the file defines: one of [`crate::runtime`] for these types.
    Helper(&'static str, ElementType, Option<ElementType>),
    /// `(T)x`
    Cast,
    /// `x != 0`
    NotZero,
    /// `p ? x : y`
    Choose,
}

/// Whether the file can hold and compute with numbers of a type.
pub(crate) fn is_supported(t: ElementType) -> bool {
    use ElementType::*;
    matches!(t, Pred | S8 | S16 | S32 | S64 | U8 | U16 | U32 | U64 | F16 | Bf16 | F32 | F64)
}

/// The type that C computes with: `bf16` and `f16` are `f32`.
pub(crate) fn computed(t: ElementType) -> ElementType {
    match t {
        ElementType::Bf16 | ElementType::F16 => ElementType::F32,
        t => t,
    }
}

/// An elementwise operation of one operand: functions to apply one after the other. `None` if it is not defined.
pub(crate) fn unary(op: UnaryOp, t: ElementType) -> Option<Vec<Function>> {
    use UnaryOp::*;
    let to = |form| Some(vec![Function { form, result: Type::Element(t) }]);
    let helper = |name| to(Form::Helper(name, t, None));
    if t.is_floating() {
        if op == IsFinite {
            let result = Type::Element(ElementType::Pred);
            return Some(vec![Function { form: Form::Helper("is_finite", computed(t), None), result }]);
        }
        let form = match op {
            Negate => Form::Prefix("-"),
            Real => return Some(Vec::new()),
            Logistic => Form::Helper("logistic", computed(t), None),
            Rsqrt => Form::Helper("rsqrt", computed(t), None),
            Sign => Form::Helper("sign", computed(t), None),
            Exponential if computed(t) == ElementType::F32 => Form::Helper("exp", ElementType::F32, None),
            Tanh if computed(t) == ElementType::F32 => Form::Helper("tanh", ElementType::F32, None),
            op => Form::Math(math_name(op)?),
        };
        return Some(rounded(form, t));
    }
    match op {
        Not if t == ElementType::Pred => to(Form::Prefix("!")),
        Not => helper("not"),
        Abs | Sign if !t.is_signed() => match op {
            Abs => Some(Vec::new()),
            _ => Some(vec![
                Function { form: Form::NotZero, result: Type::Element(ElementType::Pred) },
                cast(t),
            ]),
        },
        Abs => helper("abs"),
        Sign => helper("sign"),
        Negate if t != ElementType::Pred => helper("negate"),
        Negate | Real => Some(Vec::new()),
        CountLeadingZeros if t != ElementType::Pred => helper("leading_zeros"),
        PopulationCount if t != ElementType::Pred => helper("population_count"),
        _ => None,
    }
}

/// The function of `math.h` for `double`.
fn math_name(op: UnaryOp) -> Option<&'static str> {
    use UnaryOp::*;
    Some(match op {
        Abs => "fabs",
        Acos => "acos",
        Acosh => "acosh",
        Asin => "asin",
        Asinh => "asinh",
        Atanh => "atanh",
        Cbrt => "cbrt",
        Ceil => "ceil",
        Cosine => "cos",
        Cosh => "cosh",
        Erf => "erf",
        Exponential => "exp",
        Expm1 => "expm1",
        Floor => "floor",
        Log => "log",
        Log1p => "log1p",
        RoundNearestAwayFromZero => "round",
        RoundNearestEven => "rint",
        Sine => "sin",
        Sinh => "sinh",
        Sqrt => "sqrt",
        Tan => "tan",
        Tanh => "tanh",
        _ => return None,
    })
}

/// An elementwise operation of two operands. `None` if it is not defined.
pub(crate) fn binary(op: BinaryOp, t: ElementType) -> Option<Vec<Function>> {
    use BinaryOp::*;
    let c = computed(t);
    if t.is_floating() {
        let form = match op {
            Add => Form::Infix("+"),
            Subtract => Form::Infix("-"),
            Multiply => Form::Infix("*"),
            Divide => Form::Infix("/"),
            Remainder => Form::Math("fmod"),
            Power => Form::Math("pow"),
            Atan2 => Form::Math("atan2"),
            Maximum => Form::Helper("max", c, None),
            Minimum => Form::Helper("min", c, None),
            _ => return None,
        };
        return Some(rounded(form, t));
    }
    let bits = |name: &'static str| if t.bits() < 32 { Form::Narrow(name) } else { Form::Infix(name) };
    let helper = |name: &'static str| Form::Helper(name, t, None);
    let is_pred = t == ElementType::Pred;
    let form = match op {
        Add | Or | Maximum if is_pred => Form::Infix("||"),
        Subtract | Xor if is_pred => Form::Infix("!="),
        Multiply | And | Minimum if is_pred => Form::Infix("&&"),
        _ if is_pred => return None,
        And => bits("&"),
        Or => bits("|"),
        Xor => bits("^"),
        Add => helper("add"),
        Subtract => helper("subtract"),
        Multiply => helper("multiply"),
        Divide => helper("divide"),
        Remainder => helper("remainder"),
        Maximum => helper("max"),
        Minimum => helper("min"),
        ShiftLeft => helper("shift_left"),
        ShiftRightArithmetic => helper("shift_right_arithmetic"),
        ShiftRightLogical => helper("shift_right_logical"),
        Power => helper("power"),
        Mulhi if t.bits() < 64 => helper("multiply_high"),
        _ => return None,
    };
    Some(vec![Function { form, result: Type::Element(t) }])
}

/// A comparison, as functions of each operand and of both.
pub(crate) fn compare(
    direction: ComparisonDirection,
    kind: ComparisonType,
    t: ElementType,
) -> (Option<Function>, Function) {
    let operator = match direction {
        ComparisonDirection::Eq => "==",
        ComparisonDirection::Ne => "!=",
        ComparisonDirection::Ge => ">=",
        ComparisonDirection::Gt => ">",
        ComparisonDirection::Le => "<=",
        ComparisonDirection::Lt => "<",
    };
    let c = computed(t);
    let key = if c == ElementType::F64 { ElementType::S64 } else { ElementType::S32 };
    let is_total = t.is_floating() && kind == ComparisonType::TotalOrder;
    let order =
        is_total.then_some(Function { form: Form::Helper("order", c, None), result: Type::Element(key) });
    (order, Function { form: Form::Infix(operator), result: Type::Element(ElementType::Pred) })
}

/// A conversion: functions to apply one after the other.
pub(crate) fn convert(from: ElementType, to: ElementType) -> Vec<Function> {
    let (f, c) = (computed(from), computed(to));
    let function = |form, result| Function { form, result: Type::Element(result) };
    if from == to {
        return Vec::new();
    }
    if to == ElementType::Pred {
        return vec![function(Form::NotZero, to)];
    }
    if from.is_floating() && !to.is_floating() {
        return vec![function(Form::Helper("saturate", f, Some(to)), to)];
    }
    if !to.is_floating() {
        return vec![cast(to)];
    }
    // What one step rounds to a narrow float must not have been rounded before.
    if from == ElementType::F64 && c != to {
        return vec![
            function(Form::Helper("odd", f, None), ElementType::F32),
            function(Form::Helper("round", to, None), to),
        ];
    }
    let mut functions = Vec::new();
    if f != c {
        functions.push(function(Form::Cast, c));
    }
    if c != to && from != ElementType::Pred {
        functions.push(function(Form::Helper("round", to, None), to));
    }
    match functions.last_mut() {
        Some(last) => last.result = Type::Element(to),
        // The same number, known as another type.
        None => functions.push(function(Form::Cast, to)),
    }
    functions
}

/// The same bits as a type of the same width; `None` if C has no function for it.
pub(crate) fn bitcast(from: ElementType, to: ElementType) -> Option<Function> {
    let form = match () {
        () if from.bits() != to.bits() || from == ElementType::Pred || to == ElementType::Pred => {
            return None;
        }
        () if from.is_integral() && to.is_integral() => Form::Cast,
        () => Form::Helper("bits", from, Some(to)),
    };
    Some(Function { form, result: Type::Element(to) })
}

pub(crate) fn choose(of: Type) -> Function {
    Function { form: Form::Choose, result: of }
}

pub(crate) fn and() -> Function {
    Function { form: Form::Infix("&&"), result: Type::Element(ElementType::Pred) }
}

pub(crate) fn cast(t: ElementType) -> Function {
    Function { form: Form::Cast, result: Type::Element(t) }
}

/// A float operation, rounded to its type.
pub(crate) fn rounded(form: Form, t: ElementType) -> Vec<Function> {
    let exact = Function { form, result: Type::Element(computed(t)) };
    let is_exact =
        matches!(form, Form::Prefix(_) | Form::Helper("max" | "min" | "sign", ..) | Form::Math("fabs"));
    if computed(t) == t {
        vec![exact]
    } else if is_exact {
        vec![Function { form, result: Type::Element(t) }]
    } else {
        vec![exact, Function { form: Form::Helper("round", t, None), result: Type::Element(t) }]
    }
}
