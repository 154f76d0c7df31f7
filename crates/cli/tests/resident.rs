//! `memplan plan A B --resident`: programs that one process has loaded.

use crate::{failure, memplan, repository};

fn modules() -> [String; 2] {
    ["examples/attention.hlo.txt", "tests/questions/training_step.hlo"]
        .map(|path| repository(path).display().to_string())
}

#[test]
fn what_is_left_beside_two_programs() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = modules();
    let json = |modules: &[&str], more: &[&str]| {
        let args =
            [&["plan"], modules, &["--resident", "--target", "gpu-h100", "--format", "json"], more].concat();
        let output = memplan(folder.path(), &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let (alone, other, both) = (json(&[&a], &[]), json(&[&b], &[]), json(&[&a, &b], &[]));
    let bytes = |value: &serde_json::Value, name: &str| value[name].as_u64().unwrap();
    assert_eq!(both["programs"].as_array().unwrap().len(), 2);
    let sum = |name| bytes(&alone, name) + bytes(&other, name);
    assert_eq!(bytes(&both, "all_running"), sum("all_running"));
    // Only one arena is needed at a time.
    assert!(bytes(&both, "one_running") < sum("one_running"));
    assert_eq!(bytes(&both, "left"), bytes(&both, "limit") - bytes(&both, "one_running"));
    let larger = json(&[&a, &b], &["--memory-fraction", "0.9"]);
    assert!(bytes(&larger, "left") > bytes(&both, "left"));
}

#[test]
fn programs_that_do_not_fit_together() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = modules();
    let args = ["plan", &a, &b, "--resident", "--target", "mcu-cortex-m7"];
    let output = memplan(folder.path(), &args);
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("together"));
}

#[test]
fn several_programs_need_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let [a, b] = modules();
    let (text, status) = failure(folder.path(), &["plan", &a, &b]);
    assert!(text.contains("--resident") && status == 2, "{status}: {text}");
}
