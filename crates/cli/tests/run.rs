//! `memplan run`: its messages.

use crate::memplan;

/// An archive of nothing: the end of a zip file's directory.
const NO_ARRAYS: &[u8] = b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

#[test]
fn elements_that_the_text_leaves_out_are_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("none.npz"), NO_ARRAYS).unwrap();
    for (elements, warning) in
        [("{...}", "warning: the elements of constant `table` are not in the module"), ("{1,2}", "")]
    {
        let text = format!(
            "HloModule m\n\nENTRY e {{\n  table = f32[2]{{0}} constant({elements})\n  \
             ROOT r = f32[2]{{0}} negate(table)\n}}\n"
        );
        std::fs::write(folder.path().join("m.hlo"), text).unwrap();
        let output = memplan(folder.path(), &["run", "m.hlo", "--inputs", "none.npz"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.starts_with(warning), "{said}");
        assert_eq!(said.is_empty(), warning.is_empty(), "{said}");
    }
}
