//! The two machine floats behind one trait, so that each operation is written once.

use num_traits::{Float, FloatConst};

/// `f32` or `f64`.
pub(crate) trait Real: Float + FloatConst + 'static {
    const ZERO: Self;
    const HALF: Self;
    const ONE: Self;
    fn round_ties_even(self) -> Self;
    fn erf(self) -> Self;
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const HALF: f32 = 0.5;
    const ONE: f32 = 1.0;
    fn round_ties_even(self) -> f32 {
        f32::round_ties_even(self)
    }
    fn erf(self) -> f32 {
        libm::erff(self)
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const HALF: f64 = 0.5;
    const ONE: f64 = 1.0;
    fn round_ties_even(self) -> f64 {
        f64::round_ties_even(self)
    }
    fn erf(self) -> f64 {
        libm::erf(self)
    }
}
