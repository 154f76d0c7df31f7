//! What XLA does to programs that memplan would not: rewrites that only an estimate of XLA runs.
//!
//! Each keeps what a program means, but not what it needs: numbers in a wider type, values computed long before they are
//! used, operands that only make a library's work easier. They have the names of XLA's passes, and a compiler's file says
//! which of them it runs.

mod convolution_canonicalization;
mod convolution_padding;
mod float_normalization;
mod stable_sort_expander;

pub use convolution_canonicalization::CONVOLUTION_CANONICALIZATION;
pub use convolution_padding::CONVOLUTION_PADDING_LEGALIZATION;
pub use float_normalization::FLOAT_NORMALIZATION;
pub use stable_sort_expander::STABLE_SORT_EXPANDER;
