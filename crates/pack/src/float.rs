//! Floating-point functions that `core` lacks. Roots are equal in both versions; powers may differ in the last bit, and
//! with them packings of problems with thousands of items.

#[cfg(feature = "std")]
pub(crate) fn sqrt(x: f64) -> f64 {
    x.sqrt()
}

#[cfg(feature = "std")]
pub(crate) fn pow(x: f64, exponent: f64) -> f64 {
    x.powf(exponent)
}

#[cfg(not(feature = "std"))]
pub(crate) use libm::{pow, sqrt};
