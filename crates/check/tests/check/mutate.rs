//! A right plan, broken in every relevant way: the checker finds and names each break.

use memplan_check::Violation as V;
use memplan_ir::{EntityRef, Position, ShapeIndex};
use memplan_memory::{Alignment, Allocation, AllocationId, AllocationKind, Bytes, MemorySpaceId, Slice};

use crate::support::Case;

pub(crate) const PROGRAM: &str = "HloModule m, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }
body {
  bp = (s32[], f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+4
  bi = s32[] get-tuple-element(bp), index=0 // temp+0
  bx = f32[4]{0} get-tuple-element(bp), index=1 // temp+4
  one = s32[] constant(1)
  bn = s32[] add(bi, one)             // temp+0
  by = f32[4]{0} reverse(bx), dimensions={0} // temp+36
  bz = f32[4]{0} negate(by)           // temp+4
  ROOT br = (s32[], f32[4]{0}) tuple(bn, bz) // {0} temp+0 {1} temp+4
}
cond {
  cp = (s32[], f32[4]{0}) parameter(0) // {0} temp+0 {1} temp+4
  ci = s32[] get-tuple-element(cp), index=0 // temp+0
  ten = s32[] constant(10)
  ROOT lt = pred[] compare(ci, ten), direction=LT // temp+36
}
ENTRY main {
  p = f32[4]{0} parameter(0)          // arg0+0
  q = f32[4]{0} parameter(1)          // arg1+0
  k = f32[6]{0} constant({1,2,3,4,5,6}) // const0+0
  zero = s32[] constant(0)
  i = s32[] copy(zero)                // temp+0
  x = f32[4]{0} copy(p)               // temp+4
  y = f32[4]{0} reverse(p), dimensions={0} // temp+20
  t = (s32[], f32[4]{0}) tuple(i, x)  // {0} temp+0 {1} temp+4
  l = (s32[], f32[4]{0}) while(t), condition=cond, body=body // {0} temp+0 {1} temp+4
  v = f32[4]{0} get-tuple-element(l), index=1 // temp+4
  s = (f32[4]{0:S(1)}, f32[4]{0}, u32[]) copy-start(y) // {0} fast+0 {1} temp+20 {2} temp+76
  m = f32[6]{0} negate(k)             // temp+52
  d = f32[4]{0:S(1)} copy-done(s)     // fast+0
  z = f32[4]{0} reverse(v), dimensions={0} // temp+20
  w = f32[4]{0} add(z, d)             // temp+20
  e = f32[4]{0} custom-call(w, m), custom_call_target=\"f\", output_to_operand_aliasing={{}: (0, {})} // temp+20
  u = f32[4]{0} multiply(e, q)        // arg1+0
  n = f32[4]{0} negate(e)             // out+0
  ROOT r = (f32[4]{0}, f32[4]{0}) tuple(u, n) // {0} arg1+0 {1} out+0
}";

impl Case {
    pub(crate) fn slice(&mut self, name: &str, index: &[u32]) -> &mut Slice {
        let instruction = self.find(name);
        let position = Position { instruction, index: ShapeIndex::from(index.iter().copied()) };
        self.plan.slices.get_mut(&position).expect("the program gives it a slice")
    }

    fn shift(&mut self, name: &str, by: i64) {
        let slice = self.slice(name, &[]);
        slice.offset = Bytes(slice.offset.0.wrapping_add_signed(by));
    }

    fn merge(&mut self, name: &str, with: &str) {
        *self.slice(name, &[]) = *self.slice(with, &[]);
    }

    fn swap(&mut self, a: &str, b: &str) {
        let (entry, a, b) = (self.module.entry, self.find(a), self.find(b));
        let mut sequence = self.schedule.sequence(entry).to_vec();
        let at = |id| sequence.iter().position(|&other| other == id).expect("it is scheduled");
        let (a, b) = (at(a), at(b));
        sequence.swap(a, b);
        self.schedule.set(entry, sequence);
    }

    fn unschedule(&mut self, name: &str) {
        let (entry, id) = (self.module.entry, self.find(name));
        let sequence = self.schedule.sequence(entry).iter().copied().filter(|&other| other != id).collect();
        self.schedule.set(entry, sequence);
    }

    /// Makes a copy's users take what it copies, and removes it.
    fn drop_copy(&mut self, name: &str) {
        let id = self.find(name);
        let source = self.module.instructions[id].operands[0];
        for instruction in self.module.instructions.values_mut() {
            instruction.operands.iter_mut().filter(|o| **o == id).for_each(|operand| *operand = source);
        }
        self.unschedule(name);
        let entry = self.module.entry;
        self.module.computations[entry].instructions.retain(|&other| other != id);
        self.plan.slices.shift_remove(&Position { instruction: id, index: ShapeIndex::root() });
    }

    pub(crate) fn allocation(&mut self, name: &str) -> &mut Allocation {
        let id = self.slice(name, &[]).allocation;
        &mut self.plan.allocations[id]
    }
}

/// What is done to the plan; what has to be found.
pub(crate) type Mutation = (&'static str, fn(&mut Case), fn(&V) -> bool);

const MUTATIONS: &[Mutation] = &[
    ("shift what a copy-start forwards", |c| c.shift("y", 4), |v| matches!(v, V::Moved { .. })),
    ("shift a loop's new state", |c| c.shift("bz", 1), |v| matches!(v, V::Moved { .. })),
    ("shift over the arena's end", |c| c.shift("m", 8), |v| matches!(v, V::OutOfBounds { .. })),
    (
        "shift onto a live value",
        |c| c.shift("m", -20),
        |v| matches!(v, V::WrittenInFlight { .. } | V::Lost { .. }),
    ),
    ("shift half way over an operand", |c| c.shift("w", 4), |v| matches!(v, V::OverwritesOperand { .. })),
    ("merge with a value that is live", |c| c.merge("y", "x"), |v| matches!(v, V::Lost { .. })),
    ("reverse in place", |c| c.merge("z", "v"), |v| matches!(v, V::OverwritesOperand { .. })),
    ("use loop state as the condition's memory", |c| c.shift("lt", -32), |v| matches!(v, V::Lost { .. })),
    (
        "use the caller's value as the body's memory",
        |c| c.shift("by", -16),
        |v| matches!(v, V::Lost { found: memplan_check::Contents::LeftBy(name), .. } if &**name == "body"),
    ),
    ("write into an argument", |c| c.merge("m", "p"), |v| matches!(v, V::ReadOnly { .. })),
    ("write into a constant", |c| c.merge("m", "k"), |v| matches!(v, V::ReadOnly { .. })),
    ("give up donation", |c| c.module.config.input_output_alias.clear(), |v| matches!(v, V::ReadOnly { .. })),
    ("move a parameter", |c| c.merge("p", "y"), |v| matches!(v, V::ArgumentElsewhere { .. })),
    ("move a constant", |c| c.merge("k", "m"), |v| matches!(v, V::ConstantElsewhere { .. })),
    (
        "write the result before the last read of the argument",
        |c| c.merge("w", "q"),
        |v| matches!(v, V::Lost { .. }),
    ),
    (
        "drop an input-output alias",
        |c| {
            let output = c.allocation("n").clone();
            let output = c.plan.allocations.push(output);
            for (name, index) in [("u", &[][..]), ("r", &[0])] {
                c.slice(name, index).allocation = output;
            }
        },
        |v| matches!(v, V::OutputElsewhere { .. }),
    ),
    ("drop a declared alias", |c| c.merge("e", "v"), |v| matches!(v, V::AliasBroken { .. })),
    ("drop the copy of a loop's initial value", |c| c.drop_copy("x"), |v| matches!(v, V::Moved { .. })),
    ("drop the copy of an immediate", |c| c.drop_copy("i"), |v| matches!(v, V::Moved { .. })),
    (
        "swap a done with what takes its source's place",
        |c| c.swap("d", "z"),
        |v| matches!(v, V::WrittenInFlight { .. }),
    ),
    (
        "swap results so that one overwrites the other's operand",
        |c| c.swap("x", "l"),
        |v| matches!(v, V::OutOfOrder { .. }),
    ),
    ("forget an instruction", |c| c.unschedule("y"), |v| matches!(v, V::NotScheduled { .. })),
    ("forget a done", |c| c.unschedule("d"), |v| matches!(v, V::NeverDone { .. })),
    (
        "run an instruction twice",
        |c| {
            let (entry, twice) = (c.module.entry, c.find("z"));
            let mut sequence = c.schedule.sequence(entry).to_vec();
            sequence.push(twice);
            c.schedule.set(entry, sequence);
        },
        |v| matches!(v, V::ScheduledTwice { .. }),
    ),
    ("shrink the arena", |c| c.allocation("y").size = Bytes(40), |v| matches!(v, V::OutOfBounds { .. })),
    ("shrink an output", |c| c.allocation("n").size = Bytes(12), |v| matches!(v, V::OutOfBounds { .. })),
    ("shrink a slice", |c| c.slice("w", &[]).size = Bytes(15), |v| matches!(v, V::TooSmall { .. })),
    (
        "remove a slice",
        |c| {
            let position = Position { instruction: c.find("z"), index: ShapeIndex::root() };
            c.plan.slices.shift_remove(&position);
        },
        |v| matches!(v, V::Unplaced { .. }),
    ),
    (
        "place what does not exist",
        |c| {
            let position = Position { instruction: c.find("z"), index: [3].into() };
            let slice = *c.slice("z", &[]);
            c.plan.slices.insert(position, slice);
        },
        |v| matches!(v, V::NoSuchPart { .. }),
    ),
    (
        "use another allocation",
        |c| c.slice("z", &[]).allocation = AllocationId::new(99),
        |v| matches!(v, V::NoSuchAllocation { .. }),
    ),
    (
        "move the arena to another memory",
        |c| c.allocation("y").space = MemorySpaceId(1),
        |v| matches!(v, V::WrongSpace { .. }),
    ),
    (
        "move the arena to a memory that can only be read",
        |c| {
            c.target.spaces[1].read_only = true;
            c.allocation("y").space = MemorySpaceId(1);
        },
        |v| matches!(v, V::ReadOnly { what: "a memory that can only be read", .. }),
    ),
    (
        "ask for alignment",
        |c| c.target.spaces[0].alignment = Alignment::new(8).unwrap(),
        |v| matches!(v, V::Misaligned { .. }),
    ),
    (
        "promise too little alignment",
        |c| c.target.argument_alignment = Alignment::new(8).unwrap(),
        |v| matches!(v, V::UnderAligned { .. }),
    ),
    (
        "pass a parameter twice",
        |c| {
            let again = c.allocation("p").clone();
            c.plan.allocations.push(again);
        },
        |v| matches!(v, V::StrayArgument { .. }),
    ),
    (
        "give a result up",
        |c| c.allocation("n").kind = AllocationKind::Temp,
        |v| matches!(v, V::ResultNotLiveOut { .. }),
    ),
    (
        "forget that a result is live",
        |c| c.allocation("n").live_out = false,
        |v| matches!(v, V::ResultNotLiveOut { .. }),
    ),
    (
        "say that scratch is a result",
        |c| c.allocation("d").live_out = true,
        |v| matches!(v, V::NotLiveOut { .. }),
    ),
    (
        "use an operand as scratch memory",
        |c| {
            let (z, slice) = (c.find("z"), *c.slice("v", &[]));
            c.plan.scratch.entry(z).or_default().push(slice);
        },
        |v| matches!(v, V::ScratchOverlaps { .. }),
    ),
    (
        "use a live value as scratch memory",
        |c| {
            let (m, slice) = (c.find("m"), *c.slice("v", &[]));
            c.plan.scratch.entry(m).or_default().push(slice);
        },
        |v| matches!(v, V::Lost { found: memplan_check::Contents::Scratch(_), .. }),
    ),
    (
        "use a transfer's destination as scratch memory",
        |c| {
            let (m, slice) = (c.find("m"), *c.slice("s", &[0]));
            c.plan.scratch.entry(m).or_default().push(slice);
        },
        |v| matches!(v, V::WrittenInFlight { .. }),
    ),
    (
        "use a live value in fast memory as scratch memory, beside some in main memory",
        |c| {
            let (z, main, fast) = (c.find("z"), *c.slice("m", &[]), *c.slice("d", &[]));
            let main = Slice { offset: main.end(), size: Bytes(4), ..main };
            c.plan.scratch.entry(z).or_default().extend([main, fast]);
        },
        |v| matches!(v, V::Lost { found: memplan_check::Contents::Scratch(_), .. }),
    ),
    (
        "use the same scratch memory twice at once",
        |c| {
            let (z, slice) = (c.find("z"), *c.slice("y", &[]));
            c.plan.scratch.entry(z).or_default().extend([slice, slice]);
        },
        |v| matches!(v, V::ScratchOverlaps { .. }),
    ),
    (
        "reserve no scratch memory",
        |c| c.target.spaces[1].kernel_scratch = Bytes(16),
        |v| matches!(v, V::TooLittleScratch { found: Bytes(0), .. }),
    ),
    (
        "reserve too little scratch memory, and some in another memory",
        |c| {
            c.target.spaces[1].kernel_scratch = Bytes(32);
            let (n, main, fast) = (c.find("n"), *c.slice("m", &[]), *c.slice("d", &[]));
            c.plan.scratch.entry(n).or_default().extend([main, fast]);
        },
        |v| matches!(v, V::TooLittleScratch { needed: Bytes(32), found: Bytes(16), .. }),
    ),
    ("claim less", |c| c.plan.totals.temp = Bytes(1), |v| matches!(v, V::WrongTotal { .. })),
    ("plan for another machine", |c| c.plan.target = "cpu".into(), |v| matches!(v, V::OtherTarget { .. })),
];

/// A change that leaves a plan right.
type Harmless = (&'static str, fn(&mut Case));

/// What changes nothing that matters.
const HARMLESS: &[Harmless] = &[
    ("nothing", |_| ()),
    ("swap what does not depend on each other", |c| c.swap("x", "y")),
    ("compute earlier", |c| c.swap("m", "s")),
    ("let an elementwise result take another place", |c| c.merge("bz", "bx")),
];

#[test]
fn every_mutation_is_found_and_named() {
    find_and_name(PROGRAM, MUTATIONS);
}

/// Breaks the plan of a program in each way; what has to be found is among what is found.
#[track_caller]
pub(crate) fn find_and_name(program: &str, mutations: &[Mutation]) {
    for (what, mutate, is_found) in mutations {
        let mut case = Case::new("toy", program);
        assert_eq!(case.complaints(), "", "before: {what}");
        mutate(&mut case);
        let violations = case.check().expect_err(what);
        assert!(violations.iter().any(is_found), "{what}: found only\n{}", case.complaints());
    }
}

#[test]
fn harmless_mutations_are_accepted() {
    for (what, mutate) in HARMLESS {
        let mut case = Case::new("toy", PROGRAM);
        mutate(&mut case);
        assert!(case.check().is_ok(), "{what}:\n{}", case.complaints());
    }
}

/// Nonsense of every kind is refuted or accepted, but never a panic.
#[test]
fn nonsense_does_not_panic() {
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((seed >> 33) % n as u64) as usize
    };
    let original = Case::new("toy", PROGRAM);
    let mut refuted = 0;
    for _ in 0..3000 {
        let mut case = original.clone();
        for _ in 0..1 + random(3) {
            let n = case.plan.slices.len();
            let at = random(n);
            let other = case.plan.slices[random(n)];
            match random(8) {
                0 => case.plan.slices[at] = other,
                1 => case.plan.slices[at].offset = Bytes(u64::MAX - random(9) as u64),
                2 => case.plan.slices[at].size = Bytes(random(40) as u64),
                3 => case.plan.slices[at].allocation = AllocationId::new(random(8)),
                4 => case.plan.slices[at].offset = Bytes(random(60) as u64),
                5 => _ = case.plan.slices.swap_remove_index(at),
                6 => {
                    let computation = memplan_ir::ComputationId::new(random(3));
                    let mut sequence = case.schedule.sequence(computation).to_vec();
                    let (i, j) = (random(sequence.len()), random(sequence.len()));
                    sequence.swap(i, j);
                    case.schedule.set(computation, sequence);
                }
                _ => {
                    let instruction = memplan_ir::InstructionId::new(random(40));
                    case.plan.scratch.entry(instruction).or_default().push(other);
                }
            }
        }
        refuted += usize::from(case.check().is_err());
    }
    assert!(refuted > 2000, "only {refuted} were refuted");
}
