//! Suggests a name for an unknown one.

/// The closest of the names that there are; `None` where none is so close that it is likely meant.
pub fn closest<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    /// Of two names that differ in one letter or two, or of which one is the beginning of the other, the likeness is
    /// above this; unrelated names are below.
    const LEAST_LIKENESS: f64 = 0.8;
    let given = given.to_lowercase();
    let scored = names.into_iter().map(|name| (strsim::jaro_winkler(&given, &name.to_lowercase()), name));
    // The first of equally close ones.
    let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    (best.0 >= LEAST_LIKENESS).then_some(best.1)
}

/// The end of an error message about an unknown name: `; did you mean `gpu-h100`?`, or empty.
pub fn did_you_mean<'n>(given: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    closest(given, names).map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}
