//! Programs and files that are not HLO: names their format, and the command that makes HLO.

/// The call by which JAX writes HLO text with the source line of every operation.
pub(crate) const JAX_RECIPE: &str =
    "`jax.jit(f).lower(*args).as_text(dialect=\"hlo\", debug_info=True)` writes HLO text with source lines";

/// A kind of file that users give instead of HLO.
struct Form {
    is: fn(&[u8]) -> bool,
    name: &'static str,
    help: &'static str,
}

/// Binary formats come before texts.
const FORMS: &[Form] = &[
    Form {
        is: |bytes| bytes.starts_with(b"\x28\xb5\x2f\xfd"),
        name: "compressed with zstd",
        help: "`zstd -d FILE` unpacks it; `.gz` is read as it is",
    },
    Form {
        is: |bytes| bytes.starts_with(b"\xfd7zXZ\x00"),
        name: "compressed with xz",
        help: "`xz -d FILE` unpacks it; `.gz` is read as it is",
    },
    Form {
        is: |bytes| bytes.starts_with(b"BZh") && bytes.get(4..10) == Some(b"1AY&SY"),
        name: "compressed with bzip2",
        help: "`bzip2 -d FILE` unpacks it; `.gz` is read as it is",
    },
    Form {
        is: |bytes| bytes.get(257..262) == Some(b"ustar"),
        name: "a tar archive",
        help: "`tar -xf FILE` unpacks it; memplan reads a folder of modules as it is",
    },
    Form {
        is: |bytes| bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"7z\xbc\xaf\x27\x1c"),
        name: "an archive",
        help: "unpack it; of compressed files `.gz` is read as it is",
    },
    Form {
        is: memplan::tflite::is_model,
        name: "a TFLite model",
        help: "`memplan plan MODEL.tflite --emit tflite-micro=PLANNED.tflite` plans it; other verbs need HLO",
    },
    Form {
        is: |bytes| {
            bytes.get(4..6) == Some(b"ET")
                && bytes.get(6..8).is_some_and(|n| n.iter().all(u8::is_ascii_digit))
        },
        name: "an ExecuTorch program",
        help: "memplan plans the program that it was made from; `--emit executorch` writes offsets for it",
    },
    Form {
        is: is_onnx,
        name: "an ONNX model",
        help: "make HLO from the program that it was exported from, in JAX, TensorFlow or PyTorch/XLA",
    },
    Form {
        is: |bytes| bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff"),
        name: "text in UTF-16",
        help: "save it as UTF-8; `>` in Windows PowerShell writes UTF-16, `| Set-Content -Encoding utf8` does not",
    },
    Form { is: |bytes| text_of(bytes).starts_with("{ lambda"), name: "a jaxpr", help: JAX_RECIPE },
    Form {
        is: |bytes| text_of(bytes).starts_with("BufferAssignment:"),
        name: "XLA's buffer assignment, which has no program",
        help: "the module is beside it; `memplan plan FOLDER` finds both",
    },
    Form {
        is: |bytes| text_of(bytes).contains("\"memplan.plan\""),
        name: "a plan file, which has no program",
        help: "`memplan check MODULE PLAN` proves it, and `memplan diff PLAN PLAN` compares two",
    },
    Form {
        is: holds_module,
        name: "a log or another text with a module in it",
        help: "cut out the module: from the line that begins with `HloModule` to the last `}`",
    },
    Form {
        is: is_log,
        name: "a log",
        help: "XLA writes modules into a folder with `XLA_FLAGS=\"--xla_dump_to=FOLDER --xla_dump_hlo_as_text\"`",
    },
    Form { is: is_python, name: "a Python program", help: JAX_RECIPE },
];

/// The format of a file that is not HLO, and advice; `None` if it is unknown.
pub(super) fn name(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    let form = FORMS.iter().find(|form| (form.is)(bytes)).filter(|_| !begins_as_hlo(bytes));
    form.map(|form| (form.name, form.help))
}

/// Whether a text is meant as HLO, even if it mentions other formats.
pub(super) fn begins_as_hlo(bytes: &[u8]) -> bool {
    let lines = text_of(bytes).lines().map(str::trim);
    lines
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .take(1)
        .any(|line| line.starts_with("HloModule"))
}

/// The number of bytes to look at.
const LOOK: usize = 1 << 16;

/// The beginning of a text, without leading white space; empty if the file is not text.
fn text_of(bytes: &[u8]) -> &str {
    let start = &bytes[..bytes.len().min(LOOK)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&start[..error.valid_up_to()]).expect("valid up to there"),
    };
    text.trim_start()
}

/// Text of MLIR begins with a module, a function, or aliases of attributes and locations.
pub(super) fn is_mlir(bytes: &[u8]) -> bool {
    if begins_as_hlo(bytes) {
        return false;
    }
    let text = text_of(bytes);
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
    let begins = |first: &str| {
        let word = first.split(['@', '{', ' ', '=']).next().unwrap_or_default();
        matches!(word, "module" | "builtin.module" | "func.func") || word.starts_with('#')
    };
    first.is_some_and(begins) || ["stablehlo.", "mhlo.", "func.func"].iter().any(|op| text.contains(op))
}

/// An ONNX model begins with the version of the format, a small number, followed by the name of its producer.
fn is_onnx(bytes: &[u8]) -> bool {
    let &[0x08, version, 0x12, n, ref rest @ ..] = bytes else { return false };
    let producer = rest.get(..usize::from(n));
    version < 64
        && producer
            .is_some_and(|name| !name.is_empty() && name.iter().all(|&c| c.is_ascii_graphic() || c == b' '))
}

/// A module after other lines.
fn holds_module(bytes: &[u8]) -> bool {
    text_of(bytes).contains("\nHloModule ")
}

/// Log lines of XLA, TensorFlow and Python, or a stack trace.
fn is_log(bytes: &[u8]) -> bool {
    let is_logged = |line: &str| {
        let time = line.trim_start_matches(['I', 'W', 'E', 'F', '[']);
        let begins =
            |n| time.as_bytes().get(..n).is_some_and(|digits: &[u8]| digits.iter().all(u8::is_ascii_digit));
        // `2026-11-23 20:05:01`, `E1123 20:05:01.123456`, `Traceback (most recent call last):`
        begins(4) && (time[4..].starts_with('-') || time.len() < line.len() && time[4..].starts_with(' '))
            || line.starts_with("Traceback (most recent")
            || line.contains("RESOURCE_EXHAUSTED")
    };
    text_of(bytes).lines().take(40).any(is_logged)
}

fn is_python(bytes: &[u8]) -> bool {
    let is_statement = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["import", name, ..] => !name.contains(['{', '=']),
            ["from", _, "import", ..] => true,
            ["def" | "class", ..] => line.trim_end().ends_with(':'),
            _ => line.starts_with("#!") && line.contains("python"),
        }
    };
    text_of(bytes).lines().take(200).any(is_statement)
}
