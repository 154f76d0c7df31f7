//! Names, comments and strings in C.

use rustc_hash::{FxHashMap, FxHashSet};

/// Identifiers that are taken.
#[derive(Default)]
pub(super) struct Names {
    /// With their suffixes.
    pub(super) taken: FxHashSet<String>,
    /// The last number given to identifiers that would be equal.
    numbers: FxHashMap<String, u32>,
}

impl Names {
    /// An identifier like a name, numbered where with one of the suffixes it would be another one: the size of `x` is
    /// called what `x.size` is.
    pub(super) fn unique(&mut self, name: &str, suffixes: &[&str]) -> String {
        let base = identifier(name);
        let mut unique = base.clone();
        let with =
            |unique: &str| suffixes.iter().map(|suffix| format!("{unique}{suffix}")).collect::<Vec<_>>();
        while with(&unique).iter().any(|full| self.taken.contains(full)) {
            let number = self.numbers.entry(base.clone()).or_insert(1);
            *number += 1;
            unique = format!("{base}_{number}");
        }
        self.taken.extend(with(&unique));
        unique
    }
}

/// The prefix of all names of a module: it never begins with a digit, nor with an underscore, which C reserves.
pub(super) fn prefix(module: &str) -> String {
    let name = identifier(module);
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("M_{name}") } else { name }
}

/// A name in capitals, with one underscore for every run of characters that identifiers cannot have; none at the ends.
fn identifier(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join("_").to_ascii_uppercase();
    if joined.is_empty() { "X".into() } else { joined }
}

/// Text that does not end the comment that it is in.
pub(super) fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
}

/// A string literal. Question marks are escaped for the sake of trigraphs.
pub(super) fn string(text: &str) -> String {
    let mut literal = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | b'?' => literal.extend(['\\', char::from(byte)]),
            b' '..=b'~' => literal.push(char::from(byte)),
            _ => literal.push_str(&format!("\\{byte:03o}")),
        }
    }
    literal + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        for (name, expected) in
            [("fusion.3{0,1}", "FUSION_3_0_1"), ("__x__y", "X_Y"), ("größe", "GR_E"), ("%%", "X"), ("", "X")]
        {
            assert_eq!(identifier(name), expected, "{name}");
        }
        assert_eq!(prefix("3d_conv"), "M_3D_CONV");
    }

    #[test]
    fn equal_identifiers_are_numbered() {
        let mut names = Names::default();
        let all = ["a.b", "a_b", "a b 2", "a-b"].map(|name| names.unique(name, &["_SIZE"]));
        assert_eq!(all, ["A_B", "A_B_2", "A_B_2_2", "A_B_3"]);
    }

    #[test]
    fn suffixes_make_no_identifier_of_another_name() {
        let mut names = Names::default();
        let all = ["x", "x.size", "y.size", "y"].map(|name| names.unique(name, &["", "_SIZE"]));
        assert_eq!(all, ["X", "X_SIZE_2", "Y_SIZE", "Y_2"]);
    }

    #[test]
    fn strings_and_comments_end_where_they_should() {
        assert_eq!(string("a\"\\??\u{e9}1\n"), r#""a\"\\\?\?\303\2511\012""#);
        assert_eq!(comment("a*/b/*c\\\nd*/"), "a* /b/ *c  d* /");
        assert_eq!(comment("*/*/"), "* / * /");
    }
}
