//! Flags without effect are wrong usage: the user expects something from each flag.

use crate::failure::Failure;

/// The names of the flags that the user gave.
pub(crate) fn given<const N: usize>(flags: [(&'static str, bool); N]) -> Vec<&'static str> {
    flags.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag).collect()
}

/// Rejects flags that were given but have no effect.
///
/// # Errors
/// [`Failure::Usage`] names the first such flag, and the reason.
pub(crate) fn refuse(given: &[&str], because: &str) -> Result<(), Failure> {
    given
        .first()
        .map_or(Ok(()), |flag| Err(Failure::Usage(format!("error: `{flag}` has no effect here: {because}"))))
}
