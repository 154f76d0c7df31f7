//! Fractions of bytes in options.

/// One part in so many: `OneIn(16)` is a sixteenth. Fractions of bytes are divisions of integers, so that every machine
/// takes the same decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneIn(pub u64);

impl OneIn {
    /// That part of a quantity, rounded down. One in zero is all of it.
    ///
    /// ```
    /// assert_eq!(memplan_rewriter::OneIn(16).of(100), 6);
    /// ```
    pub fn of(self, quantity: u64) -> u64 {
        quantity / self.0.max(1)
    }
}
