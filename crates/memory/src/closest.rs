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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_names_are_found() {
        let names = ["cpu", "gpu-h100", "gpu-h200", "tpu-v5e", "tpu-v5p"];
        for (given, meant) in [
            ("gpu-h10", Some("gpu-h100")),
            ("h100", None),
            ("TPU-V5E", Some("tpu-v5e")),
            ("tpu-v5", Some("tpu-v5e")),
            ("x", None),
        ] {
            assert_eq!(closest(given, names), meant, "{given}");
        }
        assert_eq!(did_you_mean("cpus", names), "; did you mean `cpu`?");
        assert_eq!(did_you_mean("", []), "");
    }
}
