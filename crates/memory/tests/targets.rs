//! Target files: all built-in ones are sound, and errors in others name their position.

use memplan_ir::{ElementType, Shape};
use memplan_memory::{Alignment, Bytes, Family, MemorySpaceId, Target, TargetError};

const NAMES: [&str; 25] = [
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
    "mcu-cortex-m7",
    "mcu-nrf52840",
    "mcu-rp2040",
    "mcu-stm32f746",
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
fn known_figures() {
    let find = |name| Target::find(name).unwrap();
    let v5e = find("tpu-v5e");
    assert_eq!(v5e.spaces[0].usable(), Some(Bytes(63 << 28)), "15.75 GiB");
    assert_eq!(v5e.space(MemorySpaceId(1)).unwrap().capacity, Some(Bytes(128 << 20)));
    assert_eq!(v5e.rates.get(ElementType::S4), Some(7.88e14));
    assert_eq!(v5e.rates.get(ElementType::F64), None);
    assert!(find("tpu-v4").space(MemorySpaceId(3)).is_some(), "CMEM");
    assert_eq!(find("ipu-gc200").tiles.unwrap().bytes, Bytes(638_976));
}

/// Bytes and bytes a second as XLA's target files and, for AMD, the vendor's data sheets have them; and what XLA aligns to.
#[test]
fn known_figures_of_gpus() {
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

/// The numbers that verdicts and cost models rest on.
#[test]
fn every_number_has_a_source() {
    for target in Target::built_in().into_iter().filter(|target| target.family != Family::Toy) {
        let sources = Target::sources(Target::built_in_file(&target.name).unwrap());
        for (i, space) in target.spaces.iter().enumerate() {
            for (field, is_there) in [
                ("capacity", space.capacity.is_some()),
                ("bandwidth", space.bandwidth.is_some()),
                ("reserved", space.reserved > Bytes(0)),
                ("kernel_scratch", space.kernel_scratch > Bytes(0)),
                ("kernel_scratch_per_byte", space.kernel_scratch_per_byte.is_some()),
                ("kernel_scratch_base", space.kernel_scratch_base > Bytes(0)),
            ] {
                let path = format!("spaces[{i}].{field}");
                assert!(!is_there || sources.contains_key(&path), "{}: {path} has no source", target.name);
            }
        }
        let rates = ["bf16", "f16", "f32", "f64", "s8"];
        for rate in rates.iter().filter(|rate| target.rates.get(rate.parse().unwrap()).is_some()) {
            assert!(sources.contains_key(&format!("rates.{rate}")), "{}: {rate}", target.name);
        }
        assert!(sources.values().all(|source| !source.is_empty()), "{}", target.name);
    }
}

#[test]
fn sources_are_found_beside_numbers() {
    let text = "name = \"a # b\" # its name\n[spaces] # all\nid = 0\nsize = 3 # three\n[rates]\nf32 = 1.0";
    let sources = Target::sources(text);
    let found: Vec<(&str, &str)> = sources.iter().map(|(path, source)| (&**path, &**source)).collect();
    assert_eq!(found, [("name", "its name"), ("spaces.id", "all"), ("spaces.size", "three")]);
}

#[test]
fn fields_are_described() {
    let fields = Target::fields();
    let find =
        |path: &str| fields.iter().find(|field| field.path == path).unwrap_or_else(|| panic!("{path}"));
    assert_eq!(find("spaces[].capacity").kind, "a number of bytes");
    assert_eq!(find("spaces[].capacity").default.as_deref(), Some("none"));
    assert_eq!(find("spaces[].alignment").default, None);
    assert_eq!(find("tuple_entry_bytes").kind, "a whole number");
    assert_eq!(find("argument_alignment").default.as_deref(), Some("1"));
    assert_eq!(find("fusion.dot.prologue").kind, "true or false");
    assert_eq!(find("rates").kind, "a table of numbers");
    assert!(find("family").kind.contains("`gpu`"));
    assert!(fields.iter().all(|field| !field.description.is_empty()));
}

/// A machine with one memory, and nothing special about its tuples, arguments and constants.
#[test]
fn a_target_is_a_name_a_family_and_a_memory() {
    let text = "name = \"mine\"\nfamily = \"other\"\n[[spaces]]\nid = 0\nname = \"main\"\nalignment = 64\n";
    let target = Target::parse(text, "mine.toml").unwrap();
    assert_eq!(target.size_of(&Shape::tuple([Shape::Token])), Bytes::ZERO);
    assert_eq!(target.argument_alignment, Alignment::ONE);
    assert_eq!(target.embedded_constant_bytes, Bytes::ZERO);
}

/// Each kind of mistake: the place, what is wrong, and what may stand there.
#[test]
fn errors_say_where() {
    let toy = include_str!("../targets/toy.toml");
    let tpu = include_str!("../targets/tpu-v5e.toml");
    let ipu = include_str!("../targets/ipu-gc200.toml");
    let capacity = "`spaces[].capacity` is a number of bytes";
    let cases = [
        (toy, "family = \"toy\"\n", "", "1:1: missing field `family`", "`family` is one of `cpu`"),
        (toy, "name = \"fast\"\n", "", "13:1: missing field `name`", "`spaces[].name` is a text"),
        (
            toy,
            "= 1024",
            "= -1024",
            "16:12: invalid value: integer `-1024`, expected a number of bytes, or text such as \"8 MiB\"",
            capacity,
        ),
        (toy, "= 1024", "= 1e30", "16:12: invalid type: floating point", capacity),
        (toy, "= 1024", "= \"1 sack\"", "16:12: ", capacity),
        (
            toy,
            "= 1024",
            "= 99999999999999999999",
            "16:12: invalid type: integer `99999999999999999999`",
            capacity,
        ),
        (toy, "= 1024", "= [1024", ":17:", ""),
        (toy, "capacity = 1024", "size = 1024", "16:1: unknown field `size`, expected one of `id`", ""),
        (
            toy,
            "argument_alignment = 1",
            "argument_alignment = 12",
            "5:22: an alignment is a power of two, not 12",
            "`argument_alignment` is a number of bytes, a power of two",
        ),
        (
            toy,
            "capacity = 1024",
            "capacity = 1024\nreserved = 2048",
            "17:12: `fast` reserves more than it has",
            "`spaces[].reserved` is a number of bytes",
        ),
        (toy, "id = 1", "id = 0", "14:6: memory space S(0) is there twice", "`spaces[].id` is the number"),
        (toy, "\"fast\"", "\"main\"", "15:8: every memory space has a name of its own", "`spaces[].name`"),
        (toy, "name = \"toy\"", "name = \"a\"\nname = \"b\"", "2:1: duplicate key", ""),
        (
            toy,
            "\"toy\"\nfamily = \"toy\"",
            "\"toy\"\nfamily = \"tpuu\"",
            "2:10: unknown variant `tpuu`",
            "`family`",
        ),
        (
            tpu,
            "lanes = 128",
            "lanes = 100",
            ": a tile is a power of two, at most 65536, not 100",
            "`layout.lanes`",
        ),
        (
            tpu,
            "kernel_scratch = 16777216",
            "kernel_scratch = 268435456",
            ": the scratch of a kernel is more than `vmem` has",
            "`spaces[].kernel_scratch` is a number of bytes",
        ),
        (
            tpu,
            "kernel_scratch_base = 524288",
            "kernel_scratch_base = 33554432",
            ": a kernel's scratch begins with more than it may have",
            "`spaces[].kernel_scratch_base` is a number of bytes",
        ),
        (
            tpu,
            "kernel_scratch_per_byte = 2 ",
            "# ",
            ": without `kernel_scratch_per_byte` every kernel uses all it may have",
            "`spaces[].kernel_scratch_base`",
        ),
        (
            tpu,
            "kernel_scratch_per_byte = 2",
            "kernel_scratch_per_byte = -2",
            ": invalid value: integer `-2`, expected u64",
            "`spaces[].kernel_scratch_per_byte` is a whole number",
        ),
        (tpu, "sublanes = 8", "", ": missing field `sublanes`", "`layout.sublanes`"),
        (tpu, "bf16 = 1.97e14", "bf17 = 1.97e14", ": `bf17` is not an element type", "`rates`"),
        (tpu, "bf16 = 1.97e14", "bf16 = -1.0", ": a rate must be above zero", "`rates`"),
        (
            tpu,
            "bandwidth = 8.2e11",
            "bandwidth = nan",
            ": the bandwidth of `hbm` must be above zero",
            "`spaces[].bandwidth`",
        ),
        (
            tpu,
            "to = 5",
            "to = 4",
            ": there is no memory space S(4)",
            "`transfers[].to` is the number of a memory space",
        ),
        (
            tpu,
            "from = 1\nto = 0",
            "from = 0\nto = 1",
            ": the transfer from S(0) to S(1) is there twice",
            "`transfers[].to`",
        ),
        (
            tpu,
            "from = 1\nto = 0",
            "from = 1\nto = 1",
            ": a transfer ends in another memory space",
            "`transfers[].to`",
        ),
        (
            tpu,
            "prologue = true",
            "prologue = \"yes\"",
            ": invalid type: string \"yes\", expected a boolean",
            "prologue` is true or false",
        ),
        (
            ipu,
            "count = 1472 ",
            "count = 1471 ",
            ": main memory is as large as its tiles together",
            "`spaces[].capacity`",
        ),
        (
            ipu,
            "count = 1472 ",
            "count = 99999999999 ",
            ": invalid value: integer `99999999999`, expected u32",
            "`tiles.count`",
        ),
        (
            ipu,
            "code_bytes = 212992",
            "code_bytes = 700000",
            ": code may lie in more than a tile has",
            "`tiles.code_bytes`",
        ),
        (
            ipu,
            "proportion = 0.6",
            "proportion = 1.5",
            ": the part of a tile for temporaries is from 0 to 1",
            "`tiles.temporary_proportion`",
        ),
    ];
    for (source, from, to, expected, expected_help) in cases {
        assert!(source.contains(from), "{from}");
        let error = Target::parse(&source.replacen(from, to, 1), "mine.toml").unwrap_err();
        let message = error.to_string();
        let TargetError::File { help, span, .. } = error else { panic!("{message}") };
        assert!(message.starts_with("mine.toml:"), "{message}");
        assert!(message["mine.toml".len()..].contains(expected), "{message}\ninstead of\n{expected}");
        let help = help.unwrap_or_default();
        assert!(
            help.contains(expected_help) && help.is_empty() == expected_help.is_empty(),
            "{message}: {help}"
        );
        assert!(span.start <= source.len() + to.len());
    }
}
