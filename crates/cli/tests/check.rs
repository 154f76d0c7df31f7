//! `memplan check`: plans that it can read, and what it says of other files.

use crate::memplan;

#[test]
fn a_report_is_not_a_plan() {
    let folder = tempfile::tempdir().unwrap();
    let text = "HloModule m, is_scheduled=true\n\nENTRY e {\n  p = f32[2]{0} parameter(0)\n  ROOT r = f32[2]{0} negate(p)\n}\n";
    std::fs::write(folder.path().join("m.hlo"), text).unwrap();
    for (format, is_plan) in [("text", false), ("json", true)] {
        let output = memplan(folder.path(), &["plan", "m.hlo", "--format", format, "-o", "plan"]);
        assert!(output.status.success());
        let output = memplan(folder.path(), &["check", "m.hlo", "plan"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.success(), is_plan, "{said}");
        assert_eq!(said.contains("--format json"), !is_plan, "{said}");
    }
}
