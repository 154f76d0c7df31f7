//! Every text of the corpus parses, and the printed text parses to the same text again.

use memplan_hlo::{parse, print, render};
use memplan_testkit::{FORMS, corpus};

#[test]
fn printing_is_a_fixed_point() {
    for path in corpus().iter().flat_map(|program| FORMS.map(|form| program.text_path(form))) {
        let source = std::fs::read_to_string(&path).expect("the corpus is readable");
        let module = parse(&source)
            .unwrap_or_else(|error| panic!("{}", render(&error, &path.display().to_string(), &source)));
        // XLA wrote these texts, and we write what XLA writes; but for negative zero, which it does not read back.
        let (source, printed) = (source.replace("constant(-0)", "constant(0)"), print(&module));
        assert_eq!(first_difference(&source, &printed), None, "{}", path.display());
    }
}

/// The first line in which two texts differ.
fn first_difference<'a>(a: &'a str, b: &'a str) -> Option<(&'a str, &'a str)> {
    if a == b {
        return None;
    }
    let same = a.lines().zip(b.lines()).find(|(a, b)| a != b);
    Some(same.unwrap_or(("", "one text is longer")))
}
