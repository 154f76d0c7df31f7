//! Random programs that are not HLO: scheduled, placed, proved, and refused where the placement is broken.

use cranelift_entity::{EntityRef, PrimaryMap, SecondaryMap};
use memplan_check_placement::{Misplacement, Tenant, check_order, check_placement};
use memplan_memory::{Alignment, Bytes, MemorySpaceId, Slice, Target, Totals};
use memplan_plan::{
    AsXla, PlaceOptions, ScheduleOptions, Sharing, TakeOver, place, schedule_region, schedule_regions,
};
use memplan_program::{
    Buffer, Call, LiveRange, NodeId, Origin, Program, Region, Scratch, Time, Value, ValueId,
};
use proptest::prelude::*;

/// An operation of the program.
#[derive(Clone, Debug)]
struct Operation {
    reads: Vec<ValueId>,
    writes: Vec<ValueId>,
    /// Whether its results may be written over operands of their size.
    in_step: bool,
    scratch: u64,
    /// Values that exist only within it.
    inner: Vec<ValueId>,
}

/// What a value is, whatever the order.
#[derive(Clone, Debug)]
struct Kind {
    size: u64,
    alignment: u64,
    space: u32,
    origin: Origin,
    is_result: bool,
    group: ValueId,
}

/// Operations, each after what it depends on.
#[derive(Clone, Debug)]
struct Source {
    values: PrimaryMap<ValueId, Kind>,
    operations: Vec<Operation>,
}

/// A source in an order.
struct Ordered<'a> {
    source: &'a Source,
    order: Vec<usize>,
    live: SecondaryMap<ValueId, LiveRange>,
}

/// What an operation is made from: numbers that choose.
type Recipe = (Vec<u8>, Vec<(u8, u8)>, u8, u8);

impl Source {
    fn new(arguments: &[(u8, u8)], recipes: &[Recipe]) -> Source {
        let mut source = Source { values: PrimaryMap::new(), operations: Vec::new() };
        for (number, &(size, kind)) in (0..).zip(arguments) {
            let origin = match kind % 4 {
                0 => Origin::Constant,
                kind => Origin::Argument { number, writable: kind != 1 },
            };
            source.add_value(size, kind / 4, origin);
        }
        // Values that were updated in place: nobody may read them any more.
        let mut is_gone: SecondaryMap<ValueId, bool> = SecondaryMap::new();
        for (reads, writes, flags, scratch) in recipes {
            let known: Vec<ValueId> = source.values.keys().filter(|&value| !is_gone[value]).collect();
            let pick = |choice: &u8| known.get(usize::from(*choice) % known.len().max(1)).copied();
            let mut reads: Vec<ValueId> = reads.iter().filter_map(pick).collect();
            reads.dedup();
            let mut operation = Operation {
                writes: Vec::new(),
                in_step: flags & 1 == 1,
                scratch: if scratch % 4 == 0 { u64::from(*scratch) } else { 0 },
                inner: Vec::new(),
                reads: reads.clone(),
            };
            for (i, &(size, kind)) in writes.iter().enumerate() {
                let result = source.add_value(size, kind, Origin::Computed);
                let updated = reads.first().copied().filter(|&old| {
                    let origin = source.values[old].origin;
                    i == 0
                        && flags & 6 == 6
                        && matches!(origin, Origin::Computed | Origin::Argument { writable: true, .. })
                });
                if let Some(old) = updated {
                    is_gone[old] = true;
                    let Kind { size, space, group, .. } = source.values[old];
                    source.values[result] = Kind { size, space, group, ..source.values[result].clone() };
                    source.values[old].is_result = false;
                }
                operation.writes.push(result);
            }
            if flags & 24 == 24 {
                for size in [flags >> 4, flags >> 3] {
                    let inner = source.add_value(size, 1, Origin::Computed);
                    source.values[inner].is_result = false;
                    is_gone[inner] = true;
                    operation.inner.push(inner);
                }
            }
            source.operations.push(operation);
        }
        source
    }

    fn add_value(&mut self, size: u8, kind: u8, origin: Origin) -> ValueId {
        let is_result = kind % 8 == 7 && origin != Origin::Constant;
        let alignment = if kind % 16 == 5 { 512 } else { 1 };
        let space = u32::from(kind % 8 == 3);
        let group = self.values.next_key();
        self.values.push(Kind { size: u64::from(size), alignment, space, origin, is_result, group })
    }

    /// In an order of operations.
    fn in_order(&self, order: Vec<usize>) -> Ordered<'_> {
        let end = order.len() as Time;
        let mut live: SecondaryMap<ValueId, LiveRange> = SecondaryMap::new();
        for (id, kind) in &self.values {
            live[id] = match kind.origin {
                Origin::Argument { writable: false, .. } => LiveRange { start: 0, end },
                _ => LiveRange { start: 0, end: 1 },
            };
        }
        for (&operation, time) in order.iter().zip(0..) {
            let Operation { reads, writes, inner, .. } = &self.operations[operation];
            for &value in writes.iter().chain(inner) {
                live[value] = LiveRange { start: time, end: time + 1 };
            }
            for &value in reads {
                live[value].end = live[value].end.max(time + 1);
            }
        }
        for (id, _) in self.values.iter().filter(|(_, kind)| kind.is_result) {
            live[id].end = end;
        }
        Ordered { source: self, order, live }
    }
}

impl Program for Ordered<'_> {
    fn end(&self) -> Time {
        self.order.len() as Time
    }

    fn n_values(&self) -> usize {
        self.source.values.len()
    }

    fn value(&self, value: ValueId) -> Value {
        let kind = &self.source.values[value];
        Value {
            alignment: Alignment::new(kind.alignment).expect("a power of two"),
            space: MemorySpaceId(kind.space),
            origin: kind.origin,
            is_result: kind.is_result,
            ..Value::computed(Bytes(kind.size), self.live[value])
        }
    }

    fn group(&self, value: ValueId) -> ValueId {
        self.source.values[value].group
    }

    fn reads(&self, time: Time) -> impl Iterator<Item = ValueId> {
        self.source.operations[self.order[time as usize]].reads.iter().copied()
    }

    fn writes(&self, time: Time) -> impl Iterator<Item = ValueId> {
        self.source.operations[self.order[time as usize]].writes.iter().copied()
    }

    fn may_overwrite(&self, time: Time, operand: ValueId, result: ValueId) -> bool {
        let values = &self.source.values;
        self.source.operations[self.order[time as usize]].in_step
            && values[operand].size == values[result].size
    }

    fn reads_alone(&self, _: Time, operand: ValueId) -> bool {
        let mut writers = self.source.operations.iter().map(|operation| &operation.writes);
        writers.any(|writes| *writes == [operand])
    }

    fn scratch(&self) -> impl Iterator<Item = Scratch> {
        let operations = self.order.iter().map(|&operation| &self.source.operations[operation]);
        operations.zip(0..).map(|(operation, time)| Scratch {
            time,
            // Some run on while others do.
            end: (time + 1 + u32::from(operation.scratch % 5 == 4) * 2).min(self.end()),
            space: MemorySpaceId(u32::from(operation.scratch > 128)),
            size: Bytes(operation.scratch),
        })
    }
}

fn sources() -> impl Strategy<Value = Source> {
    let arguments = prop::collection::vec(any::<(u8, u8)>(), 0..4);
    let reads = prop::collection::vec(any::<u8>(), 0..4);
    let writes = prop::collection::vec(any::<(u8, u8)>(), 0..3);
    let recipes = prop::collection::vec((reads, writes, any::<u8>(), any::<u8>()), 1..24);
    (arguments, recipes).prop_map(|(arguments, recipes)| Source::new(&arguments, &recipes))
}

/// The regions of a program: that of each operation with values of its own, and the one that runs them.
fn regions(source: &Source) -> (PrimaryMap<memplan_program::RegionId, Region>, Region) {
    let mut regions = PrimaryMap::new();
    let mut outer = Region::of(&source.in_order((0..source.operations.len()).collect()));
    for (number, operation) in source.operations.iter().enumerate().filter(|(_, o)| !o.inner.is_empty()) {
        let mut inner = Region::new(operation.inner.len());
        for (i, &value) in operation.inner.iter().enumerate() {
            let bytes = Bytes(source.values[value].size);
            let buffer = inner.buffers.push(Buffer { bytes, live_in: false, live_out: true });
            inner.definitions.push((NodeId::new(i), buffer));
            inner.touches.push((NodeId::new(i), buffer));
        }
        let callee = regions.push(inner);
        let node = NodeId::new(number);
        let results =
            outer.definitions.iter().filter(|d| d.0 == node).map(|d| outer.buffers[d.1].bytes).sum();
        outer.calls.push(Call {
            node,
            callees: vec![(callee, results)],
            handed_over: Bytes::ZERO,
            in_flight: None,
        });
    }
    (regions, outer)
}

/// Nothing is aligned.
fn target() -> Target {
    Target::find("toy").expect("built in")
}

/// Everything is aligned.
fn aligned_target() -> Target {
    Target::find("tpu-v5e").expect("built in")
}

/// The figures of a placement.
const FIGURES: [fn(&mut Totals) -> &mut Bytes; 7] = [
    |totals| &mut totals.arguments,
    |totals| &mut totals.outputs,
    |totals| &mut totals.constants,
    |totals| &mut totals.temp,
    |totals| &mut totals.total,
    |totals| &mut totals.peak_live,
    |totals| &mut totals.temp_lower_bound,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn random_programs_are_scheduled_placed_and_proved(source in sources()) {
        let (mut all, outer) = regions(&source);
        let last = all.push(outer.clone());
        let found = schedule_regions(all, &ScheduleOptions::default()).expect("operations follow what they need");
        check_order(&outer, &found[last].order).expect("the order is legal");
        let textual = found[last].report.candidates[0].1;
        prop_assert!(found[last].report.peak <= textual);
        let program = source.in_order(found[last].order.iter().map(|node| node.index()).collect());
        for target in [target(), aligned_target()] {
            let as_xla = [TakeOver::SingleValues, TakeOver::SameShapes, TakeOver::Arrays].map(as_xla);
            for options in as_xla.iter().chain([&PlaceOptions::default()]) {
                let placement = place(&program, &target, options).expect("there are places");
                check_placement(&program, &target, &placement).expect("the placement is right");
            }
        }
    }

    #[test]
    fn a_broken_order_is_refused(source in sources(), a in any::<u8>(), b in any::<u8>()) {
        let region = Region::of(&source.in_order((0..source.operations.len()).collect()));
        let mut order = schedule_region(region.clone(), &ScheduleOptions::default()).expect("there is an order").order;
        check_order(&region, &order).expect("the order is legal");
        let (a, b) = (usize::from(a) % order.len(), usize::from(b) % order.len());
        order.swap(a, b);
        let breaks = |&(before, after): &(NodeId, NodeId)| {
            let place = |node| order.iter().position(|&n| n == node);
            before != after && place(before) > place(after)
        };
        prop_assert_eq!(check_order(&region, &order).is_err(), region.dependencies.iter().any(breaks));
        order[a] = order[b];
        prop_assert_eq!(check_order(&region, &order).is_err(), a != b);
    }

    #[test]
    fn a_broken_placement_is_refused(source in sources(), i in any::<u16>(), j in any::<u16>()) {
        let program = source.in_order((0..source.operations.len()).collect());
        let right = place(&program, &aligned_target(), &PlaceOptions::default()).expect("there are places");
        let placed: Vec<ValueId> = source.values.keys().filter(|&value| right.slices[value].is_some()).collect();
        let refused = |broken: &memplan_program::Placement| check_placement(&program, &aligned_target(), broken).err();
        if let Some(&value) = placed.get(usize::from(i) % placed.len().max(1)) {
            let other = placed[usize::from(j) % placed.len()];
            let slice = right.slices[value].expect("it is placed");

            let mut broken = right.clone();
            broken.slices[value] = None;
            let is_refused = matches!(refused(&broken), Some(Misplacement::Unplaced { .. }));
            prop_assert!(is_refused);

            let mut broken = right.clone();
            broken.slices[value] = Some(Slice { offset: slice.offset + Bytes(1), ..slice });
            prop_assert!(refused(&broken).is_some());

            let mut broken = right.clone();
            broken.allocations[slice.allocation].size = slice.end() - Bytes(1);
            prop_assert!(refused(&broken).is_some());

            let mut broken = right.clone();
            broken.allocations[slice.allocation].live_out ^= true;
            prop_assert!(refused(&broken).is_some());

            let mut broken = right.clone();
            broken.allocations[slice.allocation].space = MemorySpaceId(2);
            prop_assert!(refused(&broken).is_some());

            // Two that interfere, and neither takes over from the other.
            let (a, b) = (program.value(value), program.value(other));
            let (start, end) = (a.live.start.max(b.live.start), a.live.end.min(b.live.end));
            if program.group(value) != program.group(other) && start + 1 < end {
                let mut broken = right.clone();
                let taken = right.slices[other].expect("it is placed");
                broken.slices[value] = Some(Slice { size: slice.size, ..taken });
                prop_assert!(refused(&broken).is_some());
            }
        }
        if !right.scratch.is_empty() {
            let mut broken = right.clone();
            broken.scratch.remove(usize::from(i) % right.scratch.len());
            let is_refused = matches!(refused(&broken), Some(Misplacement::WrongScratch { .. }));
            prop_assert!(is_refused);
        }
        for change in FIGURES {
            let mut broken = right.clone();
            *change(&mut broken.totals) += Bytes(1);
            let is_refused = matches!(refused(&broken), Some(Misplacement::WrongFigure { .. }));
            prop_assert!(is_refused);
        }
    }
}

fn as_xla(take_over: TakeOver) -> PlaceOptions {
    let sharing = Sharing::AsXla(AsXla { take_over, temps_in_results: true });
    PlaceOptions { sharing, ..PlaceOptions::default() }
}

/// A chain of temps before a result: the largest is in its memory, and none that is live with that one or with the result.
#[test]
fn the_largest_temp_is_in_the_memory_of_the_result() {
    let value = |i: usize| ValueId::from_u32(i as u32);
    let kinds = [32, 64, 16, 64].into_iter().enumerate().map(|(i, size)| {
        let (origin, group) = (Origin::Computed, value(i));
        Kind { size, alignment: 1, space: 0, origin, is_result: i == 3, group }
    });
    let operations = (0..4).map(|i: usize| {
        let reads = i.checked_sub(1).map(value).into_iter().collect();
        Operation { reads, writes: vec![value(i)], in_step: false, scratch: 0, inner: vec![] }
    });
    let source = Source { values: kinds.collect(), operations: operations.collect() };
    let program = source.in_order((0..4).collect());
    let placement = place(&program, &target(), &as_xla(TakeOver::SingleValues)).expect("there are places");
    check_placement(&program, &target(), &placement).expect("the placement is right");
    let allocation = |i| placement.slices[value(i)].expect("it is placed").allocation;
    assert_eq!(allocation(1), allocation(3));
    assert_ne!(allocation(0), allocation(3));
    assert_ne!(allocation(2), allocation(3));
}

/// Every operation could write over what it reads. Like libtpu, it does so only if the operation before wrote nothing else.
#[test]
fn arrays_are_written_over_but_not_elements_of_tuples() {
    let value = |i: usize| ValueId::from_u32(i as u32);
    let (origin, size) = (Origin::Computed, 64);
    let values =
        (0..6).map(|i| Kind { size, alignment: 1, space: 0, origin, is_result: false, group: value(i) });
    let operation = |reads: &[usize], writes: &[usize]| Operation {
        reads: reads.iter().copied().map(value).collect(),
        writes: writes.iter().copied().map(value).collect(),
        in_step: true,
        scratch: 0,
        inner: vec![],
    };
    let operations = [
        operation(&[], &[0]),
        operation(&[0], &[1]),
        operation(&[1], &[2]),
        operation(&[2], &[3, 4]),
        operation(&[3], &[5]),
    ];
    let source = Source { values: values.collect(), operations: operations.into() };
    let program = source.in_order((0..5).collect());
    let placement = place(&program, &target(), &as_xla(TakeOver::Arrays)).expect("there are places");
    check_placement(&program, &target(), &placement).expect("the placement is right");
    let place_of = |i| placement.slices[value(i)].expect("it is placed").offset;
    assert_eq!([place_of(0), place_of(1), place_of(2)], [place_of(3); 3]);
    assert_ne!(place_of(3), place_of(5));
}

#[test]
fn an_argument_that_the_caller_keeps_is_not_written() {
    let read = |value: u32| ValueId::from_u32(value);
    let kind =
        |origin, is_result| Kind { size: 64, alignment: 1, space: 0, origin, is_result, group: read(0) };
    let mut values = PrimaryMap::new();
    values.push(kind(Origin::Argument { number: 0, writable: false }, false));
    values.push(Kind { group: read(1), ..kind(Origin::Computed, true) });
    let operation =
        Operation { reads: vec![read(0)], writes: vec![read(1)], in_step: true, scratch: 0, inner: vec![] };
    let source = Source { values, operations: vec![operation] };
    let program = source.in_order(vec![0]);
    let mut placement = place(&program, &target(), &PlaceOptions::default()).expect("there are places");
    check_placement(&program, &target(), &placement).expect("the result has memory of its own");
    placement.slices[read(1)] = placement.slices[read(0)];
    let refused = check_placement(&program, &target(), &placement);
    assert!(matches!(refused, Err(Misplacement::ReadOnly { .. })), "{refused:?}");
}

#[test]
fn nor_by_what_the_last_operation_leaves_unread() {
    let read = |value: u32| ValueId::from_u32(value);
    let kind = |origin, group| Kind { size: 64, alignment: 1, space: 0, origin, is_result: false, group };
    let mut values = PrimaryMap::new();
    values.push(kind(Origin::Argument { number: 0, writable: false }, read(0)));
    values.push(kind(Origin::Computed, read(1)));
    let operation =
        Operation { reads: vec![read(0)], writes: vec![read(1)], in_step: true, scratch: 0, inner: vec![] };
    let source = Source { values, operations: vec![operation] };
    let program = source.in_order(vec![0]);
    let placement = place(&program, &target(), &PlaceOptions::default()).expect("there are places");
    check_placement(&program, &target(), &placement).expect("what is not read has memory of its own");
}

/// Two values: the first is read when the second is written.
fn two_values() -> Source {
    let kind = |group, is_result| {
        let group = ValueId::from_u32(group);
        Kind { size: 64, alignment: 1, space: 0, origin: Origin::Computed, is_result, group }
    };
    let mut values = PrimaryMap::new();
    values.push(kind(0, false));
    values.push(kind(1, true));
    let operation = |reads: &[u32], writes: &[u32]| Operation {
        reads: reads.iter().copied().map(ValueId::from_u32).collect(),
        writes: writes.iter().copied().map(ValueId::from_u32).collect(),
        in_step: false,
        scratch: 0,
        inner: vec![],
    };
    Source { values, operations: vec![operation(&[], &[0]), operation(&[0], &[1])] }
}

/// What the checker says of a program whose answers were changed after it was placed as they were.
#[track_caller]
fn refused(change: impl FnOnce(&mut Ordered<'_>)) -> Misplacement {
    let source = two_values();
    let mut program = source.in_order(vec![0, 1]);
    let placement = place(&program, &target(), &PlaceOptions::default()).expect("there are places");
    check_placement(&program, &target(), &placement).expect("the placement is right");
    change(&mut program);
    check_placement(&program, &target(), &placement).expect_err("the answers do not fit each other")
}

#[test]
fn a_live_range_that_ends_before_a_read_is_refused() {
    let source = two_values();
    let mut program = source.in_order(vec![0, 1]);
    let (first, live) = (ValueId::from_u32(0), LiveRange { start: 0, end: 1 });
    program.live[first] = live;
    let placement = place(&program, &target(), &PlaceOptions::default()).expect("there are places");
    let (a, b) = (placement.slices[first], placement.slices[ValueId::from_u32(1)]);
    assert_eq!(a, b, "who believes the range puts one where the other still is");
    let refused = check_placement(&program, &target(), &placement).expect_err("one is read after it is gone");
    assert_eq!(refused, Misplacement::ReadWhileDead { value: first, time: 1, live });
    assert_eq!(refused.to_string(), "instant 1 reads value0, which is live only in [0, 1)");
}

#[test]
fn what_is_said_of_values_and_of_instants_agrees() {
    let (first, second) = (ValueId::from_u32(0), ValueId::from_u32(1));
    let late = LiveRange { start: 1, end: 2 };
    let error = refused(|program| program.live[first] = late);
    assert_eq!(error, Misplacement::WrittenWhileDead { value: first, time: 0, live: late });
    for live in [LiveRange { start: 1, end: 1 }, LiveRange { start: 0, end: 3 }] {
        let error = refused(|program| program.live[first] = live);
        assert_eq!(error, Misplacement::NoRange { at: Tenant::Value(first), live, end: 2 });
    }
    let error = refused(|program| program.live[second] = LiveRange { start: 0, end: 1 });
    assert!(matches!(error, Misplacement::TooShort { value, .. } if value == second), "{error}");
}

#[test]
fn names_of_values_that_do_not_exist_are_refused() {
    let stray = ValueId::from_u32(7);
    let source = two_values();
    let placement =
        place(&source.in_order(vec![0, 1]), &target(), &PlaceOptions::default()).expect("there are places");
    type Break = fn(&mut Source, ValueId);
    let breaks: [(&str, Break); 3] = [
        ("read", |source, stray| source.operations[1].reads.push(stray)),
        ("written", |source, stray| source.operations[0].writes.push(stray)),
        ("the first of a group", |source, stray| source.values[ValueId::from_u32(1)].group = stray),
    ];
    for (named_as, change) in breaks {
        let mut broken = source.clone();
        let live = broken.in_order(vec![0, 1]).live;
        change(&mut broken, stray);
        let program = Ordered { source: &broken, order: vec![0, 1], live };
        let error = check_placement(&program, &target(), &placement).expect_err("there is no such value");
        assert_eq!(error, Misplacement::NoSuchValue { value: stray, named_as, n_values: 2 });
    }
}

#[test]
fn an_argument_is_there_from_the_start() {
    let mut source = two_values();
    let first = ValueId::from_u32(0);
    source.values[first].origin = Origin::Argument { number: 0, writable: true };
    source.operations[0].writes.clear();
    let mut program = source.in_order(vec![0, 1]);
    let placement = place(&program, &target(), &PlaceOptions::default()).expect("there are places");
    check_placement(&program, &target(), &placement).expect("the placement is right");
    program.live[first] = LiveRange { start: 1, end: 2 };
    let error = check_placement(&program, &target(), &placement).expect_err("it is given before the start");
    assert!(matches!(error, Misplacement::TooShort { value, .. } if value == first), "{error}");
    assert!(place(&program, &target(), &PlaceOptions::default()).is_err());
}
