//! The next number that a type has.

use memplan_ir::ElementType;

use super::Value;

/// Numbers as integers: one more or less is the next number away from zero or towards it.
pub(super) fn next_after<'w>(x: Value<'w>, y: Value<'w>) -> Value<'w> {
    let element = x.element();
    let integers = match element.byte_width() {
        2 => ElementType::S16,
        4 => ElementType::S32,
        _ => ElementType::S64,
    };
    let sign_bit = i64::MIN >> (64 - 8 * element.byte_width());
    let [a, b] = [x.bits(integers), y.bits(integers)];
    let is_nan = x.ne(x) | y.ne(y);
    let nan = x.number(f64::NAN).bits(integers);
    let [a_size, b_size] = [a & a.integer(!sign_bit), b & b.integer(!sign_bit)];
    let zero = a.integer(0);
    let [a_sign, b_sign] = [a & a.integer(sign_bit), b & b.integer(sign_bit)];
    let one = a.integer(1);
    let from_zero = b_size.eq(zero).select(b, b_sign | one);
    let towards_zero = a_size.gt(b_size) | a_sign.ne(b_sign);
    let next = a + towards_zero.select(a.integer(-1), one);
    let next = a_size.eq(zero).select(from_zero, next);
    let next = x.eq(y).select(b, next);
    is_nan.select(nan, next).bits(element)
}
