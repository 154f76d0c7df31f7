//! Target files: all built-in ones are sound, and what is wrong with others is said with its place.

use memplan_ir::ElementType;
use memplan_memory::{Bytes, Family, MemorySpaceId, Target};

const NAMES: [&str; 21] = [
    "cpu",
    "gpu-a100",
    "gpu-a100-40gb",
    "gpu-h100",
    "gpu-h200",
    "gpu-b200",
    "gpu-gb200",
    "gpu-mi250x",
    "gpu-mi300x",
    "gpu-mi325x",
    "gpu-mi350x",
    "tpu-v2",
    "tpu-v3",
    "tpu-v4",
    "tpu-v5e",
    "tpu-v5p",
    "tpu-v6e",
    "tpu-v7x",
    "ipu-gc200",
    "ipu-bow",
    "toy",
];

#[test]
fn built_in_targets_are_sound() {
    let targets = Target::built_in();
    let names: Vec<_> = targets.iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names, NAMES);
    for target in &targets {
        target.validate().unwrap();
        assert_eq!(target.layout.is_some(), target.family == Family::Tpu, "{}", target.name);
        assert_eq!(target.tiles.is_some(), target.family == Family::Ipu, "{}", target.name);
        let text = toml::to_string(target).unwrap();
        assert_eq!(&Target::parse(&text, "again.toml").unwrap(), target, "{}", target.name);
    }
}

#[test]
fn figures_of_the_fact_sheet() {
    let find = |name| Target::find(name).unwrap();
    let v5e = find("tpu-v5e");
    assert_eq!(v5e.spaces[0].usable(), Some(Bytes(63 << 28)), "15.75 GiB");
    assert_eq!(v5e.space(MemorySpaceId(1)).unwrap().capacity, Some(Bytes(128 << 20)));
    assert_eq!(v5e.rates.get(ElementType::S4), Some(7.88e14));
    assert_eq!(v5e.rates.get(ElementType::F64), None);
    assert!(find("tpu-v4").space(MemorySpaceId(3)).is_some(), "CMEM");
    assert_eq!(find("ipu-gc200").tiles.unwrap().bytes, Bytes(638_976));
}

/// DEVICES.md section 4.4: bytes and bytes a second; and alignment and granules of section 4.3.
#[test]
fn gpus_of_the_fact_sheet() {
    let rows: [(&str, u64, f64); 10] = [
        ("gpu-a100-40gb", 42_331_013_120, 1.5552e12),
        ("gpu-a100", 85_100_068_864, 2.03904e12),
        ("gpu-h100", 84_942_979_072, 3.35232e12),
        ("gpu-h200", 151_397_597_184, 4.8e12),
        ("gpu-b200", 191_514_411_008, 7.67232e12),
        ("gpu-gb200", 197_897_748_480, 7.928064e12),
        ("gpu-mi250x", 67_628_957_696, 1.6384e12),
        ("gpu-mi300x", 192 << 30, 5.3e12),
        ("gpu-mi325x", 256 << 30, 6.0e12),
        ("gpu-mi350x", 288 << 30, 7.782e12),
    ];
    for (name, bytes, bandwidth) in rows {
        let target = Target::find(name).unwrap();
        let main = &target.spaces[0];
        assert_eq!((main.capacity, main.bandwidth), (Some(Bytes(bytes)), Some(bandwidth)), "{name}");
        assert_eq!((target.argument_alignment.bytes(), main.alignment.bytes()), (16, 256), "{name}");
        let has_multicast = ["h100", "h200", "b200"].iter().any(|chip| name.ends_with(chip));
        let collective = target.space(MemorySpaceId(1)).unwrap();
        assert_eq!(collective.granule.bytes(), if has_multicast { 2 << 20 } else { 1 }, "{name}");
        assert!(target.space(MemorySpaceId(5)).is_some(), "pinned host memory");
    }
}

#[test]
fn errors_say_where() {
    let toy = include_str!("../targets/toy.toml");
    let tpu = include_str!("../targets/tpu-v5e.toml");
    let error = |source: &str, from: &str, to: &str| {
        assert!(source.contains(from), "{from}");
        Target::parse(&source.replacen(from, to, 1), "mine.toml").unwrap_err().to_string()
    };
    let cases = [
        (toy, "family = \"toy\"\n", "", "mine.toml:1:1: missing field `family`"),
        (toy, "name = \"fast\"\n", "", "mine.toml:13:1: missing field `name`"),
        (toy, "= 1024", "= -1024", "mine.toml:16:12: invalid value: integer `-1024`, expected u64"),
        (
            toy,
            "argument_alignment = 1",
            "argument_alignment = 12",
            "mine.toml:5:22: an alignment is a power of two, not 12",
        ),
        (toy, "capacity = 1024", "size = 1024", "mine.toml:16:1: unknown field `size`"),
        (
            toy,
            "capacity = 1024",
            "capacity = 1024\nreserved = 2048",
            "mine.toml:17:12: `fast` reserves more than it has",
        ),
        (toy, "id = 1", "id = 0", "mine.toml:14:6: memory space S(0) is there twice"),
        (tpu, "lanes = 128", "lanes = 100", "a tile is a power of two, at most 65536, not 100"),
        (tpu, "sublanes = 8", "", "missing field `sublanes`"),
        (tpu, "bf16 = 1.97e14", "bf17 = 1.97e14", "`bf17` is not an element type"),
        (tpu, "to = 5", "to = 4", "there is no memory space S(4)"),
    ];
    for (source, from, to, expected) in cases {
        let message = error(source, from, to);
        assert!(message.contains(expected), "{message}\ninstead of\n{expected}");
        assert!(message.starts_with("mine.toml:"), "{message}");
    }
}
