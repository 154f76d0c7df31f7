//! What `core` does not know of floating-point numbers. Roots are the same in both versions; powers may differ in the last bit,
//! and so then may packings of problems with thousands of items.

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
