//! The functions that a file defines beside its kernels: one line of C each, for any type.
//!
//! In a text, `$N` is the function's name, `$T` its type, `$R` the type of its result, `$U` the unsigned integer of the
//! type's width, `$W` an unsigned integer of at least 32 bits, `$B` the bits, `$MIN` and `$MAX` the limits of the result,
//! `$LIMIT` one above `$MAX` as a float, `$f` the suffix of `math.h` and of literals.

use indexmap::IndexMap;
use memplan_ir::ElementType;

use crate::operations::computed;

/// For which types a text is.
#[derive(Clone, Copy, PartialEq)]
enum Class {
    Signed,
    Unsigned,
    Integer,
    F32,
    F64,
    Float,
    Bf16,
    F16,
    /// Float to integer.
    ToSigned,
    ToUnsigned,
    Any,
}

struct Row {
    name: &'static str,
    class: Class,
    text: &'static str,
}

const fn row(name: &'static str, class: Class, text: &'static str) -> Row {
    Row { name, class, text }
}

use Class::*;

static ROWS: &[Row] = &[
    row("add", Integer, "static inline $T $N($T x, $T y) { return ($T)(($W)x + ($W)y); }"),
    row("subtract", Integer, "static inline $T $N($T x, $T y) { return ($T)(($W)x - ($W)y); }"),
    row("multiply", Integer, "static inline $T $N($T x, $T y) { return ($T)(($W)x * ($W)y); }"),
    row("negate", Integer, "static inline $T $N($T x) { return ($T)(($W)0 - ($W)x); }"),
    row("not", Integer, "static inline $T $N($T x) { return ($T)~x; }"),
    row("abs", Signed, "static inline $T $N($T x) { return ($T)(x < 0 ? ($W)0 - ($W)x : ($W)x); }"),
    row("sign", Signed, "static inline $T $N($T x) { return ($T)((x > 0) - (x < 0)); }"),
    row("divide", Unsigned, "static inline $T $N($T x, $T y) { return ($T)(y == 0 ? $MAX : x / y); }"),
    row(
        "divide",
        Signed,
        "static inline $T $N($T x, $T y) { return ($T)(y == 0 ? -1 : y == -1 ? ($T)(($W)0 - ($W)x) : x / y); }",
    ),
    row("remainder", Unsigned, "static inline $T $N($T x, $T y) { return ($T)(y == 0 ? x : x % y); }"),
    row(
        "remainder",
        Signed,
        "static inline $T $N($T x, $T y) { return ($T)(y == 0 ? x : y == -1 ? 0 : x % y); }",
    ),
    row("max", Integer, "static inline $T $N($T x, $T y) { return x > y ? x : y; }"),
    row("min", Integer, "static inline $T $N($T x, $T y) { return x < y ? x : y; }"),
    row("max", Float, "static inline $T $N($T x, $T y) { return x >= y || x != x ? x : y; }"),
    row("min", Float, "static inline $T $N($T x, $T y) { return x <= y || x != x ? x : y; }"),
    row(
        "shift_left",
        Integer,
        "static inline $T $N($T x, $T y) { return ($T)(($U)y >= $B ? 0 : ($W)x << ($U)y); }",
    ),
    row(
        "shift_right_logical",
        Integer,
        "static inline $T $N($T x, $T y) { return ($T)(($U)y >= $B ? 0 : ($U)x >> ($U)y); }",
    ),
    row(
        "shift_right_arithmetic",
        Signed,
        "static inline $T $N($T x, $T y) { return ($T)(x >> (($U)y >= $B ? $B - 1 : y)); }",
    ),
    row(
        "shift_right_arithmetic",
        Unsigned,
        "static inline $T $N($T x, $T y) { return ($T)(($S)x >> (y >= $B ? $B - 1 : y)); }",
    ),
    row(
        "power",
        Integer,
        "static inline $T $N($T x, $T y)\n{\n    $W base = ($W)x, power = 1;\n    $NEGATIVE\n    for (u64 n = (u64)y; n != 0; n >>= 1) {\n        if (n & 1) {\n            power = power * base;\n        }\n        base = base * base;\n    }\n    return ($T)power;\n}",
    ),
    row("multiply_high", Signed, "static inline $T $N($T x, $T y) { return ($T)(((s64)x * (s64)y) >> $B); }"),
    row(
        "multiply_high",
        Unsigned,
        "static inline $T $N($T x, $T y) { return ($T)(((u64)x * (u64)y) >> $B); }",
    ),
    row(
        "leading_zeros",
        Integer,
        "static inline $T $N($T x)\n{\n    int n = $B;\n    for (; x != 0; x = ($T)(($U)x >> 1)) {\n        n = n - 1;\n    }\n    return ($T)n;\n}",
    ),
    row(
        "population_count",
        Integer,
        "static inline $T $N($T x)\n{\n    int n = 0;\n    for (; x != 0; x = ($T)(($U)x >> 1)) {\n        n = n + (int)(x & 1);\n    }\n    return ($T)n;\n}",
    ),
    row(
        "clamp",
        Signed,
        "static inline ptrdiff_t $N($T x, ptrdiff_t high) { return x < 0 ? 0 : x > high ? high : (ptrdiff_t)x; }",
    ),
    row(
        "clamp",
        Unsigned,
        "static inline ptrdiff_t $N($T x, ptrdiff_t high) { return (u64)x > (u64)high ? high : (ptrdiff_t)x; }",
    ),
    // Those of C's library call no vector instructions, and compute with `double` on some microcontrollers. The coefficients
    // are those of Cephes; both are within 2 units in the last place.
    row(
        "exp",
        F32,
        "/* e^x is 2^n e^r, where r is at most log(2) / 2; adding 1.5 * 2^23 rounds n */\nstatic inline f32 $N(f32 x)\n{\n    const f32 limited = x > 89.0f ? 89.0f : x < -104.0f ? -104.0f : x == x ? x : 0.0f;\n    const f32 n = (limited * 1.44269504f + 12582912.0f) - 12582912.0f;\n    const f32 r = (limited - n * 0.693359375f) + n * 2.12194440e-4f;\n    const f32 p = ((((1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f) * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;\n    /* in two steps, since 2^n may be beyond what a number is */\n    const s32 half = (s32)n / 2;\n    const u32 b = (u32)(half + 127) << 23, rest = (u32)((s32)n - half + 127) << 23;\n    f32 y, z;\n    memcpy(&y, &b, 4);\n    memcpy(&z, &rest, 4);\n    return x == x ? (p * r * r + r + 1.0f) * y * z : x;\n}",
    ),
    row(
        "tanh",
        F32,
        "static inline f32 $N(f32 x)\n{\n    const f32 y = x < 0.0f ? -x : x, s = x * x;\n    const f32 p = (((-5.70498872745e-3f * s + 2.06390887954e-2f) * s - 5.37397155531e-2f) * s + 1.33314422036e-1f) * s - 3.33332819422e-1f;\n    const f32 q = 1.0f - 2.0f / (exp_f32(2.0f * y) + 1.0f);\n    return y < 0.625f ? x * (s * p + 1.0f) : x < 0.0f ? -q : q;\n}",
    ),
    row("logistic", F32, "static inline f32 $N(f32 x) { return 1.0f / (1.0f + exp_f32(-x)); }"),
    row("logistic", F64, "static inline f64 $N(f64 x) { return 1.0 / (1.0 + exp(-x)); }"),
    row("rsqrt", Float, "static inline $T $N($T x) { return 1.0$f / sqrt$f(x); }"),
    row("sign", Float, "static inline $T $N($T x) { return x > 0.0$f ? 1.0$f : x < 0.0$f ? -1.0$f : x; }"),
    row("is_finite", Float, "static inline bool $N($T x) { return x - x == 0.0$f; }"),
    row(
        "order",
        F32,
        "static inline s32 $N(f32 x)\n{\n    u32 b;\n    memcpy(&b, &x, 4);\n    return (s32)(b >> 31 ? b ^ 0x7fffffffu : b);\n}",
    ),
    row(
        "order",
        F64,
        "static inline s64 $N(f64 x)\n{\n    u64 b;\n    memcpy(&b, &x, 8);\n    return (s64)(b >> 63 ? b ^ 0x7fffffffffffffffu : b);\n}",
    ),
    row(
        "saturate",
        ToSigned,
        "static inline $R $N($T x) { return x != x ? 0 : x <= -$LIMIT ? $MIN : x >= $LIMIT ? $MAX : ($R)x; }",
    ),
    row(
        "saturate",
        ToUnsigned,
        "static inline $R $N($T x) { return !(x > 0.0$f) ? 0 : x >= $LIMIT ? $MAX : ($R)x; }",
    ),
    row(
        "load",
        Bf16,
        "static inline f32 $N(u16 x)\n{\n    const u32 b = (u32)x << 16;\n    f32 y;\n    memcpy(&y, &b, 4);\n    return y;\n}",
    ),
    row(
        "store",
        Bf16,
        "static inline u16 $N(f32 x)\n{\n    u32 b, nan;\n    memcpy(&b, &x, 4);\n    nan = (b >> 16) | 0x40u;\n    b = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;\n    return (u16)(x != x ? nan : b);\n}",
    ),
    row("round", Bf16, "static inline f32 $N(f32 x) { return load_bf16(store_bf16(x)); }"),
    row(
        "load",
        F16,
        "static inline f32 $N(u16 x)\n{\n    const u32 sign = (u32)(x & 0x8000u) << 16, rest = x & 0x7fffu;\n    u32 b = sign | (rest == 0 ? 0 : ((rest << 13) + 0x38000000u));\n    f32 y;\n    if (rest >= 0x7c00u) {\n        b = sign | 0x7f800000u | (rest & 0x3ffu) << 13;\n    } else if (rest < 0x400u) {\n        y = (f32)rest * 5.9604644775390625e-8f;\n        return sign ? -y : y;\n    }\n    memcpy(&y, &b, 4);\n    return y;\n}",
    ),
    row(
        "store",
        F16,
        "static inline u16 $N(f32 x)\n{\n    u32 b;\n    memcpy(&b, &x, 4);\n    const u32 sign = (b >> 16) & 0x8000u, rest = b & 0x7fffffffu;\n    if (rest > 0x7f800000u) {\n        return (u16)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));\n    }\n    if (rest >= 0x477ff000u) {\n        return (u16)(sign | 0x7c00u);\n    }\n    if (rest < 0x38800000u) {\n        /* adding 0.5 puts the last bit of a subnormal at the last bit of the sum */\n        f32 y = (x < 0 ? -x : x) + 0.5f;\n        memcpy(&b, &y, 4);\n        return (u16)(sign | (b - 0x3f000000u));\n    }\n    return (u16)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));\n}",
    ),
    row("round", F16, "static inline f32 $N(f32 x) { return load_f16(store_f16(x)); }"),
    row(
        "odd",
        F64,
        "/* rounds so that a second rounding, to a narrower float, gives what one rounding would */\nstatic inline f32 $N(f64 x)\n{\n    f32 y = (f32)x;\n    u32 b;\n    if (x != x || (f64)y == x || y - y != 0.0f) {\n        return y;\n    }\n    memcpy(&b, &y, 4);\n    if ((y < 0 ? -(f64)y : (f64)y) > (x < 0 ? -x : x)) {\n        b = b - 1;\n    }\n    b = b | 1u;\n    memcpy(&y, &b, 4);\n    return y;\n}",
    ),
    row(
        "bits",
        Any,
        "static inline $R $N($T x)\n{\n    $X from = $IN;\n    $Y to;\n    memcpy(&to, &from, sizeof to);\n    return $OUT;\n}",
    ),
    row(
        "reduce_precision",
        Any,
        "static inline $T $N($T x, int exponent_bits, int mantissa_bits)\n{\n    const int dropped = 52 - mantissa_bits, largest = (1 << (exponent_bits - 1)) - 1;\n    f64 y = (f64)x;\n    u64 b;\n    if (x != x) {\n        return mantissa_bits == 0 ? ($T)INFINITY : x;\n    }\n    if (x - x != 0.0$f || x == 0.0$f) {\n        return x;\n    }\n    memcpy(&b, &y, 8);\n    if (mantissa_bits < $MANTISSA) {\n        b = (b + ((u64)1 << (dropped - 1)) - 1 + ((b >> dropped) & 1)) & ~(((u64)1 << dropped) - 1);\n    }\n    if (exponent_bits < $EXPONENT) {\n        const int exponent = (int)((b >> 52) & 0x7ff) - 1023;\n        if (exponent > largest) {\n            return x > 0.0$f ? ($T)INFINITY : -($T)INFINITY;\n        }\n        if (exponent < 1 - largest) {\n            return x > 0.0$f ? 0.0$f : -0.0$f;\n        }\n    }\n    memcpy(&y, &b, 8);\n    return ($T)y;\n}",
    ),
    row(
        "threefry",
        Any,
        "static inline u64 $N(u64 counter, u64 key)\n{\n    static const u8 rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};\n    u32 keys[3], x = (u32)counter, y = (u32)(counter >> 32), round;\n    keys[0] = (u32)key;\n    keys[1] = (u32)(key >> 32);\n    keys[2] = keys[0] ^ keys[1] ^ 0x1bd11bdau;\n    x = x + keys[0];\n    y = y + keys[1];\n    for (round = 0; round < 5; ++round) {\n        int i;\n        for (i = 0; i < 4; ++i) {\n            const int r = rotations[round % 2][i];\n            x = x + y;\n            y = ((y << r) | (y >> (32 - r))) ^ x;\n        }\n        x = x + keys[(round + 1) % 3];\n        y = y + keys[(round + 2) % 3] + round + 1;\n    }\n    return (u64)x | (u64)y << 32;\n}",
    ),
    row(
        "philox",
        Any,
        "static inline u32 $N(u64 low, u64 high, u64 key, s32 k)\n{\n    u32 x[4], k0 = (u32)key, k1 = (u32)(key >> 32);\n    int round;\n    x[0] = (u32)low;\n    x[1] = (u32)(low >> 32);\n    x[2] = (u32)high;\n    x[3] = (u32)(high >> 32);\n    for (round = 0; round < 10; ++round) {\n        const u64 p = (u64)0xd2511f53u * x[0], q = (u64)0xcd9e8d57u * x[2];\n        x[0] = (u32)(q >> 32) ^ x[1] ^ k0;\n        x[1] = (u32)q;\n        x[2] = (u32)(p >> 32) ^ x[3] ^ k1;\n        x[3] = (u32)p;\n        k0 = k0 + 0x9e3779b9u;\n        k1 = k1 + 0xbb67ae85u;\n    }\n    return x[k];\n}",
    ),
];

/// Functions that others call.
const CALLED: [(&str, ElementType); 5] = [
    ("load", ElementType::Bf16),
    ("store", ElementType::Bf16),
    ("load", ElementType::F16),
    ("store", ElementType::F16),
    ("exp", ElementType::F32),
];

/// The functions that a file needs, each after those that it calls.
#[derive(Default)]
pub(crate) struct Runtime {
    texts: IndexMap<String, String>,
}

impl Runtime {
    /// The name of a function, which the file will define.
    pub(crate) fn name(&mut self, name: &str, of: ElementType, to: Option<ElementType>) -> String {
        let called = match to {
            Some(to) => format!("{name}_{of}_{to}"),
            None => format!("{name}_{of}"),
        };
        if !self.texts.contains_key(&called) {
            let row = ROWS.iter().find(|row| row.name == name && applies(row.class, of, to));
            let row = row.expect("every helper of the table of operations has a text for its types");
            let text = instantiate(row.text, &called, of, to);
            for (needed, t) in CALLED.into_iter().filter(|(needed, _)| *needed != name) {
                if text.contains(&format!("{needed}_{t}(")) {
                    self.name(needed, t, None);
                }
            }
            self.texts.insert(called.clone(), text);
        }
        called
    }

    /// The name of a function that clamps indices.
    pub(crate) fn index_clamp(&mut self) -> &'static str {
        let text = "static inline ptrdiff_t clamp(ptrdiff_t x, ptrdiff_t high) { return x < 0 ? 0 : x > high ? high : x; }";
        self.texts.entry("clamp".to_string()).or_insert_with(|| text.to_string());
        "clamp"
    }

    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        self.texts.values().map(String::as_str)
    }
}

fn applies(class: Class, of: ElementType, to: Option<ElementType>) -> bool {
    let to_integer = |is: fn(ElementType) -> bool| of.is_floating() && to.is_some_and(is);
    match class {
        Signed => of.is_signed(),
        Unsigned => of.is_unsigned(),
        Integer => of.is_integral(),
        F32 => of == ElementType::F32,
        F64 => of == ElementType::F64,
        Float => matches!(of, ElementType::F32 | ElementType::F64),
        Bf16 => of == ElementType::Bf16,
        F16 => of == ElementType::F16,
        ToSigned => to_integer(ElementType::is_signed),
        ToUnsigned => to_integer(ElementType::is_unsigned),
        Any => true,
    }
}

/// The name of a type in the file. Arrays of `bf16` and `f16` hold `u16`, and predicates `u8`.
pub(crate) fn stored_type(t: ElementType) -> String {
    match t {
        ElementType::Pred => "u8".to_string(),
        ElementType::Bf16 | ElementType::F16 => "u16".to_string(),
        t => t.to_string(),
    }
}

/// The name of the type of an element of memory.
pub(crate) fn memory_type(t: ElementType) -> String {
    format!("mem_{}", stored_type(t))
}

/// The name of the type of a variable.
pub(crate) fn value_type(t: ElementType) -> String {
    match t {
        ElementType::Pred => "bool".to_string(),
        t => computed(t).to_string(),
    }
}

fn instantiate(text: &str, name: &str, of: ElementType, to: Option<ElementType>) -> String {
    let result = to.unwrap_or(of);
    let bits = of.bits();
    let suffix = if of == ElementType::F64 { "" } else { "f" };
    let sign = if result.is_signed() { "INT" } else { "UINT" };
    let digits = if result.is_signed() { result.bits() - 1 } else { result.bits() };
    let limit = format!("{:.1}{suffix}", 2f64.powi(digits as i32));
    let negative = match of.is_signed() {
        true => "if (y < 0) {\n        return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;\n    }",
        false => "",
    };
    // What a cast of bits reads and gives, for floats that variables hold as wider ones.
    let (is_narrow, is_narrow_result) = (computed(of) != of, computed(result) != result);
    let read = if is_narrow { format!("store_{of}(x)") } else { "x".to_string() };
    let given = if is_narrow_result { format!("load_{result}(to)") } else { "to".to_string() };
    let (exponent, mantissa) = match of {
        ElementType::F64 => ("11", "52"),
        ElementType::F16 => ("5", "10"),
        ElementType::Bf16 => ("8", "7"),
        _ => ("8", "23"),
    };
    let replaced = [
        ("$MANTISSA", mantissa.to_string()),
        ("$EXPONENT", exponent.to_string()),
        ("$NEGATIVE", negative.to_string()),
        ("$LIMIT", limit),
        ("$MIN", format!("{sign}{}_MIN", result.bits())),
        ("$MAX", format!("{sign}{}_MAX", result.bits())),
        ("$OUT", given),
        ("$IN", read),
        ("$N", name.to_string()),
        ("$T", value_type(of)),
        ("$R", value_type(result)),
        ("$X", stored_type(of)),
        ("$Y", stored_type(result)),
        ("$U", format!("u{bits}")),
        ("$S", format!("s{bits}")),
        ("$W", format!("u{}", bits.max(32))),
        ("$B", bits.to_string()),
        ("$f", suffix.to_string()),
    ];
    replaced.iter().fold(text.to_string(), |text, (from, to)| text.replace(from, to)).replace("    \n", "")
}
