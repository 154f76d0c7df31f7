//! Two programs beside each other, with the list of changes.

use memplan::advice::diff::{Diff, signed};
use memplan::codegen::view::{Row, Table};

use super::programs::{Compared, Setting};
use super::text::lines;
use crate::emit::{Shown, page_of_two};
use crate::failure::Failure;

/// The page of the program that changed most.
pub(super) fn page(compared: &Compared, setting: &Setting) -> Result<String, Failure> {
    let [before, after] = compared.modules.as_ref().ok_or_else(|| {
        Failure::Usage("a page shows programs, and a plan file has none; give the modules instead".into())
    })?;
    let shown = |name, (module, planned)| Shown { name, module, target: &setting.target, planned };
    let before = shown("before", (&before.0, &before.1));
    let after = shown("after", (&after.0, &after.1));
    Ok(page_of_two(before, after, &tables(&compared.programs[0])))
}

/// The causes and changes, of main memory and of the others.
fn tables(diff: &Diff) -> Vec<Table> {
    let memories = std::iter::once(&diff.main).chain(&diff.other_memories);
    let tables = memories.flat_map(|memory| {
        let title = |what: &str| match memory.space == diff.main.space {
            true => what.to_string(),
            false => format!("{}: {what}", memory.memory),
        };
        let cause = |cause: &memplan::advice::diff::Cause| Row {
            cells: vec![signed(cause.bytes), cause.what.clone()],
            query: String::new(),
        };
        let change = |change: &memplan::advice::diff::ValueChange| Row {
            cells: [vec![signed(change.bytes())], lines(change).to_vec()].concat(),
            query: format!("{} {}", change.operation, change.class),
        };
        let columns = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        [
            Table {
                title: title("why"),
                columns: columns(&["bytes", "why"]),
                rows: memory.causes.iter().map(cause).collect(),
            },
            Table {
                title: title("what changed at the peak"),
                columns: columns(&["bytes", "what", "values"]),
                rows: memory.changes.iter().map(change).collect(),
            },
        ]
    });
    tables.filter(|table| !table.rows.is_empty()).collect()
}
