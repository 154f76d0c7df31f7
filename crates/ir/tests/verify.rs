//! A correct module, and for every error the one change that causes it.

use memplan_ir::*;

/// Parameters x and y, a reduction, a loop, a copy and an asynchronous call in flight, a collective; result 0 lives in
/// the memory of x, and y is donated.
fn sample() -> Module {
    build().expect("the sample is valid")
}

fn build() -> Result<Module, BuildError> {
    use ElementType::F32;
    let vector = || Shape::array(F32, [4]);
    let mut module = ModuleBuilder::new("sample");
    let add = module.combiner(BinaryOp::Add, F32)?;
    let mut body = module.computation("body");
    let x = body.parameter("x", vector());
    let y = body.unary(UnaryOp::Negate, x)?;
    let body = body.finish(y)?;
    let mut condition = module.computation("condition");
    condition.parameter("x", vector());
    let no = condition.constant(Literal::pred(false));
    let condition = condition.finish(no)?;
    let mut wrapped = module.computation("wrapped");
    let x = wrapped.parameter("x", vector());
    let y = wrapped.unary(UnaryOp::Tanh, x)?;
    let wrapped = wrapped.finish(y)?;

    let mut main = module.computation("main");
    let x = main.parameter("x", vector());
    let y = main.parameter("y", vector());
    let zero = main.constant(Literal::f32(0.0));
    main.reduce(x, zero, [0], add)?;
    main.while_loop(x, condition, body)?;
    let start = main.insert(Op::CopyStart { cross_program_prefetch_index: None }, [x])?;
    main.insert(Op::CopyDone, [start])?;
    let start = main.insert_calling(Op::AsyncStart(Box::default()), [y], [wrapped])?;
    main.insert_calling(Op::AsyncDone(Box::default()), [start], [wrapped])?;
    let groups = ReplicaGroups::List(vec![vec![0, 1], vec![2, 3]]);
    let collective = Collective { replica_groups: groups, ..Collective::default() };
    main.insert_calling(Op::AllReduce(Box::new(collective)), [x], [add])?;
    let token = main.insert(Op::AfterAll, [])?;
    let send = main.insert(Op::Send(Transfer::default()), [x, token])?;
    main.insert(Op::SendDone(Transfer::default()), [send])?;
    let sum = main.binary(BinaryOp::Add, x, y)?;
    let result = main.tuple([sum])?;
    let main = main.finish(result)?;
    module.alias([0].into(), 0, ShapeIndex::root());
    module.donate(1, ShapeIndex::root());
    module.finish(main)
}

/// One of the errors that `change` makes of the sample.
#[track_caller]
fn check(change: impl FnOnce(&mut Module), expected: &str) {
    let mut module = sample();
    change(&mut module);
    let errors = verify(&module).expect_err("the change breaks the module").to_string();
    assert!(errors.lines().any(|line| line == expected), "{expected} in: {errors}");
}

/// As [`check`], for a change of one instruction of the entry.
#[track_caller]
fn check_instruction(name: &str, change: impl FnOnce(&mut Instruction), expected: &str) {
    let mut prefix = String::new();
    let described = |module: &mut Module| {
        let id = find(module, name);
        change(&mut module.instructions[id]);
        let instruction = &module.instructions[id];
        prefix =
            format!("instruction {} ({id}, {}) in main is invalid: ", instruction.name, instruction.opcode());
    };
    let mut module = sample();
    described(&mut module);
    let errors = verify(&module).expect_err("the change breaks the module").to_string();
    assert!(
        errors.lines().any(|line| line == format!("{prefix}{expected}")),
        "{prefix}{expected} in: {errors}"
    );
}

fn find(module: &Module, name: &str) -> InstructionId {
    let found = module.instructions_of(module.entry).find(|(_, instruction)| &*instruction.name == name);
    found.expect("the sample has this instruction").0
}

fn bogus() -> InstructionId {
    InstructionId::new(999)
}

fn set_shape(module: &mut Module, name: &str, change: impl FnOnce(&mut ArrayShape)) {
    let id = find(module, name);
    let mut shape = module.shape(id).clone();
    change(shape.as_array_mut().expect("an array"));
    module.instructions[id].shape = module.intern(shape);
}

#[test]
fn the_sample_is_valid() {
    assert_eq!(verify(&sample()), Ok(()));
}

#[test]
fn computations() {
    check(
        |m| m.entry = ComputationId::new(9),
        "the module is invalid: its entry comp9 is not a computation of it",
    );
    check(
        |m| m.computations[m.entry].name = "body".into(),
        "computation body (comp4) is invalid: another computation has its name",
    );
    check(
        |m| m.computations[m.entry].instructions.clear(),
        "computation main (comp4) is invalid: it has no instructions",
    );
    check(
        |m| m.computations[m.entry].instructions.push(bogus()),
        "computation main (comp4) is invalid: it lists inst999, which is not an instruction of the module",
    );
    check(
        |m| m.computations[m.entry].root = InstructionId::new(0),
        "computation main (comp4) is invalid: its root inst0 is not one of its instructions",
    );
    check(
        |m| m.computations[m.entry].root = bogus(),
        "computation main (comp4) is invalid: its root inst999 is not one of its instructions",
    );
    check(
        |m| m.computations[m.entry].parameters.swap(0, 1),
        "computation main (comp4) is invalid: it lists inst10 as parameter 0, which is not one of its parameters",
    );
    check_instruction(
        "y",
        |i| i.op = Op::Parameter { number: 2 },
        "parameter number 2 is given twice or leaves a gap",
    );
}

#[test]
fn control_dependencies() {
    let depend = |m: &mut Module| {
        let (copy, sum) = (find(m, "copy-done"), find(m, "add"));
        m.instructions[copy].control_predecessors.push(sum);
        copy
    };
    let mut late = sample();
    depend(&mut late);
    assert_eq!(verify(&late), Ok(()), "order matters only in schedules");
    let in_circle = |m: &mut Module| {
        let copy = depend(m);
        let sum = find(m, "add");
        m.instructions[sum].control_predecessors.push(copy);
    };
    check(
        in_circle,
        "computation main (comp4) is invalid: operands and control predecessors form a cycle through copy-done",
    );
    let in_schedule = |m: &mut Module| {
        depend(m);
        m.is_scheduled = true;
    };
    check(
        in_schedule,
        "instruction copy-done (inst15, copy-done) in main is invalid: control predecessor add comes after it in the schedule",
    );
    check_instruction(
        "add",
        |i| i.control_predecessors.push(bogus()),
        "control predecessor inst999 is not in its computation",
    );
}

#[test]
fn instructions() {
    check_instruction("add", |i| i.name = "x".into(), "another instruction of its computation has its name");
    let move_away = |m: &mut Module| {
        let sum = find(m, "add");
        m.instructions[sum].parent = ComputationId::new(1);
    };
    check(
        move_away,
        "instruction add (inst22, add) in body is invalid: its parent is comp1, which does not list it",
    );
}

#[test]
fn references() {
    check_instruction("add", |i| i.shape = ShapeId::new(999), "its shape is not one of the module's");
    check_instruction(
        "add",
        |i| i.operands[1] = InstructionId::new(0),
        "operand 1 is inst0, which is not in its computation",
    );
    check_instruction(
        "add",
        |i| i.operands[1] = bogus(),
        "operand 1 is inst999, which is not in its computation",
    );
    check_instruction(
        "while",
        |i| i.called[0] = ComputationId::new(9),
        "it calls comp9, which is not a computation of the module",
    );
    check_instruction("while", |i| i.called[0] = i.parent, "it calls the entry computation");
    let repeat = |m: &mut Module| {
        let sum = find(m, "add");
        m.computations[m.entry].instructions.push(sum);
    };
    check(
        repeat,
        "instruction add (inst22, add) in main is invalid: it is listed twice, in one computation or in two",
    );
    let reverse = |m: &mut Module| {
        let n = m.computations[m.entry].instructions.len();
        m.computations[m.entry].instructions.swap(n - 1, n - 2);
    };
    check(reverse, "instruction tuple (inst23, tuple) in main is invalid: operand 0, add, comes after it");
    let recur = |m: &mut Module| {
        let negate = m.computations[ComputationId::new(1)].root;
        m.instructions[negate].called.push(ComputationId::new(2));
    };
    check(
        recur,
        "instruction negate (inst4, negate) in body is invalid: it calls condition, which does not precede its own computation",
    );
}

#[test]
fn shapes_and_layouts() {
    let at = "instruction y (inst10, parameter) in main is invalid: its shape is invalid: ";
    let check_shape = |change: fn(&mut ArrayShape), expected: &str| {
        check(|m| set_shape(m, "y", change), &format!("{at}{expected}"));
    };
    check_shape(|a| a.dimensions[0] = -4, "extent -4 of dimension 0 in f32[-4] is negative");
    check_shape(
        |a| a.dimensions[0] = ArrayShape::UNBOUNDED,
        "dimension 0 of f32[?] is unbounded but not dynamic",
    );
    check_shape(|a| a.dynamic.extend([true, true]), "f32[<=4] has 2 marks for dynamic dimensions");
    check_shape(|a| a.dimensions[0] = i64::MAX, "f32[9223372036854775807] is larger than 63 bits of bytes");
    check_shape(
        |a| a.layout = Some(Layout::with_order([1])),
        "the minor_to_major of f32[4] is [1], which is not a permutation of its dimensions",
    );
    check_shape(
        |a| a.layout = Some(Layout::with_order([])),
        "the minor_to_major of f32[4] is [], which is not a permutation of its dimensions",
    );
    let tile = |a: &mut ArrayShape| {
        let tile = Tile { dimensions: [0].into_iter().collect() };
        a.layout.as_mut().unwrap().tiles.push(tile);
    };
    check_shape(tile, "a tile of f32[4] has extents [0], which must be positive or *");
    check_shape(|a| a.layout.as_mut().unwrap().memory_space = -1, "the layout of f32[4] has memory space -1");
    check_shape(
        |a| a.layout.as_mut().unwrap().memory_space = 1 << 32,
        "the layout of f32[4] has memory space 4294967296",
    );
    let split = |a: &mut ArrayShape| {
        let config = SplitConfig { dimension: 0, split_indices: [5].into_iter().collect() };
        let rare = RareLayout { split_configs: vec![config], ..RareLayout::default() };
        a.layout.as_mut().unwrap().rare = Some(Box::new(rare));
    };
    check_shape(split, "the layout of f32[4] splits dimension 0 at [5]");
}

#[test]
fn declared_and_inferred() {
    let narrow = |m: &mut Module| set_shape(m, "add", |a| a.dimensions[0] = 3);
    check(narrow, "instruction add (inst22, add) in main is invalid: it declares f32[3], but yields f32[4]");
    let round = |m: &mut Module| set_shape(m, "copy-done", |a| a.element_type = ElementType::Bf16);
    check(
        round,
        "instruction copy-done (inst15, copy-done) in main is invalid: it declares bf16[4], but yields f32[4]",
    );
    check_instruction("add", |i| i.operands.truncate(1), "takes 2 operands, has 1");
    check_instruction(
        "while",
        |i| i.called.swap(0, 1),
        "the result of computation body must be pred[], is f32[4]",
    );
    let short = |i: &mut Instruction| {
        let data = LiteralData::Bytes([0; 3][..].into());
        i.op = Op::Constant(Literal::Array(ArrayLiteral {
            element_type: ElementType::F32,
            dimensions: Dimensions::new(),
            data,
        }));
    };
    check_instruction("constant", short, "its literal has 3 bytes of data, its shape needs 4");
}

#[test]
fn what_may_differ() {
    let mut module = sample();
    set_shape(&mut module, "add", |a| a.layout.as_mut().unwrap().memory_space = 1);
    set_shape(&mut module, "reduce", |a| a.element_type = ElementType::Bf16);
    set_shape(&mut module, "y", |a| a.dynamic = [true].into_iter().collect());
    assert_eq!(verify(&module), Ok(()), "layouts, precision of computed results, and dynamic marks");
}

#[test]
fn pairs() {
    let forget = |m: &mut Module| {
        let done = find(m, "copy-done");
        m.computations[m.entry].instructions.retain(|&i| i != done);
    };
    check(
        forget,
        "instruction copy-start (inst14, copy-start) in main is invalid: it must have one user, copy-done; it has none",
    );
    let confuse = |m: &mut Module| {
        let (start, done) = (find(m, "copy-start"), find(m, "async-done"));
        m.instructions[done].operands[0] = start;
    };
    check(
        confuse,
        "instruction copy-start (inst14, copy-start) in main is invalid: it must have one user, copy-done; it has 2",
    );
    check(
        confuse,
        "instruction async-start (inst16, async-start) in main is invalid: \
         it must have one user, async-update or async-done; it has none",
    );
    check(
        confuse,
        "instruction async-done (inst17, async-done) in main is invalid: \
         its operand must be async-start or async-update, is copy-start",
    );
    let thread = |i: &mut Instruction| {
        i.op = Op::AsyncDone(Box::new(Async { execution_thread: "io".into(), ..Async::default() }))
    };
    check_instruction("async-done", thread, "its async_execution_thread differs from that of its operand");
    let thread = |i: &mut Instruction| {
        i.op = Op::AsyncStart(Box::new(Async { execution_thread: "io".into(), ..Async::default() }))
    };
    check_instruction(
        "async-start",
        thread,
        "it runs on thread \"io\", the computation wrapped it calls on \"main\"",
    );
    check_instruction("async-start", |i| i.operands.clear(), "computation wrapped takes 0 parameters, has 1");
    let channel =
        |i: &mut Instruction| i.op = Op::SendDone(Transfer { channel_id: Some(7), is_host_transfer: false });
    check_instruction("send-done", channel, "its channel_id differs from that of its operand");
    check_instruction(
        "send-done",
        |i| i.op = Op::SendDone(Transfer { channel_id: None, is_host_transfer: true }),
        "its is_host_transfer differs from that of its operand",
    );
    let share = |m: &mut Module| {
        let mut copies = [find(m, "async-start"), find(m, "async-done")].map(|id| m.instructions[id].clone());
        copies[0].name = "other-start".into();
        copies[1].name = "other-done".into();
        let [start, mut done] = copies;
        done.operands[0] = m.add_instruction(start);
        m.add_instruction(done);
    };
    check(
        share,
        "instruction other-start (inst24, async-start) in main is invalid: another async-start calls computation wrapped too",
    );
}

#[test]
fn groups() {
    let check_groups = |groups: ReplicaGroups, expected: &str| {
        let change = |i: &mut Instruction| {
            i.op = Op::AllReduce(Box::new(Collective { replica_groups: groups, ..Collective::default() }));
        };
        check_instruction("all-reduce", change, &format!("replica_groups are invalid: {expected}"));
    };
    let list = |groups: &[&[i64]]| ReplicaGroups::List(groups.iter().map(|g| g.to_vec()).collect());
    check_groups(list(&[&[0], &[]]), "a group is empty");
    check_groups(list(&[&[0], &[0]]), "device 0 is in two groups, or twice in one");
    check_groups(list(&[&[0, 2], &[3]]), "device 3 is not one of the 3 that the groups have members for");
    let iota = |dimensions, reshape: &[i64], transpose: &[i64]| ReplicaGroups::Iota {
        dimensions,
        reshape: reshape.into(),
        transpose: transpose.into(),
    };
    check_groups(iota([2, 4], &[7], &[]), "an iota of [7] does not fill 2 groups of 4");
    check_groups(
        iota([i64::MAX, i64::MAX], &[1], &[]),
        "an iota of [1] does not fill 9223372036854775807 groups of 9223372036854775807",
    );
    check_groups(
        iota([2, 4], &[4, 2], &[1, 1]),
        "the transpose [1, 1] is not a permutation of the iota's dimensions",
    );
    let axes = vec![AxisRef { axis: 1, sub_axis: None }];
    check_groups(
        ReplicaGroups::Mesh { mesh: Mesh { axes: vec![("x".into(), 2)], devices: None }, axes },
        "axis 1 is not one of the mesh",
    );
    let permute = |i: &mut Instruction| {
        let replica_groups = list(&[&[0, 1], &[2]]);
        i.called.clear();
        i.op = Op::CollectivePermute(Box::new(Collective { replica_groups, ..Collective::default() }));
    };
    check_instruction("all-reduce", permute, "replica_groups are invalid: groups have 2 and 1 members");
    let broadcast = |groups: &'static [&'static [i64]]| {
        move |i: &mut Instruction| {
            let replica_groups = list(groups);
            i.called.clear();
            i.op = Op::CollectiveBroadcast(Box::new(Collective { replica_groups, ..Collective::default() }));
        }
    };
    let twice = broadcast(&[&[5, 2], &[2]]);
    check_instruction(
        "all-reduce",
        twice,
        "replica_groups are invalid: device 2 is in two groups, or twice in one",
    );
    let mut module = sample();
    let id = find(&module, "all-reduce");
    broadcast(&[&[5, 2], &[1]])(&mut module.instructions[id]);
    assert!(verify(&module).is_ok(), "a broadcast may leave devices out");
    let check_pairs = |pairs: &[(i64, i64)], expected: &str| {
        let change = |i: &mut Instruction| {
            i.called.clear();
            i.op = Op::CollectivePermute(Box::new(Collective {
                source_target_pairs: pairs.to_vec(),
                ..Collective::default()
            }));
        };
        check_instruction("all-reduce", change, &format!("replica_groups are invalid: {expected}"));
    };
    check_pairs(&[(0, 1), (2, 1)], "device 1 sends or receives twice");
    check_pairs(&[(0, -1)], "source_target_pairs has device -1");
}

#[test]
fn interface() {
    let check_config = |change: fn(&mut ModuleConfig), expected: &str| {
        check(|m| change(&mut m.config), &format!("the module is invalid: {expected}"));
    };
    check_config(|c| c.input_output_alias[0].parameter = 2, "input_output_alias names parameter 2 of 2");
    check_config(
        |c| c.input_output_alias[0].parameter_index = [0].into(),
        "input_output_alias names parameter 0 at {0}, which is not an array in f32[4]",
    );
    check_config(
        |c| c.input_output_alias[0].output_index = [1].into(),
        "input_output_alias names the result at {1}, which is not an array in (f32[4])",
    );
    check_config(
        |c| c.input_output_alias.push(c.input_output_alias[0].clone()),
        "input_output_alias gives result {0} two parameters",
    );
    check_config(|c| c.buffer_donors[0].parameter = 0, "parameter 0 at {} is aliased or donated twice");
    check_config(|c| c.buffer_donors[0].parameter = 7, "buffer_donor names parameter 7 of 2");
    let other_size = |m: &mut Module| {
        let id = find(m, "x");
        m.instructions[id].shape = m.intern(Shape::array(ElementType::F32, [5]));
    };
    check(
        other_size,
        "the module is invalid: input_output_alias joins result {0} of 16 bytes with parameter 0 at {} of 20",
    );
    let vector = || Shape::array(ElementType::F32, [4]);
    let layout = |parameters: Vec<Shape>, result: Shape| {
        move |m: &mut Module| m.config.entry_computation_layout = Some(ProgramShape { parameters, result })
    };
    let result = || Shape::tuple([vector()]);
    check(
        layout(vec![vector()], result()),
        "the module is invalid: entry_computation_layout has 1 parameters, the entry computation 2",
    );
    check(
        layout(vec![vector(), vector()], vector()),
        "the module is invalid: entry_computation_layout has f32[4] for the result, which the entry computation declares as (f32[4])",
    );
    let wrong_layout = Shape::Array(ArrayShape {
        layout: Some(Layout::with_order([3])),
        ..ArrayShape::new(ElementType::F32, [4])
    });
    check(
        layout(vec![vector(), wrong_layout], result()),
        "the module is invalid: entry_computation_layout has an invalid shape for parameter 1: the minor_to_major of f32[4] is [3], which is not a permutation of its dimensions",
    );
}

#[test]
fn everything_is_reported_at_once() {
    let mut module = sample();
    module.config.buffer_donors[0].parameter = 7;
    let [sum, start, done] = ["add", "copy-start", "async-done"].map(|name| find(&module, name));
    module.instructions[sum].operands.pop();
    module.instructions[done].operands[0] = start;
    module.instructions[InstructionId::new(4)].operands[0] = bogus();
    let errors = verify(&module).unwrap_err().to_string();
    let expected = "\
the module is invalid: buffer_donor names parameter 7 of 2
instruction negate (inst4, negate) in body is invalid: operand 0 is inst999, which is not in its computation
instruction copy-start (inst14, copy-start) in main is invalid: it must have one user, copy-done; it has 2
instruction async-start (inst16, async-start) in main is invalid: it must have one user, async-update or async-done; it has none
instruction async-done (inst17, async-done) in main is invalid: its operand must be async-start or async-update, is copy-start
instruction add (inst22, add) in main is invalid: takes 2 operands, has 1";
    assert_eq!(errors, expected);
}

#[test]
fn a_long_module_takes_linear_time() {
    let mut module = ModuleBuilder::new("long");
    let mut main = module.computation("main");
    let mut x = main.parameter("x", Shape::array(ElementType::F32, [4]));
    for _ in 0..50_000 {
        x = main.unary(UnaryOp::Tanh, x).unwrap();
    }
    let main = main.finish(x).unwrap();
    assert!(module.finish(main).is_ok());
}
