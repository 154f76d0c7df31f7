//! Pages of planned programs: one program, or two beside each other.

use memplan::advice::diff::partners;
use memplan::advice::{Holder, Words, operation};
use memplan::codegen::view::{Beside, Page, Stage, Table, ValueNotes, View, html};
use memplan::ir::{Module, Position};
use memplan::memory::{Bytes, HolderEntry, Target};
use memplan::plan::Planned;

/// A program with its name on the page.
#[derive(Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) name: &'a str,
    pub(crate) module: &'a Module,
    pub(crate) target: &'a Target,
    pub(crate) planned: &'a Planned,
}

/// The view of a program, in the words of the report.
pub(super) fn view(module: &Module, target: &Target, planned: &Planned) -> View {
    let words = Words::new(module, &planned.facts);
    let flow = &planned.facts.flow;
    View::new(module, target, planned, |value| {
        let definition = flow.values[value].definition;
        let position = Position {
            instruction: flow.positions.instruction(definition),
            index: flow.positions.shape_index(definition).clone(),
        };
        let holder = Holder::new(&words, value, &position, Bytes::ZERO);
        ValueNotes {
            operation: operation(module, words.maker(value)).to_string(),
            name: holder.operation,
            class: holder.class.to_string(),
            source: holder.source,
            kept_by: holder.kept_by,
        }
    })
}

/// A page of a program beside the original, with both visible and tables about them.
pub(crate) fn page_of_two(before: Shown<'_>, after: Shown<'_>, tables: &[Table]) -> String {
    let [before_view, after_view] =
        [before, after].map(|shown| view(shown.module, shown.target, shown.planned));
    page((after, &after_view), Some((before, &before_view)), true, tables)
}

/// A page of a program with its view, beside the original.
pub(super) fn page(
    (after, after_view): (Shown<'_>, &View),
    before: Option<(Shown<'_>, &View)>,
    opens_beside: bool,
    tables: &[Table],
) -> String {
    let partners = before.map(|(_, view)| partners(&holders(view), &holders(after_view)));
    let beside = before.zip(partners.as_ref()).map(|((before, view), partners)| Beside {
        before: Stage { name: before.name, view, spaces: &before.planned.plan.spaces },
        partners,
    });
    let program = Stage { name: after.name, view: after_view, spaces: &after.planned.plan.spaces };
    html(&Page { program, beside, opens_beside, tables })
}

/// Every buffer as a separate holder.
fn holders(view: &View) -> Vec<HolderEntry> {
    let holder =
        |(buffer, notes): (&memplan::codegen::layout::Buffer, &memplan::codegen::view::BufferNotes)| {
            let shape = buffer.shape.split('{').next().unwrap_or_default();
            HolderEntry {
                bytes: buffer.address.size,
                count: 1,
                operation: Some(notes.value.name.clone()),
                shape: Some(shape.to_string()),
                source: notes.value.source.clone(),
                library_source: None,
                class: Some(notes.value.class.clone()),
                kept_by: String::new(),
                values: Vec::new(),
            }
        };
    view.layout.buffers.iter().zip(&view.buffers).map(holder).collect()
}
