//! The viewer: a self-contained page that opens by double click and uses no network.
//!
//! The page is `viewer/`: a frame, a style, and modules in JavaScript that are joined here, so that building needs no
//! bundler. The page contains the document as JSON, in columns; repeated texts are indices of a table. A second program
//! beside the first is another set of columns, with the corresponding buffer for each of its buffers.

use memplan_memory::{Bytes, KindName, SpaceTotals, Totals};
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::View;
use crate::layout::LaunchKind;

/// The contents of a page.
#[derive(Clone, Copy, Debug)]
pub struct Page<'a> {
    /// The program.
    pub program: Stage<'a>,
    /// The program to compare with, on the same scale.
    pub beside: Option<Beside<'a>>,
    /// Whether the page opens with both.
    pub opens_beside: bool,
    /// The tables beside the picture.
    pub tables: &'a [Table],
}

/// A planned program with the name of the stage that it is at.
#[derive(Clone, Copy, Debug)]
pub struct Stage<'a> {
    /// Its name for people: `compiled`, `before`.
    pub name: &'a str,
    /// The program.
    pub view: &'a View,
    /// Totals of the memory spaces, of which the layout has but the arenas.
    pub spaces: &'a [SpaceTotals],
}

/// The program to compare with.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// The program as it was.
    pub before: Stage<'a>,
    /// The buffer of the program that each of its buffers has become; none where it is gone.
    pub partners: &'a [Option<u32>],
}

/// A table beside the picture.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Its heading.
    pub title: String,
    /// The heads of its columns.
    pub columns: Vec<String>,
    /// Its rows.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Row {
    /// A text for each column.
    pub cells: Vec<String>,
    /// The search for a click on it; empty if it is about no buffers.
    pub query: String,
}

/// The page as a file. Takes time linear in its contents.
pub fn html(page: &Page<'_>) -> String {
    let beside = page.beside.map(|Beside { before, partners }| Columns {
        partners: partners.iter().map(|partner| partner.map_or(-1, i64::from)).collect(),
        ..columns(before)
    });
    let document = Document {
        format: "memplan.view",
        version: 1,
        opens_beside: page.opens_beside,
        stages: std::iter::once(columns(page.program)).chain(beside).collect(),
        tables: page.tables,
    };
    let json = serde_json::to_string(&document).expect("documents have only string keys");
    let title = &page.program.view.layout.module;
    PAGE.replace("/*STYLE*/", STYLE)
        .replace("/*SCRIPT*/", &joined())
        .replace("<!--TITLE-->", &title.replace('&', "&amp;").replace('<', "&lt;"))
        // Nothing in a string may end the surrounding script.
        .replace("/*DOCUMENT*/", &json.replace('<', "\\u003c"))
}

const PAGE: &str = include_str!("../../viewer/page.html");
const STYLE: &str = include_str!("../../viewer/style.css");

/// The modules, imported ones first.
const MODULES: [(&str, &str); 12] = [
    ("format.js", include_str!("../../viewer/format.js")),
    ("roving.js", include_str!("../../viewer/roving.js")),
    ("share.js", include_str!("../../viewer/share.js")),
    ("model.js", include_str!("../../viewer/model.js")),
    ("colors.js", include_str!("../../viewer/colors.js")),
    ("axis.js", include_str!("../../viewer/axis.js")),
    ("chart.js", include_str!("../../viewer/chart.js")),
    ("details.js", include_str!("../../viewer/details.js")),
    ("table.js", include_str!("../../viewer/table.js")),
    ("notes.js", include_str!("../../viewer/notes.js")),
    ("search.js", include_str!("../../viewer/search.js")),
    ("main.js", include_str!("../../viewer/main.js")),
];

/// All modules as one: they share a scope, in which names are unique, so imports and exports are left out.
fn joined() -> String {
    let mut script = String::new();
    for (_, source) in MODULES {
        for line in source.lines().filter(|line| !line.starts_with("import ")) {
            script.push_str(line.strip_prefix("export ").unwrap_or(line));
            script.push('\n');
        }
    }
    script
}

#[derive(Serialize)]
struct Document<'a> {
    format: &'static str,
    version: u32,
    opens_beside: bool,
    stages: Vec<Columns<'a>>,
    tables: &'a [Table],
}

/// A planned program in columns. Texts are numbers of `strings`; -1 is none.
#[derive(Serialize)]
struct Columns<'a> {
    name: &'a str,
    module: &'a str,
    target: &'a str,
    totals: Totals,
    seconds: f64,
    peak: PeakRow<'a>,
    /// Bytes live during each launch in all memories together, as differences.
    live: Vec<i64>,
    spaces: Vec<SpaceRow>,
    allocations: Vec<AllocationRow<'a>>,
    launches: LaunchColumns,
    buffers: BufferColumns,
    transfers: Vec<TransferRow<'a>>,
    /// Working memory of kernels: launch, allocation, offset, size.
    scratch: Vec<[u64; 4]>,
    /// For each buffer of a program that is compared with: which one of the first stage it has become; -1 is none.
    partners: Vec<i64>,
    strings: Vec<String>,
}

#[derive(Serialize)]
struct PeakRow<'a> {
    launch: u32,
    bytes: Bytes,
    instruction: &'a str,
    buffers: &'a [u32],
}

#[derive(Serialize)]
struct SpaceRow {
    id: u32,
    name: String,
    /// Bytes that programs can use: the capacity without reserved memory.
    available: Option<Bytes>,
    total: Bytes,
    temp: Bytes,
    height: Bytes,
    /// Bytes live during each launch, as differences.
    live: Vec<i64>,
}

#[derive(Serialize)]
struct AllocationRow<'a> {
    name: &'a str,
    kind: KindName,
    space: u32,
    size: Bytes,
    base: Bytes,
}

#[derive(Default, Serialize)]
struct LaunchColumns {
    name: Vec<u32>,
    opcode: Vec<u32>,
    kind: Vec<LaunchKind>,
    computation: Vec<u32>,
    operation: Vec<u32>,
    source: Vec<i64>,
    begin: Vec<u32>,
    seconds: Vec<f32>,
    trips: Vec<Option<u64>>,
    reads: Vec<Vec<u32>>,
    writes: Vec<Vec<u32>>,
}

#[derive(Default, Serialize)]
struct BufferColumns {
    name: Vec<u32>,
    opcode: Vec<u32>,
    shape: Vec<u32>,
    operation: Vec<u32>,
    source: Vec<i64>,
    allocation: Vec<u32>,
    offset: Vec<Bytes>,
    size: Vec<Bytes>,
    unpadded: Vec<Bytes>,
    from: Vec<u32>,
    to: Vec<u32>,
    made: Vec<i64>,
    /// Its name in lists of holders.
    title: Vec<u32>,
    class: Vec<u32>,
    keeper: Vec<u32>,
    /// 1 for results, 2 for donated arguments, both added.
    flags: Vec<u8>,
}

#[derive(Serialize)]
struct TransferRow<'a> {
    name: &'a str,
    operation: &'a str,
    from: u32,
    to: u32,
    bytes: Bytes,
    start: u32,
    done: Option<u32>,
    runs: u64,
}

/// Texts, each once.
#[derive(Default)]
struct Strings {
    numbers: FxHashMap<String, u32>,
    texts: Vec<String>,
}

impl Strings {
    fn number(&mut self, text: &str) -> u32 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.texts.push(text.to_string());
        self.numbers.insert(text.to_string(), number);
        number
    }

    fn optional(&mut self, text: Option<&str>) -> i64 {
        text.map_or(-1, |text| self.number(text).into())
    }
}

fn columns<'a>(Stage { name, view, spaces: totals }: Stage<'a>) -> Columns<'a> {
    let mut strings = Strings::default();
    let layout = &view.layout;
    let allocation = |(allocation, &base): (&'a crate::layout::Allocation, &Bytes)| AllocationRow {
        name: &allocation.name,
        kind: allocation.kind,
        space: allocation.space.0,
        size: allocation.size,
        base,
    };
    let transfer = |transfer: &'a crate::layout::Transfer| TransferRow {
        name: &transfer.name,
        operation: &transfer.operation,
        from: transfer.from.0,
        to: transfer.to.0,
        bytes: transfer.bytes,
        start: transfer.start,
        done: transfer.done,
        runs: transfer.runs,
    };
    let mut columns = Columns {
        name,
        module: &layout.module,
        target: &layout.target,
        totals: layout.totals,
        seconds: view.seconds,
        peak: PeakRow {
            launch: view.peak.launch,
            bytes: view.peak.bytes,
            instruction: &view.peak.instruction,
            buffers: &view.peak.buffers,
        },
        live: differences(&view.live),
        spaces: spaces(view, totals),
        allocations: layout.allocations.iter().zip(&view.bases).map(allocation).collect(),
        launches: launches(view, &mut strings),
        buffers: buffers(view, &mut strings),
        transfers: layout.transfers.iter().map(transfer).collect(),
        scratch: scratch(view),
        partners: Vec::new(),
        strings: Vec::new(),
    };
    columns.strings = strings.texts;
    columns
}

fn spaces(view: &View, totals: &[SpaceTotals]) -> Vec<SpaceRow> {
    let row = |curve: &super::Curve| {
        let known = view.layout.spaces.iter().find(|space| space.id == curve.space);
        let total = totals.iter().find(|totals| totals.space == curve.space).map(|totals| totals.total);
        SpaceRow {
            id: curve.space.0,
            name: view.space_name(curve.space),
            available: known.and_then(|space| Some(space.capacity?.saturating_sub(space.reserved))),
            total: total.or(known.map(|space| space.used)).unwrap_or(Bytes::ZERO),
            temp: known.map_or(Bytes::ZERO, |space| space.temp),
            height: view.height(curve.space),
            live: differences(&curve.live),
        }
    };
    view.curves.iter().map(row).collect()
}

/// The difference of each number to the one before, which is shorter to write.
fn differences(live: &[Bytes]) -> Vec<i64> {
    let mut before = 0;
    let difference = |bytes: &Bytes| {
        let live = i64::try_from(bytes.0).unwrap_or(i64::MAX);
        live - std::mem::replace(&mut before, live)
    };
    live.iter().map(difference).collect()
}

fn scratch(view: &View) -> Vec<[u64; 4]> {
    let launches = view.layout.computations.iter().flat_map(|computation| &computation.launches);
    let rows = launches.flat_map(|launch| {
        launch.scratch.iter().map(|a| [launch.index.into(), a.allocation.into(), a.offset.0, a.size.0])
    });
    rows.collect()
}

fn launches(view: &View, strings: &mut Strings) -> LaunchColumns {
    let mut columns = LaunchColumns::default();
    let numbers = |arguments: &[crate::layout::Argument]| {
        let mut buffers: Vec<u32> = arguments.iter().filter_map(|argument| argument.buffer).collect();
        buffers.sort_unstable();
        buffers.dedup();
        buffers
    };
    for (computation, launch) in view.layout.launches_in_order() {
        let notes = &view.launches[launch.index as usize];
        columns.name.push(strings.number(&launch.name));
        columns.opcode.push(strings.number(&launch.opcode));
        columns.kind.push(launch.kind);
        columns.computation.push(strings.number(&computation.name));
        columns.operation.push(strings.number(&notes.operation));
        columns.source.push(strings.optional(notes.source.as_deref()));
        columns.begin.push(notes.begin);
        columns.seconds.push(notes.seconds as f32);
        columns.trips.push(launch.trip_count);
        columns.reads.push(numbers(&launch.operands));
        columns.writes.push(numbers(&launch.results));
    }
    columns
}

fn buffers(view: &View, strings: &mut Strings) -> BufferColumns {
    let mut columns = BufferColumns::default();
    for (buffer, notes) in view.layout.buffers.iter().zip(&view.buffers) {
        columns.name.push(strings.number(&buffer.full_name()));
        columns.opcode.push(strings.number(&notes.opcode));
        columns.shape.push(strings.number(&buffer.shape));
        columns.operation.push(strings.number(&notes.value.operation));
        columns.source.push(strings.optional(notes.value.source.as_deref()));
        columns.allocation.push(buffer.address.allocation);
        columns.offset.push(buffer.address.offset);
        columns.size.push(buffer.address.size);
        columns.unpadded.push(buffer.unpadded);
        columns.from.push(buffer.live.from);
        columns.to.push(view.end_of(buffer.live));
        columns.made.push(notes.made_by.map_or(-1, i64::from));
        columns.title.push(strings.number(&notes.value.name));
        columns.class.push(strings.number(&notes.value.class));
        columns.keeper.push(strings.number(&notes.value.kept_by));
        columns.flags.push(u8::from(buffer.result) | u8::from(buffer.donated) << 1);
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Joined modules share a scope: a module must come after the modules that it imports.
    #[test]
    fn modules_stand_after_what_they_import() {
        for (i, (name, source)) in MODULES.iter().enumerate() {
            for line in source.lines().filter(|line| line.starts_with("import ")) {
                let (names, from) = line.split_once("} from ").expect("imports are by name, on one line");
                let from = from.trim_matches(['"', ';', '.', '/']);
                let before = MODULES[..i]
                    .iter()
                    .find(|(other, _)| *other == format!("{}.js", from.trim_end_matches(".js")));
                let (_, exporter) =
                    before.unwrap_or_else(|| panic!("{name} imports {from}, which is not before it"));
                for imported in names.trim_start_matches("import {").split(',').map(str::trim) {
                    let exports = ["function", "async function", "const", "class"]
                        .iter()
                        .any(|kind| exporter.contains(&format!("export {kind} {imported}")));
                    assert!(exports, "{name} imports {imported}, which {from} does not export");
                }
            }
        }
    }

    #[test]
    fn no_name_is_taken_twice() {
        let script = joined();
        let mut names: Vec<&str> = script
            .lines()
            .filter_map(|line| {
                ["function ", "const ", "class ", "let "].iter().find_map(|k| line.strip_prefix(k))
            })
            .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default())
            .collect();
        names.sort_unstable();
        let n = names.len();
        names.dedup();
        assert_eq!(names.len(), n, "two modules have the same name at their top level");
    }

    #[test]
    fn strings_do_not_end_the_page() {
        let layout = crate::layout::ProgramLayout {
            module: "</script><b>".into(),
            ..serde_json::from_str(EMPTY).expect("the smallest layout")
        };
        let view = View {
            layout,
            launches: Vec::new(),
            buffers: Vec::new(),
            values: Vec::new(),
            bases: Vec::new(),
            curves: Vec::new(),
            live: Vec::new(),
            peak: super::super::Peak {
                launch: 0,
                bytes: Bytes::ZERO,
                instruction: String::new(),
                buffers: Vec::new(),
            },
            seconds: 0.0,
            clock: super::super::Clock::new(&[]),
        };
        let page = html(&Page {
            program: Stage { name: "plan", view: &view, spaces: &[] },
            beside: None,
            opens_beside: false,
            tables: &[],
        });
        assert!(!page.contains("</script><b>"));
        assert!(page.contains("\\u003c/script>"));
    }

    const EMPTY: &str = r#"{"format":"memplan.layout","version":1,"module":"","fingerprint":"","target":"cpu",
        "totals":{"arguments":0,"outputs":0,"aliased":0,"constants":0,"temp":0,"total":0,"peak_live":0,
        "temp_lower_bound":0,"fragmentation":0,"padding":0},"launches":0,"constants_file":0,"spaces":[],
        "allocations":[],"parameters":[],"results":[],"buffers":[],"computations":[],"transfers":[],"padding":[]}"#;
}
