//! The name that was meant.

use memplan_memory::{closest, did_you_mean};

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
