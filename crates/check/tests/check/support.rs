//! Plans written into the program: each instruction is followed by `// allocation+offset`, with a shape index in front
//! for parts of tuples: `// {0} temp+16 {1} out0+0`.
//!
//! An allocation's name gives its kind: `arg0` and `arg0.1` are (parts of) parameters, `out…` outputs, `const…`
//! constants, `fast…` an arena in space 1, anything else an arena. Sizes follow from the contents.

use indexmap::IndexMap;
use memplan_analysis::{KernelScratch, kernel_scratch};
use memplan_check::{Proof, Violation, Violations};
use memplan_hlo::parse;
use memplan_ir::{InstructionId, Module, Position, Schedule, ShapeIndex};
use memplan_memory::{
    Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemoryPlan, MemorySpace, MemorySpaceId,
    Slice, SpaceTotals, Target,
};

/// A program with its plan.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) module: Module,
    pub(crate) schedule: Schedule,
    pub(crate) target: Target,
    pub(crate) plan: MemoryPlan,
}

impl Case {
    #[track_caller]
    pub(crate) fn new(target: &str, text: &str) -> Case {
        let module = parse(text).unwrap_or_else(|error| panic!("{error}"));
        let schedule = Schedule::in_textual_order(&module);
        let target = Target::find(target).unwrap();
        let mut case = Case { module, schedule, target, plan: MemoryPlan::default() };
        case.plan.target = case.target.name.clone();
        let mut allocations = IndexMap::new();
        for line in text.lines() {
            let Some((code, places)) = line.split_once("//") else { continue };
            let name = code.trim_start().trim_start_matches("ROOT ").split(' ').next().unwrap();
            let id = case.find(name);
            let mut index = ShapeIndex::root();
            for word in places.split_whitespace() {
                match word.strip_prefix('{') {
                    Some(steps) => index = read_index(steps.trim_end_matches('}'), ','),
                    None => case.place(&mut allocations, id, std::mem::take(&mut index), word),
                }
            }
        }
        case.place_kernel_scratch();
        case.finish();
        case
    }

    #[track_caller]
    pub(crate) fn find(&self, name: &str) -> InstructionId {
        let mut named = self.module.instructions.iter().filter(|(_, i)| &*i.name == name);
        named.next().unwrap_or_else(|| panic!("the program has no `{name}`")).0
    }

    pub(crate) fn check(&self) -> Result<Proof, Violations> {
        memplan_check::check(&self.module, &self.schedule, &self.target, &self.plan)
    }

    /// What is wrong, one a line.
    pub(crate) fn complaints(&self) -> String {
        let violations = self.check().err().unwrap_or_default();
        violations.iter().map(|v| format!("{v}\n")).collect()
    }

    /// Makes live-out flags and totals agree with the slices.
    pub(crate) fn finish(&mut self) {
        let root = self.module.entry_computation().root;
        let plan = &mut self.plan;
        let size = |kind: fn(&AllocationKind) -> bool, space: Option<MemorySpaceId>| -> Bytes {
            let kept =
                plan.allocations.values().filter(|a| kind(&a.kind) && space.is_none_or(|s| s == a.space));
            kept.map(|a| a.size).sum()
        };
        let mut totals = memplan_memory::Totals {
            arguments: size(|kind| matches!(kind, AllocationKind::Argument { .. }), None),
            constants: size(|kind| *kind == AllocationKind::Constant, None),
            temp: size(|kind| *kind == AllocationKind::Temp, Some(MemorySpaceId::MAIN)),
            ..Default::default()
        };
        totals.temp_lower_bound = totals.temp;
        self.module.shape(root).for_each_subshape(|index, shape| {
            let size = self.target.size_of(shape);
            totals.outputs += size;
            let position = Position { instruction: root, index: index.clone() };
            if let Some(slice) = plan.slices.get(&position) {
                let allocation = &mut plan.allocations[slice.allocation];
                allocation.live_out |= allocation.kind != AllocationKind::Temp;
                if matches!(allocation.kind, AllocationKind::Argument { .. }) {
                    totals.aliased += size;
                }
            }
        });
        totals.total = totals.arguments + totals.outputs - totals.aliased + totals.constants + totals.temp;
        plan.totals = totals;
        plan.spaces = self.target.spaces.iter().map(|space| figures(plan, space)).collect();
        self.claim_what_is_found();
    }

    /// Claims the peaks and the padding that the checker finds: where a test is about something else, they are right.
    fn claim_what_is_found(&mut self) {
        // More than there is, so that the checker says how much there is.
        self.plan.totals.peak_live = Bytes(u64::MAX);
        for violation in self.check().err().unwrap_or_default() {
            let totals = &mut self.plan.totals;
            match violation {
                Violation::WrongTotal { name, found, .. } if &*name == "padding" => totals.padding = found,
                Violation::WrongTotal { name, found, .. } if &*name == "fragmentation" => {
                    totals.fragmentation = found;
                }
                _ => {}
            }
        }
        for violation in self.check().err().unwrap_or_default() {
            let totals = &mut self.plan.totals;
            match violation {
                Violation::PeakTooHigh { found, .. } => totals.peak_live = found,
                Violation::BoundTooHigh { space, found, .. } => {
                    let listed = self.plan.spaces.iter_mut().filter(|listed| listed.space == space);
                    listed.for_each(|listed| listed.temp_lower_bound = found);
                    if space == MemorySpaceId::MAIN {
                        totals.temp_lower_bound = found;
                        totals.fragmentation = totals.temp - found;
                    }
                }
                _ => {}
            }
        }
    }

    /// What kernels reserve on this target, in allocations that hold nothing else.
    fn place_kernel_scratch(&mut self) {
        for KernelScratch { instruction, space, size } in kernel_scratch(&self.module, &self.target) {
            let alignment = self.target.alignment(space);
            let kind = AllocationKind::Temp;
            let allocation =
                self.plan.allocations.push(Allocation { kind, space, size, alignment, live_out: false });
            let slice = Slice { allocation, offset: Bytes::ZERO, size };
            self.plan.scratch.entry(instruction).or_default().push(slice);
        }
    }

    fn place(
        &mut self,
        allocations: &mut IndexMap<String, AllocationId>,
        id: InstructionId,
        index: ShapeIndex,
        word: &str,
    ) {
        let (name, offset) = word.split_once('+').expect("a place is allocation+offset");
        let kind = kind_of(name);
        let space = MemorySpaceId(name.starts_with("fast").into());
        let alignment = match kind {
            AllocationKind::Argument { .. } => self.target.argument_alignment,
            _ => self.target.alignment(space).max(Alignment::ONE),
        };
        let allocation = *allocations.entry(name.to_string()).or_insert_with(|| {
            self.plan.allocations.push(Allocation {
                kind,
                space,
                size: Bytes::ZERO,
                alignment,
                live_out: false,
            })
        });
        let size = self.target.size_of(self.module.shape(id).subshape(&index).expect("a part of the result"));
        let slice = Slice { allocation, offset: Bytes(offset.parse().unwrap()), size };
        let allocation = &mut self.plan.allocations[allocation];
        allocation.size = allocation.size.max(slice.end());
        self.plan.slices.insert(Position { instruction: id, index }, slice);
    }
}

/// The plan is right.
#[track_caller]
pub(crate) fn accepts(text: &str) {
    accepts_on("toy", text);
}

#[track_caller]
pub(crate) fn accepts_on(target: &str, text: &str) {
    let complaints = Case::new(target, text).complaints();
    assert!(complaints.is_empty(), "refuted:\n{complaints}");
}

/// The plan is wrong, and the first complaint says so.
#[track_caller]
pub(crate) fn refutes(text: &str, complaint: &str) {
    refutes_on("toy", text, complaint);
}

#[track_caller]
pub(crate) fn refutes_on(target: &str, text: &str, complaint: &str) {
    let complaints = Case::new(target, text).complaints();
    let first = complaints.lines().next().unwrap_or("accepted");
    assert!(first.contains(complaint), "expected `{complaint}`; found:\n{complaints}");
}

/// The figures of a memory space; the bound may be too high.
fn figures(plan: &MemoryPlan, space: &MemorySpace) -> SpaceTotals {
    let sum = |keep: &dyn Fn(&AllocationKind) -> bool| -> Bytes {
        let kept = plan.allocations.values().filter(|a| a.space == space.id && keep(&a.kind));
        kept.map(|a| a.size).sum()
    };
    let temp = sum(&|kind| *kind == AllocationKind::Temp);
    let whole = plan.allocations.values().filter(|a| a.space == space.id);
    SpaceTotals {
        space: space.id,
        name: space.name.clone(),
        capacity: space.capacity,
        available: space.usable(),
        excess: Bytes::ZERO,
        read_only: space.read_only,
        arguments: sum(&|kind| matches!(kind, AllocationKind::Argument { .. })),
        outputs: sum(&|kind| *kind == AllocationKind::Output),
        constants: sum(&|kind| *kind == AllocationKind::Constant),
        temp,
        total: whole.map(|a| a.size.align_up(space.granule)).sum(),
        temp_lower_bound: temp,
        proved_minimal: false,
    }
}

fn kind_of(name: &str) -> AllocationKind {
    match name {
        _ if name.starts_with("out") => AllocationKind::Output,
        _ if name.starts_with("const") => AllocationKind::Constant,
        _ => match name.strip_prefix("arg") {
            Some(rest) => {
                let (parameter, index) = rest.split_once('.').unwrap_or((rest, ""));
                AllocationKind::Argument {
                    parameter: parameter.parse().unwrap(),
                    index: read_index(index, '.'),
                }
            }
            None => AllocationKind::Temp,
        },
    }
}

fn read_index(text: &str, separator: char) -> ShapeIndex {
    text.split(separator)
        .filter(|step| !step.is_empty())
        .map(|step| step.parse::<u32>().unwrap())
        .collect::<Vec<_>>()
        .into()
}
