//! Elements: how the types of HLO are represented in computations and in memory.
//!
//! Thirty-two element types are represented by five [`Class`]es of machine numbers. Integers and predicates are `i64`
//! (unsigned 64-bit ones keep their bits), every float of at most 32 bits is an `f32` that holds a value of the
//! narrower type exactly, and the others are themselves. After each operation [`round`] converts a result back into its
//! type, which is how XLA evaluates the narrow types too.
//!
//! [`load`] and [`store`] keep the bits of every NaN, signalling ones too, since moving an element must not change it.
//! A narrow NaN is the `f32` NaN with the same sign and the same leading mantissa bits. Only `round` makes NaNs quiet.

use memplan_ir::ElementType;
use num_complex::{Complex32, Complex64};

use crate::minifloat;

/// Elements that one step of a program handles at once. Large enough to hide the cost of choosing the step, small
/// enough for a few dozen registers to stay in the first-level cache.
pub(crate) const LANES: usize = 256;

/// The machine number an element type is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    Int,
    F32,
    F64,
    C64,
    C128,
}

/// A register: up to [`LANES`] numbers of one class.
#[derive(Clone, Debug)]
pub(crate) enum Lanes {
    Int(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    C64(Vec<Complex32>),
    C128(Vec<Complex64>),
}

/// The positions of a register's lanes in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At<'a> {
    /// One after another from this byte.
    Consecutive(usize),
    /// Each at its own byte.
    Offsets(&'a [i64]),
    /// Each at its own element of a packed array, elements of this many bits, several to a byte, lowest bits first.
    Packed(&'a [i64], u32),
}

impl Class {
    pub(crate) fn of(element_type: ElementType) -> Class {
        match element_type {
            ElementType::F64 => Class::F64,
            ElementType::C64 => Class::C64,
            ElementType::C128 => Class::C128,
            t if t.is_floating() => Class::F32,
            _ => Class::Int,
        }
    }
}

impl Lanes {
    /// A register of zeros.
    pub(crate) fn new(class: Class, n: usize) -> Lanes {
        match class {
            Class::Int => Lanes::Int(vec![0; n]),
            Class::F32 => Lanes::F32(vec![0.0; n]),
            Class::F64 => Lanes::F64(vec![0.0; n]),
            Class::C64 => Lanes::C64(vec![Complex32::default(); n]),
            Class::C128 => Lanes::C128(vec![Complex64::default(); n]),
        }
    }

    /// The lanes of a register that the lowering made an integer one.
    pub(crate) fn int(&self) -> &[i64] {
        match self {
            Lanes::Int(v) => v,
            _ => unreachable!("lowering gives integer operations integer registers"),
        }
    }

    /// As [`Lanes::int`], to write.
    pub(crate) fn int_mut(&mut self) -> &mut [i64] {
        match self {
            Lanes::Int(v) => v,
            _ => unreachable!("lowering gives integer operations integer registers"),
        }
    }

    /// Sets every lane to lane `k` of `from`, which has the same class.
    pub(crate) fn splat(&mut self, from: &Lanes, k: usize) {
        match (self, from) {
            (Lanes::Int(a), Lanes::Int(b)) => a.fill(b[k]),
            (Lanes::F32(a), Lanes::F32(b)) => a.fill(b[k]),
            (Lanes::F64(a), Lanes::F64(b)) => a.fill(b[k]),
            (Lanes::C64(a), Lanes::C64(b)) => a.fill(b[k]),
            (Lanes::C128(a), Lanes::C128(b)) => a.fill(b[k]),
            _ => unreachable!("registers keep their class"),
        }
    }

    /// Sets lane `i` to lane `lanes[i]` of `from`.
    pub(crate) fn pick(&mut self, from: &Lanes, lanes: &[usize]) {
        fn pick<T: Copy>(to: &mut [T], from: &[T], lanes: &[usize]) {
            to.iter_mut().zip(lanes).for_each(|(to, &lane)| *to = from[lane]);
        }
        match (self, from) {
            (Lanes::Int(a), Lanes::Int(b)) => pick(a, b, lanes),
            (Lanes::F32(a), Lanes::F32(b)) => pick(a, b, lanes),
            (Lanes::F64(a), Lanes::F64(b)) => pick(a, b, lanes),
            (Lanes::C64(a), Lanes::C64(b)) => pick(a, b, lanes),
            (Lanes::C128(a), Lanes::C128(b)) => pick(a, b, lanes),
            _ => unreachable!("registers keep their class"),
        }
    }

    /// Copies `n` lanes from lane `k` of `from` on, to lane `at` on.
    pub(crate) fn copy_from(&mut self, at: usize, from: &Lanes, k: usize, n: usize) {
        match (self, from) {
            (Lanes::Int(a), Lanes::Int(b)) => a[at..at + n].copy_from_slice(&b[k..k + n]),
            (Lanes::F32(a), Lanes::F32(b)) => a[at..at + n].copy_from_slice(&b[k..k + n]),
            (Lanes::F64(a), Lanes::F64(b)) => a[at..at + n].copy_from_slice(&b[k..k + n]),
            (Lanes::C64(a), Lanes::C64(b)) => a[at..at + n].copy_from_slice(&b[k..k + n]),
            (Lanes::C128(a), Lanes::C128(b)) => a[at..at + n].copy_from_slice(&b[k..k + n]),
            _ => unreachable!("registers keep their class"),
        }
    }
}

/// Reads `n` elements into the first lanes of a register of the type's class.
///
/// # Panics
/// When an offset is outside `bytes`: the callers compute offsets from the shape that sized the bytes.
pub(crate) fn load(t: ElementType, bytes: &[u8], at: At<'_>, n: usize, out: &mut Lanes) {
    use ElementType::*;
    if let At::Packed(positions, bits) = at {
        return load_packed(t, bytes, positions, bits, n, out);
    }
    match (t, out) {
        (Pred, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |[b]: [u8; 1]| (b != 0) as i64),
        (S1 | S2 | S4 | U1 | U2 | U4, Lanes::Int(v)) => {
            read(bytes, at, &mut v[..n], |[b]: [u8; 1]| wrap(t, b as i64))
        }
        (S8, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| i8::from_le_bytes(b) as i64),
        (U8, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| u8::from_le_bytes(b) as i64),
        (S16, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| i16::from_le_bytes(b) as i64),
        (U16, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| u16::from_le_bytes(b) as i64),
        (S32, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| i32::from_le_bytes(b) as i64),
        (U32, Lanes::Int(v)) => read(bytes, at, &mut v[..n], |b| u32::from_le_bytes(b) as i64),
        (S64 | U64, Lanes::Int(v)) => read(bytes, at, &mut v[..n], i64::from_le_bytes),
        (F32, Lanes::F32(v)) => read(bytes, at, &mut v[..n], f32::from_le_bytes),
        (Bf16, Lanes::F32(v)) => read(bytes, at, &mut v[..n], |b| bf16_to_f32(u16::from_le_bytes(b))),
        (F16, Lanes::F32(v)) => read(bytes, at, &mut v[..n], |b| f16_to_f32(u16::from_le_bytes(b))),
        (_, Lanes::F32(v)) => {
            let table = minifloat::decoding_table(t);
            read(bytes, at, &mut v[..n], |[b]: [u8; 1]| table[b as usize])
        }
        (F64, Lanes::F64(v)) => read(bytes, at, &mut v[..n], f64::from_le_bytes),
        (C64, Lanes::C64(v)) => read(bytes, at, &mut v[..n], complex32_from_bytes),
        (C128, Lanes::C128(v)) => read(bytes, at, &mut v[..n], complex64_from_bytes),
        _ => unreachable!("a register has the class of what it holds"),
    }
}

/// Writes the first `n` lanes of a register, which hold values of type `t`.
///
/// # Panics
/// As [`load`].
pub(crate) fn store(t: ElementType, lanes: &Lanes, n: usize, at: At<'_>, bytes: &mut [u8]) {
    use ElementType::*;
    if let At::Packed(positions, bits) = at {
        return store_packed(t, lanes, n, positions, bits, bytes);
    }
    match (t, lanes) {
        (Pred | S1 | S2 | S4 | S8 | U1 | U2 | U4 | U8, Lanes::Int(v)) => {
            write(bytes, at, &v[..n], |x| [x as u8])
        }
        (S16 | U16, Lanes::Int(v)) => write(bytes, at, &v[..n], |x| (x as u16).to_le_bytes()),
        (S32 | U32, Lanes::Int(v)) => write(bytes, at, &v[..n], |x| (x as u32).to_le_bytes()),
        (S64 | U64, Lanes::Int(v)) => write(bytes, at, &v[..n], i64::to_le_bytes),
        (F32, Lanes::F32(v)) => write(bytes, at, &v[..n], f32::to_le_bytes),
        (Bf16, Lanes::F32(v)) => write(bytes, at, &v[..n], |x| bf16_from_f32(x).to_le_bytes()),
        (F16, Lanes::F32(v)) => write(bytes, at, &v[..n], |x| f16_from_f32(x).to_le_bytes()),
        (_, Lanes::F32(v)) => write(bytes, at, &v[..n], |x| [minifloat::code_of(t, x)]),
        (F64, Lanes::F64(v)) => write(bytes, at, &v[..n], f64::to_le_bytes),
        (C64, Lanes::C64(v)) => write(bytes, at, &v[..n], complex32_to_bytes),
        (C128, Lanes::C128(v)) => write(bytes, at, &v[..n], complex64_to_bytes),
        _ => unreachable!("a register has the class of what it holds"),
    }
}

/// Brings the first `n` lanes back into type `t`: integers wrap, predicates become 0 or 1, floats round to nearest
/// even, NaNs of narrow floats become quiet.
pub(crate) fn round(t: ElementType, lanes: &mut Lanes, n: usize) {
    use ElementType::*;
    match (t, lanes) {
        (S64 | U64, Lanes::Int(_)) | (F32, Lanes::F32(_)) => {}
        (_, Lanes::Int(v)) => v[..n].iter_mut().for_each(|x| *x = wrap(t, *x)),
        (Bf16, Lanes::F32(v)) => v[..n].iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32()),
        (F16, Lanes::F32(v)) => v[..n].iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32()),
        (_, Lanes::F32(v)) => {
            let table = minifloat::decoding_table(t);
            v[..n].iter_mut().for_each(|x| *x = table[minifloat::encode(t, *x as f64) as usize]);
        }
        _ => {}
    }
}

/// An integer reduced to the width of its type, sign- or zero-extended; a predicate is whether it is not 0.
pub(crate) fn wrap(t: ElementType, x: i64) -> i64 {
    match t {
        ElementType::Pred => (x != 0) as i64,
        _ => {
            let shift = 64 - t.bits();
            if t.is_signed() { x << shift >> shift } else { ((x as u64) << shift >> shift) as i64 }
        }
    }
}

fn read<const W: usize, T>(bytes: &[u8], at: At<'_>, out: &mut [T], f: impl Fn([u8; W]) -> T) {
    let element = |b: &[u8]| f(b.try_into().expect("chunks have the width of an element"));
    match at {
        At::Consecutive(start) => {
            let bytes = &bytes[start..start + out.len() * W];
            out.iter_mut().zip(bytes.chunks_exact(W)).for_each(|(x, b)| *x = element(b));
        }
        At::Offsets(offsets) => {
            out.iter_mut().zip(offsets).for_each(|(x, &o)| *x = element(&bytes[o as usize..o as usize + W]));
        }
        At::Packed(..) => unreachable!("packed arrays have their own reader"),
    }
}

fn write<const W: usize, T: Copy>(bytes: &mut [u8], at: At<'_>, lanes: &[T], f: impl Fn(T) -> [u8; W]) {
    match at {
        At::Consecutive(start) => {
            let bytes = &mut bytes[start..start + lanes.len() * W];
            lanes.iter().zip(bytes.chunks_exact_mut(W)).for_each(|(&x, b)| b.copy_from_slice(&f(x)));
        }
        At::Offsets(offsets) => {
            lanes
                .iter()
                .zip(offsets)
                .for_each(|(&x, &o)| bytes[o as usize..o as usize + W].copy_from_slice(&f(x)));
        }
        At::Packed(..) => unreachable!("packed arrays have their own writer"),
    }
}

fn load_packed(t: ElementType, bytes: &[u8], positions: &[i64], bits: u32, n: usize, out: &mut Lanes) {
    let unpacked: Vec<u8> = positions[..n]
        .iter()
        .map(|&p| {
            let bit = p as usize * bits as usize;
            bytes[bit / 8] >> (bit % 8) & (((1u32 << bits) - 1) as u8)
        })
        .collect();
    load(t, &unpacked, At::Consecutive(0), n, out);
}

fn store_packed(t: ElementType, lanes: &Lanes, n: usize, positions: &[i64], bits: u32, bytes: &mut [u8]) {
    let mut unpacked = vec![0u8; n];
    store(t, lanes, n, At::Consecutive(0), &mut unpacked);
    let mask = ((1u32 << bits) - 1) as u8;
    for (&p, x) in positions.iter().zip(unpacked) {
        let bit = p as usize * bits as usize;
        let byte = &mut bytes[bit / 8];
        *byte = *byte & !(mask << (bit % 8)) | (x & mask) << (bit % 8);
    }
}

/// The `f32` of a bfloat16, given by its bits. A NaN keeps its bits.
fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits((bits as u32) << 16)
}

/// The bits of the bfloat16 nearest to `x`. A NaN keeps its leading bits. Without a branch, so that it is done for many
/// numbers at once.
fn bf16_from_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let leading = (bits >> 16) as u16;
    // Without a leading mantissa bit, this would be an infinity.
    let nan = leading | u16::from(leading & 0x7f == 0) << 6;
    if x.is_nan() { nan } else { rounded }
}

/// The `f32` of a half-precision number, given by its bits. A NaN keeps its bits.
fn f16_to_f32(bits: u16) -> f32 {
    const INFINITY: u16 = 0x7c00;
    if bits & 0x7fff > INFINITY {
        let (sign, mantissa) = ((bits & 0x8000) as u32, (bits & 0x3ff) as u32);
        return f32::from_bits(sign << 16 | f32::INFINITY.to_bits() | mantissa << 13);
    }
    half::f16::from_bits(bits).to_f32()
}

/// The bits of the half-precision number nearest to `x`. A NaN keeps its leading bits; it becomes the quiet NaN where none
/// of those is set.
fn f16_from_f32(x: f32) -> u16 {
    if x.is_nan() {
        let bits = x.to_bits();
        let (sign, mantissa) = ((bits >> 16) as u16 & 0x8000, (bits >> 13) as u16 & 0x3ff);
        return sign | 0x7c00 | if mantissa == 0 { 0x200 } else { mantissa };
    }
    half::f16::from_f32(x).to_bits()
}

fn complex32_from_bytes(b: [u8; 8]) -> Complex32 {
    let bits = u64::from_le_bytes(b);
    Complex32::new(f32::from_bits(bits as u32), f32::from_bits((bits >> 32) as u32))
}

fn complex32_to_bytes(x: Complex32) -> [u8; 8] {
    (x.re.to_bits() as u64 | (x.im.to_bits() as u64) << 32).to_le_bytes()
}

fn complex64_from_bytes(b: [u8; 16]) -> Complex64 {
    let bits = u128::from_le_bytes(b);
    Complex64::new(f64::from_bits(bits as u64), f64::from_bits((bits >> 64) as u64))
}

fn complex64_to_bytes(x: Complex64) -> [u8; 16] {
    (x.re.to_bits() as u128 | (x.im.to_bits() as u128) << 64).to_le_bytes()
}
