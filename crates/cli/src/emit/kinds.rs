//! What can be written, a row each.

use memplan::codegen::{c_header, write_constants};
use memplan::hlo;
use memplan::ipu::TileDocument;

use super::Program;
use super::costs::costs;
use super::program::json;
use crate::failure::Failure;

/// Something that a planned module can be written as.
pub(super) struct Kind {
    /// The word before `=`.
    pub(super) name: &'static str,
    /// One line for people.
    pub(super) description: &'static str,
    /// The bytes of the file with a name, which may decide the form.
    pub(super) contents: fn(&Program<'_>, &str) -> Result<Vec<u8>, Failure>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All kinds, in the order of the help text.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        name: "hlo",
        description: "the module that the plan describes",
        contents: |program, _| Ok(hlo::print(program.module).into_bytes()),
    },
    Kind {
        name: "plan",
        description: "the plan, as JSON",
        contents: |program, _| Ok(program.plan_json().into_bytes()),
    },
    Kind {
        name: "costs",
        description: "what each instruction costs by the cost model, as tab-separated values",
        contents: |program, _| Ok(costs(program).into_bytes()),
    },
    Kind {
        name: "layout",
        description: "spaces, buffers, launches and transfers with addresses, as a text if FILE ends in .txt, else as JSON",
        contents: |program, path| {
            let layout = program.layout();
            Ok(if path.ends_with(".txt") { layout.to_string() } else { json(layout) }.into_bytes())
        },
    },
    Kind {
        name: "c-header",
        description: "offsets, sizes and totals as constants for C and C++",
        contents: |program, _| Ok(c_header(program.layout()).into_bytes()),
    },
    Kind {
        name: "constants",
        description: "the bytes of constants, at the offsets that layout and c-header give",
        contents: constants,
    },
    Kind {
        name: "tiles",
        description: "what lies where on every tile of a machine that has some, as JSON",
        contents: tiles,
    },
];

fn constants(program: &Program<'_>, _: &str) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    write_constants(program.module, &program.planned.plan, &mut bytes)
        .map_err(|error| Failure::input(&error))?;
    Ok(bytes)
}

fn tiles(program: &Program<'_>, _: &str) -> Result<Vec<u8>, Failure> {
    let chips = program.tiles.ok_or_else(|| {
        let what = "is not planned by tiles here; `compile` for a machine that has some writes them";
        Failure::Usage(format!("`{}` {what}", program.target.name))
    })?;
    // There are very many numbers, so that nobody reads it line by line.
    let document = TileDocument::new(program.module, program.target, &chips.plans);
    let text = serde_json::to_string(&document).expect("documents have only string keys") + "\n";
    Ok(text.into_bytes())
}
