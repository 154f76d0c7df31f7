//! Flags that would do nothing. Whoever gives one expects something of it, so it is wrong usage.

use crate::failure::Failure;

/// The names of the flags that were given.
pub(crate) fn given<const N: usize>(flags: [(&'static str, bool); N]) -> Vec<&'static str> {
    flags.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag).collect()
}

/// Refuses flags that were given although they do nothing.
///
/// # Errors
/// [`Failure::Usage`] names the first of them, and why.
pub(crate) fn refuse(given: &[&str], because: &str) -> Result<(), Failure> {
    given
        .first()
        .map_or(Ok(()), |flag| Err(Failure::Usage(format!("error: `{flag}` does nothing here: {because}"))))
}
