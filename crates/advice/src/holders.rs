//! The holders of the peak, as lines of a report: similar values together, with their class, source and keeper.

use indexmap::IndexMap;
use memplan_analysis::{Time, ValueClass, ValueId, folded_operation, operation};
use memplan_ir::{ArrayShape, Module, Position, Shape};
use memplan_memory::{Bytes, HeldEntry, HolderEntry, MemorySpaceId, PeakEntry, PlanFile};
use memplan_plan_hlo::{PeakBuffer, PeakReport, Planned, peak_report_in, report_at};
use strum::{EnumString, IntoStaticStr};

use crate::Words;

/// The common properties of the values in one line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, EnumString, IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum GroupBy {
    /// Operation without numbers of layers, shape, class and line.
    #[default]
    Kind,
    /// The operation without numbers of layers.
    Operation,
    /// The line of the user's program.
    Source,
    /// The class.
    Class,
    /// None: every value has its own line.
    None,
}

/// The peak of one memory.
#[derive(Clone, Debug)]
pub struct Peak {
    /// The memory.
    pub space: MemorySpaceId,
    /// When, and how many bytes.
    pub report: PeakReport,
    /// The holders, one for each buffer of the report.
    pub holders: Vec<Holder>,
}

/// A value that is live at the peak.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its bytes.
    pub bytes: Bytes,
    /// The framework's operation, with layer numbers replaced by `*`; an argument's name; or the instruction's name.
    pub operation: String,
    /// Its shape, without its layout.
    pub shape: String,
    /// Its class.
    pub class: ValueClass,
    /// The line of the user's program.
    pub source: Option<String>,
    /// The line within an installed package, if that is a different one.
    pub library_source: Option<String>,
    /// The last instruction that needs it.
    pub kept_by: String,
}

/// Values of one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Bytes of all.
    pub bytes: Bytes,
    /// Numbers of the holders, equal to those of the report's buffers.
    pub members: Vec<usize>,
    /// The common operation; `None` if they differ.
    pub operation: Option<String>,
    /// The common shape; `None` if they differ.
    pub shape: Option<String>,
    /// The common class; `None` if they differ.
    pub class: Option<ValueClass>,
    /// The common source line; `None` if they differ, or if it is unknown.
    pub source: Option<String>,
    /// The common library line; `None` if they differ, or if it is the user's.
    pub library_source: Option<String>,
    /// The keeper of most of the bytes.
    pub kept_by: String,
    /// The number of other keepers.
    pub other_keepers: usize,
}

impl GroupBy {
    /// All of them.
    pub const ALL: [GroupBy; 5] =
        [GroupBy::Kind, GroupBy::Operation, GroupBy::Source, GroupBy::Class, GroupBy::None];
}

impl Peak {
    /// The peak of one memory of a plan. Linear in the module.
    pub fn new(words: &Words<'_>, planned: &Planned, space: MemorySpaceId) -> Peak {
        Peak::of(words, peak_report_in(words.module, words.facts, &planned.plan, space), space)
    }

    /// The holders of a memory at an instant, as if that were its peak. Linear in the module.
    pub(crate) fn at(words: &Words<'_>, planned: &Planned, space: MemorySpaceId, time: Time) -> Peak {
        Peak::of(words, report_at(words.module, words.facts, &planned.plan, space, time), space)
    }

    fn of(words: &Words<'_>, report: PeakReport, space: MemorySpaceId) -> Peak {
        let holder =
            |buffer: &PeakBuffer| Holder::new(words, buffer.value, &buffer.position, buffer.slice.size);
        let holders = report.buffers.iter().map(holder).collect();
        Peak { space, report, holders }
    }

    /// Holders in groups, the most bytes first.
    pub fn groups(&self, by: GroupBy) -> Vec<Group> {
        let mut members: IndexMap<Key<'_>, Vec<usize>> = IndexMap::new();
        for (i, holder) in self.holders.iter().enumerate() {
            members.entry(holder.key(by, i)).or_default().push(i);
        }
        let mut groups: Vec<Group> = members.into_values().map(|members| self.group(members)).collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
        groups
    }

    fn group(&self, members: Vec<usize>) -> Group {
        let all = || members.iter().map(|&i| &self.holders[i]);
        let mut keepers: IndexMap<&str, Bytes> = IndexMap::new();
        for holder in all() {
            let bytes = keepers.entry(&holder.kept_by).or_default();
            *bytes = bytes.saturating_add(holder.bytes);
        }
        // The first of those that keep equally many.
        let most = keepers.values().copied().max().unwrap_or_default();
        let kept_by = keepers.iter().find(|(_, bytes)| **bytes == most).map(|(keeper, _)| keeper.to_string());
        Group {
            bytes: all().map(|holder| holder.bytes).fold(Bytes::ZERO, Bytes::saturating_add),
            operation: common(all().map(|holder| &holder.operation)),
            shape: common(all().map(|holder| &holder.shape)),
            class: common(all().map(|holder| &holder.class)),
            source: common(all().map(|holder| &holder.source)).flatten(),
            library_source: common(all().map(|holder| &holder.library_source)).flatten(),
            kept_by: kept_by.unwrap_or_default(),
            other_keepers: keepers.len().saturating_sub(1),
            members,
        }
    }

    /// In the plan file's form.
    pub(crate) fn entry(&self, module: &Module) -> PeakEntry {
        let held = |i: &usize| {
            let PeakBuffer { slice, position, .. } = &self.report.buffers[*i];
            let instruction = &module.instructions[position.instruction];
            HeldEntry {
                computation: module.computations[instruction.parent].name.to_string(),
                instruction: instruction.name.to_string(),
                index: position.index.0.to_vec(),
                bytes: slice.size,
                allocation: slice.allocation.as_u32(),
                offset: slice.offset,
            }
        };
        let holder = |group: Group| HolderEntry {
            bytes: group.bytes,
            count: group.members.len(),
            values: group.members.iter().map(held).collect(),
            operation: group.operation,
            shape: group.shape,
            source: group.source,
            library_source: group.library_source,
            class: group.class.map(|class| class.to_string()),
            kept_by: group.kept_by,
        };
        PeakEntry {
            space: self.space,
            time: self.report.time,
            instruction: module.instructions[self.report.instruction].name.to_string(),
            bytes: self.report.bytes,
            holders: self.groups(GroupBy::Kind).into_iter().map(holder).collect(),
            curve: self.report.curve.clone(),
        }
    }
}

/// The peak of every memory that a plan uses, the main memory first. Linear in the module, for each.
pub fn peaks(words: &Words<'_>, planned: &Planned) -> Vec<Peak> {
    let mut spaces = vec![MemorySpaceId::MAIN];
    spaces.extend(
        planned.plan.spaces.iter().filter(|space| space.total > Bytes::ZERO).map(|space| space.space),
    );
    spaces.sort();
    spaces.dedup();
    spaces.into_iter().map(|space| Peak::new(words, planned, space)).collect()
}

/// The same as in the plan file.
pub fn peak_entries(words: &Words<'_>, planned: &Planned) -> Vec<PeakEntry> {
    peaks(words, planned).iter().map(|peak| peak.entry(words.module)).collect()
}

/// Adds the peaks to the file of a plan.
pub fn note_peaks(module: &Module, planned: &Planned, file: &mut PlanFile) {
    let mut entries = peak_entries(&Words::new(module, &planned.facts), planned).into_iter();
    file.peak = entries.next();
    file.other_peaks = entries.collect();
}

/// The key of a group.
type Key<'h> = (Option<&'h str>, Option<&'h str>, Option<ValueClass>, Option<&'h str>, Option<usize>);

impl Holder {
    /// Describes a value with bytes at a position.
    pub fn new(words: &Words<'_>, value: ValueId, position: &Position, bytes: Bytes) -> Holder {
        let module = words.module;
        let maker = words.maker(value);
        let name = match operation(module, maker) {
            "" => fold_instruction(&module.instructions[maker].name),
            name => folded_operation(name),
        };
        let text = |frame: memplan_analysis::SourceFrame<'_>| frame.to_string();
        let source = words.sources.user(maker);
        let library_source = words.sources.innermost(maker).filter(|frame| Some(*frame) != source);
        Holder {
            bytes,
            operation: name,
            shape: bare_shape_at(module, position),
            class: words.classes.of(value),
            source: source.map(text),
            library_source: library_source.map(text),
            kept_by: words.kept_by(value),
        }
    }

    /// What a value of a plan is, as the plan file has it.
    pub(crate) fn of(words: &Words<'_>, planned: &Planned, value: ValueId) -> HolderEntry {
        let flow = &planned.facts.flow;
        let position = flow.positions.position(flow.values[value].definition);
        let bytes = planned.plan.slices.get(&position).map_or(Bytes::ZERO, |slice| slice.size);
        let holder = Holder::new(words, value, &position, bytes);
        HolderEntry {
            bytes,
            count: 1,
            operation: Some(holder.operation),
            shape: Some(holder.shape),
            source: holder.source,
            library_source: None,
            class: Some(holder.class.to_string()),
            kept_by: String::new(),
            values: Vec::new(),
        }
    }

    fn key(&self, by: GroupBy, i: usize) -> Key<'_> {
        let (operation, source) = (Some(&*self.operation), self.source.as_deref());
        match by {
            GroupBy::Kind => (operation, Some(&*self.shape), Some(self.class), source, None),
            GroupBy::Operation => (operation, None, None, None, None),
            GroupBy::Source => (None, None, None, source, None),
            GroupBy::Class => (None, None, Some(self.class), None, None),
            GroupBy::None => (None, None, None, None, Some(i)),
        }
    }
}

/// The name of an instruction without its distinguishing number.
pub(crate) fn fold_instruction(name: &str) -> String {
    match name.rsplit_once('.') {
        Some((stem, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => {
            stem.to_string()
        }
        _ => name.to_string(),
    }
}

/// The common value of all.
fn common<'a, T: PartialEq + Clone + 'a>(mut all: impl Iterator<Item = &'a T>) -> Option<T> {
    let first = all.next()?;
    all.all(|other| other == first).then(|| first.clone())
}

/// The shape without its layout, which affects bytes but not meaning.
fn bare_shape_at(module: &Module, position: &Position) -> String {
    match module.shape(position.instruction).subshape(&position.index) {
        Some(Shape::Array(array)) => {
            let bare = ArrayShape { layout: None, ..array.clone() };
            memplan_hlo::shape_text(&Shape::Array(bare))
        }
        _ => shape_at(module, position),
    }
}

/// The shape of a buffer at a position: an array, or the table of a tuple, which may have many elements.
pub fn shape_at(module: &Module, position: &Position) -> String {
    match module.shape(position.instruction).subshape(&position.index) {
        Some(Shape::Tuple(elements)) => format!("table of {}", elements.len()),
        Some(shape) => memplan_hlo::shape_text(shape),
        None => String::new(),
    }
}
