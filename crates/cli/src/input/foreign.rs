//! Programs and files that are not HLO: named for what they are, with the call that makes HLO.

/// How JAX writes HLO text with the source line of every operation.
pub(crate) const JAX_RECIPE: &str =
    "`jax.jit(f).lower(*args).as_text(dialect=\"hlo\", debug_info=True)` is HLO text with source lines";

/// A kind of file that people have where HLO is expected.
struct Form {
    is: fn(&[u8]) -> bool,
    name: &'static str,
    help: &'static str,
}

const FORMS: [Form; 6] = [
    Form {
        is: |bytes| bytes.starts_with(b"ML\xefR"),
        name: "StableHLO, or another dialect of MLIR, as bytecode",
        help: JAX_RECIPE,
    },
    Form { is: is_mlir, name: "StableHLO, or another dialect of MLIR", help: JAX_RECIPE },
    Form { is: |bytes| text_of(bytes).starts_with("{ lambda"), name: "a jaxpr", help: JAX_RECIPE },
    Form {
        is: |bytes| text_of(bytes).starts_with("BufferAssignment:"),
        name: "XLA's buffer assignment, which has no program",
        help: "the module lies beside it; `memplan plan FOLDER` finds both",
    },
    Form {
        is: |bytes| text_of(bytes).contains("\"memplan.plan\""),
        name: "a plan file, which has no program",
        help: "`memplan check MODULE PLAN` proves it, and `memplan diff PLAN PLAN` compares two",
    },
    Form {
        is: |bytes| bytes.starts_with(b"PK\x03\x04"),
        name: "an archive",
        help: "unpack it; of compressed files `.gz` is read as it is",
    },
];

/// What a file is that is not HLO, and what to do; nothing where nobody knows.
pub(super) fn name(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    FORMS.iter().find(|form| (form.is)(bytes)).map(|form| (form.name, form.help))
}

/// How much of a file is looked at.
const LOOK: usize = 1 << 16;

/// The beginning of a text, without white space before it; nothing of what is no text.
fn text_of(bytes: &[u8]) -> &str {
    let start = &bytes[..bytes.len().min(LOOK)];
    let text = match std::str::from_utf8(start) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&start[..error.valid_up_to()]).expect("valid up to there"),
    };
    text.trim_start()
}

/// Text of MLIR begins with a module, a function, or with aliases of attributes and locations.
fn is_mlir(bytes: &[u8]) -> bool {
    let text = text_of(bytes);
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("//"));
    let begins = |first: &str| {
        let word = first.split(['@', '{', ' ', '=']).next().unwrap_or_default();
        matches!(word, "module" | "builtin.module" | "func.func") || word.starts_with('#')
    };
    first.is_some_and(begins) || ["stablehlo.", "mhlo.", "func.func"].iter().any(|op| text.contains(op))
}
