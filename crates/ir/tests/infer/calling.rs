//! Operations that call computations, contract, or communicate.

use memplan_ir::*;

use super::*;

#[test]
fn reductions() {
    let reduce = |d: &[i64]| Op::Reduce { dimensions: list(d) };
    let add = (&["f32[]", "f32[]"][..], "f32[]");
    check_calling(reduce(&[1]), &["f32[10,<=20,3]", "f32[]"], add, "f32[10,3]");
    check_calling(reduce(&[1]), &["bf16[10,20]", "bf16[]"], add, "f32[10]");
    check_calling(reduce(&[1, 1]), &["f32[10,20]", "f32[]"], add, "error: dimensions has dimension 1 twice");
    check_calling(
        reduce(&[3]),
        &["f32[10,20]", "f32[]"],
        add,
        "error: dimensions has dimension 3, the rank is 2",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "f32[1]"],
        add,
        "error: operand 1 must be a scalar, is f32[1]",
    );
    check_calling(reduce(&[0]), &["f32[10]"], add, "error: takes 2, 4, 6, ... operands, has 1");
    check_calling(
        reduce(&[0]),
        &["f32[10]", "f32[]"],
        (&["f32[]"], "f32[]"),
        "error: computation f takes 2 parameters, has 1",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10]", "f32[]"],
        (&["f32[]", "f32[]"], "pred[]"),
        "error: the result of computation f must be f32[], is pred[]",
    );
    let arg_max = (&["f32[]", "s32[]", "f32[]", "s32[]"][..], "(f32[], s32[])");
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "s32[10,20]", "f32[]", "s32[]"],
        arg_max,
        "(f32[20], s32[20])",
    );
    check_calling(
        reduce(&[0]),
        &["f32[10,20]", "s32[20]", "f32[]", "s32[]"],
        arg_max,
        "error: operands 0 and 1 must have the same extents, are f32[10,20] and s32[20]",
    );

    let window = |size, stride, low, high| WindowDimension {
        size,
        stride,
        padding_low: low,
        padding_high: high,
        ..Default::default()
    };
    let windows =
        |w| Op::ReduceWindow(Box::new(Window { dimensions: [window(1, 1, 0, 0), w].into_iter().collect() }));
    check_calling(windows(window(3, 2, 1, 1)), &["f32[10,20]", "f32[]"], add, "f32[10,10]");
    check_calling(windows(window(30, 2, 1, 1)), &["f32[10,20]", "f32[]"], add, "f32[10,0]");
    check_calling(
        windows(window(3, 0, 1, 1)),
        &["f32[10,20]", "f32[]"],
        add,
        "error: window stride must be at least 1, is 0",
    );
    check_calling(
        windows(window(3, 1, i64::MAX, i64::MAX)),
        &["f32[10,20]", "f32[]"],
        add,
        "error: dimension 1 of the result would be beyond 64 bits",
    );

    check_calling(
        Op::Map { dimensions: list(&[0, 1]) },
        &["f32[10,20]", "f32[10,20]"],
        (&["f32[]", "f32[]"], "pred[]"),
        "pred[10,20]",
    );
    check_calling(
        Op::Map { dimensions: list(&[1]) },
        &["f32[10,20]"],
        (&["f32[]"], "f32[]"),
        "error: dimensions must be every dimension in order, 0..2, is [1]",
    );
    let sort = |dimension| Op::Sort { dimension, is_stable: true };
    let less = (&["f32[]", "f32[]", "s32[]", "s32[]"][..], "pred[]");
    check_calling(sort(0), &["f32[10,20]", "s32[10,20]"], less, "(f32[10,20], s32[10,20])");
    check_calling(
        sort(2),
        &["f32[10,20]", "s32[10,20]"],
        less,
        "error: dimensions has dimension 2, the rank is 2",
    );
    check_calling(
        sort(0),
        &["f32[10]"],
        (&["f32[]", "f32[]"], "f32[]"),
        "error: the result of computation f must be pred[], is f32[]",
    );
    let top_k = |k| Op::TopK { k, largest: true, is_stable: None };
    check(top_k(4), &["f32[2,10]"], "(f32[2,4], s32[2,4])");
    check(top_k(14), &["f32[2,10]"], "error: k must be within 0..=10, is 14");
    let scan = |carries| Op::Scan(Box::new(Scan { num_carries: carries, ..Default::default() }));
    check_calling(
        scan(1),
        &["f32[10,3]", "f32[]"],
        (&["f32[3]", "f32[]"], "(f32[3], f32[])"),
        "(f32[10,3], f32[])",
    );
    check_calling(
        scan(3),
        &["f32[10,3]", "f32[]"],
        (&["f32[3]", "f32[]"], "(f32[3], f32[])"),
        "error: num_carries must be within 0..=2, is 3",
    );
}

#[test]
fn select_and_scatter() {
    let mut module = Module::new("test");
    let greater = computation(&mut module, "ge", &["f32[]", "f32[]"], "pred[]");
    let add = computation(&mut module, "add", &["f32[]", "f32[]"], "f32[]");
    let window = WindowDimension { size: 2, stride: 2, ..Default::default() };
    let op = || Op::SelectAndScatter(Box::new(Window { dimensions: [window].into_iter().collect() }));
    let operands = ["f32[20]", "f32[10]", "f32[]"];
    check_with(&module, op(), &operands, &[greater, add], None, "f32[20]");
    check_with(
        &module,
        op(),
        &operands,
        &[add, greater],
        None,
        "error: the result of computation add must be pred[], is f32[]",
    );
    check_with(
        &module,
        op(),
        &["f32[20]", "f32[11]", "f32[]"],
        &[greater, add],
        None,
        "error: operand 1 must be as large as the placements of the window, f32[10], is f32[11]",
    );
}

#[test]
fn dots() {
    let dot = |n| Op::Dot(Box::new(Dot { dimensions: n, ..Default::default() }));
    let matrix = || dot(DotDimensions::new([1], [0]));
    check(matrix(), &["f32[2,3]", "f32[3,4]"], "f32[2,4]");
    check(matrix(), &["s8[2,3]", "s32[3,4]"], "s32[2,4]");
    check(matrix(), &["f8e4m3fn[2,3]", "f8e5m2[3,4]"], "f8e5m2[2,4]");
    check_given(matrix(), &["bf16[2,3]", "bf16[3,4]"], "f32[2,4]", "f32[2,4]");
    check_given(matrix(), &["s32[2,3]", "s32[3,4]"], "s8[2,4]", "s8[2,4]");
    check(
        dot(DotDimensions::new([2], [0]).with_batch([0], [1])),
        &["f32[<=5,2,3]", "f32[3,5,4]"],
        "f32[<=5,2,4]",
    );
    check(
        matrix(),
        &["f32[2,3]", "f32[4,4]"],
        "error: operands 0 and 1 must have the same extents in contracting dimensions, are f32[2,3] and f32[4,4]",
    );
    check(
        dot(DotDimensions::new([1], [])),
        &["f32[2,3]", "f32[3]"],
        "error: rhs_contracting_dims must be 1 long, is 0 long",
    );
    check(
        dot(DotDimensions::new([1], [0]).with_batch([1], [0])),
        &["f32[2,3]", "f32[3]"],
        "error: lhs_contracting_dims and lhs_batch_dims has dimension 1 twice",
    );

    let ragged = |n, lhs: &[i64], rhs: &[i64]| {
        Op::RaggedDot(Box::new(RaggedDot {
            dimensions: n,
            lhs_ragged_dims: list(lhs),
            rhs_group_dims: list(rhs),
            ..Default::default()
        }))
    };
    check(
        ragged(DotDimensions::new([1], [1]), &[0], &[0]),
        &["f32[11,5]", "f32[3,5,7]", "s32[3]"],
        "f32[11,7]",
    );
    check(
        ragged(DotDimensions::new([1], [0]), &[1], &[]),
        &["f32[11,5]", "f32[5,7]", "s32[3]"],
        "f32[3,11,7]",
    );
    check(
        ragged(DotDimensions::new([2], [1]).with_batch([0], [0]), &[0], &[]),
        &["f32[4,11,5]", "f32[4,5,7]", "s32[3]"],
        "f32[4,11,7]",
    );
    check(
        ragged(DotDimensions::new([1], [1]), &[0], &[0]),
        &["f32[11,5]", "f32[4,5,7]", "s32[3]"],
        "error: operands 1 and 2 must have the same number of groups, are f32[4,5,7] and s32[3]",
    );
}

fn convolution(window: [WindowDimension; 2], output: [i64; 4], feature_groups: i64, batch_groups: i64) -> Op {
    let [batch, feature, first, second] = output;
    Op::Convolution(Box::new(Convolution {
        window: Window { dimensions: window.into_iter().collect() },
        dimensions: ConvolutionDimensions {
            input_batch: 0,
            input_feature: 3,
            input_spatial: list(&[1, 2]),
            kernel_input_feature: 2,
            kernel_output_feature: 3,
            kernel_spatial: list(&[0, 1]),
            output_batch: batch,
            output_feature: feature,
            output_spatial: list(&[first, second]),
        },
        feature_group_count: feature_groups,
        batch_group_count: batch_groups,
        kind: Default::default(),
        precision: Default::default(),
        sparsity: [None, None],
    }))
}

#[test]
fn convolutions() {
    let plain = WindowDimension { size: 3, ..Default::default() };
    let padded = WindowDimension { stride: 2, padding_high: 1, ..plain };
    let dilated = WindowDimension { window_dilation: 2, ..padded };
    let same = [0, 3, 1, 2];
    check(convolution([padded, dilated], same, 2, 1), &["f32[1,10,10,4]", "f32[3,3,2,8]"], "f32[1,5,4,8]");
    let based = WindowDimension { base_dilation: 2, ..plain };
    check(
        convolution([based, plain], [0, 1, 2, 3], 1, 3),
        &["f32[6,10,10,4]", "f32[3,3,4,9]"],
        "f32[2,9,17,8]",
    );
    check(convolution([plain, plain], same, 1, 1), &["f32[1,2,10,4]", "f32[3,3,4,8]"], "f32[1,0,8,8]");
    check(
        convolution([plain, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,5,8]"],
        "error: operands 0 and 1 must have the same number of features per group, are f32[1,9,9,4] and f32[3,3,5,8]",
    );
    check(
        convolution([plain, plain], same, 3, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: feature_group_count must be a divisor of the 4 input and 8 output features, is 3",
    );
    check(
        convolution([plain, plain], same, 0, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: feature_group_count must be at least 1, is 0",
    );
    check(
        convolution([plain, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[5,3,4,8]"],
        "error: window size must be 5, as in the kernel, is 3",
    );
    check(
        convolution([plain, plain], [0, 0, 1, 2], 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: output dim_labels has dimension 0 twice",
    );
    let huge = WindowDimension { base_dilation: i64::MAX, ..plain };
    check(
        convolution([huge, plain], same, 1, 1),
        &["f32[1,9,9,4]", "f32[3,3,4,8]"],
        "error: dimension 1 of the result would be beyond 64 bits",
    );
}

#[test]
fn transforms_and_solvers() {
    let fft = |kind, lengths: &[i64]| Op::Fft { kind, lengths: list(lengths) };
    check(fft(FftKind::Fft, &[5]), &["c64[3,5]"], "c64[3,5]");
    check(fft(FftKind::Rfft, &[8]), &["f32[3,8]"], "c64[3,5]");
    check(fft(FftKind::Irfft, &[9]), &["c64[3,5]"], "f32[3,9]");
    check(
        fft(FftKind::Irfft, &[10]),
        &["c64[3,5]"],
        "error: operand 0 must be of last extents [6], is c64[3,5]",
    );
    check(
        fft(FftKind::Rfft, &[8]),
        &["bf16[3,8]"],
        "error: operand 0 must be of type f32 or f64, is bf16[3,8]",
    );
    check(fft(FftKind::Fft, &[1, 1, 1, 1]), &["c64[3]"], "error: fft_length must be 1 to 3 long, is 4 long");
    check(Op::Cholesky { lower: true }, &["f32[7,3,3]"], "f32[7,3,3]");
    check(
        Op::Cholesky { lower: true },
        &["f32[2,3]"],
        "error: operand 0 must be of rank 2 or more with equal last extents, is f32[2,3]",
    );
    check(
        Op::Cholesky { lower: true },
        &["s32[3,3]"],
        "error: operand 0 must be of floating-point or complex type, is s32[3,3]",
    );
    let left = TriangularSolve { left_side: true, ..Default::default() };
    check(Op::TriangularSolve(left), &["f32[3,3]", "f32[3,4]"], "f32[3,4]");
    check(
        Op::TriangularSolve(left),
        &["f32[3,3]", "f32[4,3]"],
        "error: operands 0 and 1 must have the same extent in the shared dimension, are f32[3,3] and f32[4,3]",
    );
    let norm = Op::BatchNormTraining { epsilon: 0.1, feature_index: 2 };
    check(norm, &["f32[10,20,3]", "f32[3]", "f32[3]"], "(f32[10,20,3], f32[3], f32[3])");
    let grad = Op::BatchNormGrad { epsilon: 0.1, feature_index: 2 };
    check(
        grad,
        &["f32[10,3,3]", "f32[3]", "f32[3]", "f32[3]", "f32[10,3,3]"],
        "(f32[10,3,3], f32[3], f32[3])",
    );
    let inference = Op::BatchNormInference { epsilon: 0.1, feature_index: 1 };
    check(
        inference,
        &["f32[4,3]", "f32[3]", "f32[3]", "f32[4]", "f32[3]"],
        "error: operand 3 must be a vector of 3 features, is f32[4]",
    );
}

#[test]
fn control_flow() {
    check(Op::Tuple, &["f32[2]", "(s32[], token[])"], "(f32[2], (s32[], token[]))");
    check(Op::GetTupleElement { index: 1 }, &["(f32[2], (s32[]))"], "(s32[])");
    check(Op::GetTupleElement { index: 2 }, &["(f32[2], s32[])"], "error: index must be less than 2, is 2");
    check(Op::GetTupleElement { index: 0 }, &["f32[2]"], "error: operand 0 must be a tuple, is f32[2]");
    check(Op::AfterAll, &[], "token[]");
    check(Op::AfterAll, &["token[]", "f32[]"], "token[]");
    check(Op::OptimizationBarrier, &["(f32[2])"], "(f32[2])");
    let call = || Op::Call { is_composite: false };
    check_calling(call(), &["f32[2]"], (&["f32[2]"], "(s32[])"), "(s32[])");
    check_calling(
        call(),
        &["f32[3]"],
        (&["f32[2]"], "(s32[])"),
        "error: parameter 0 of computation f must be f32[3], is f32[2]",
    );
    check_calling(call(), &[], (&["f32[2]"], "(s32[])"), "error: computation f takes 0 parameters, has 1");

    let mut module = Module::new("test");
    let body = computation(&mut module, "body", &["(f32[2], s32[])"], "(f32[2], s32[])");
    let condition = computation(&mut module, "condition", &["(f32[2], s32[])"], "pred[]");
    let other = computation(&mut module, "other", &["(f32[2], s32[])"], "(f32[3], s32[])");
    let init = ["(f32[2], s32[])"];
    check_with(&module, Op::While, &init, &[body, condition], None, init[0]);
    check_with(
        &module,
        Op::While,
        &init,
        &[condition, body],
        None,
        "error: the result of computation body must be pred[], is (f32[2], s32[])",
    );
    check_with(
        &module,
        Op::While,
        &init,
        &[other, condition],
        None,
        "error: the result of computation other must be (f32[2], s32[]), is (f32[3], s32[])",
    );
    check_with(
        &module,
        Op::While,
        &["f32[]"],
        &[body, condition],
        None,
        "error: parameter 0 of computation body must be f32[], is (f32[2], s32[])",
    );
    check_with(&module, Op::While, &init, &[body], None, "error: calls 2 computations, has 1");
    check_with(&module, Op::Conditional, &["pred[]", init[0], init[0]], &[body, body], None, init[0]);
    check_with(&module, Op::Conditional, &["s32[]", init[0]], &[body], None, init[0]);
    check_with(
        &module,
        Op::Conditional,
        &["pred[]", init[0]],
        &[body],
        None,
        "error: calls 2 computations, has 1",
    );
    check_with(
        &module,
        Op::Conditional,
        &["pred[]", init[0], init[0]],
        &[body, other],
        None,
        "error: the result of computation other must be (f32[2], s32[]), is (f32[3], s32[])",
    );
    check_with(
        &module,
        Op::Conditional,
        &["u32[]", init[0]],
        &[body],
        None,
        "error: operand 0 must be a pred or s32 scalar, is u32[]",
    );
    let unknown = ComputationId::new(99);
    check_with(
        &module,
        call(),
        &[],
        &[unknown],
        None,
        "error: comp99 is not a complete computation of this module",
    );
}

#[test]
fn tuples_do_not_explode() {
    let mut shape = Shape::scalar(ElementType::F32);
    let module = Module::new("test");
    let doubled = (0..64).find_map(|_| match infer_shape(&module, &Op::Tuple, &[&shape, &shape], &[]) {
        Ok(pair) => {
            shape = pair;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(doubled, Some(InferError::TupleTooLarge));
}

#[test]
fn in_flight() {
    check(Op::CopyStart { cross_program_prefetch_index: None }, &["f32[2]"], "(f32[2], f32[2], u32[])");
    check(Op::CopyDone, &["(f32[2], f32[2], u32[])"], "f32[2]");
    check(Op::Send(Default::default()), &["f32[2]", "token[]"], "(f32[2], u32[], token[])");
    check(Op::SendDone(Default::default()), &["(f32[2], u32[], token[])"], "token[]");
    check(
        Op::Recv(Default::default()),
        &["token[]"],
        "error: cannot infer the shape of recv: its operands leave it open, so it must be given",
    );
    check_given(
        Op::Recv(Default::default()),
        &["token[]"],
        "(f32[2], u32[], token[])",
        "(f32[2], u32[], token[])",
    );
    check(Op::RecvDone(Default::default()), &["(f32[2], u32[], token[])"], "(f32[2], token[])");
    check_given(Op::Infeed(Default::default()), &["token[]"], "((f32[2]), token[])", "((f32[2]), token[])");
    check(Op::Outfeed(Default::default()), &["f32[2]", "token[]"], "token[]");
    check(
        Op::Outfeed(Default::default()),
        &["f32[2]", "f32[]"],
        "error: operand 1 must be a token, is f32[]",
    );
    let f = (&["f32[2]", "s32[]"][..], "f32[4]");
    check_calling(Op::AsyncStart(Default::default()), &["f32[2]", "s32[]"], f, "((f32[2], s32[]), f32[4])");
    check_calling(
        Op::AsyncStart(Default::default()),
        &["f32[3]", "s32[]"],
        f,
        "error: parameter 0 of computation f must be f32[3], is f32[2]",
    );
    check(Op::AsyncUpdate(Default::default()), &["((f32[2]), f32[4], u32[])"], "((f32[2]), f32[4], u32[])");
    check(Op::AsyncDone(Default::default()), &["((f32[2]), f32[4], u32[])"], "f32[4]");
    check(
        Op::AsyncDone(Default::default()),
        &["f32[4]"],
        "error: operand 0 must be a tuple of 2 or more, is f32[4]",
    );
}

#[test]
fn collectives() {
    let groups = || Collective {
        dimension: Some(0),
        replica_groups: ReplicaGroups::List(vec![vec![0, 1], vec![2, 3]]),
        ..Default::default()
    };
    let unknown = || Collective { dimension: Some(0), ..Default::default() };
    check(Op::AllGather(Box::new(groups())), &["f32[3,2]"], "f32[6,2]");
    check(Op::AllGather(Box::new(groups())), &["f32[3]", "f32[<=4]"], "(f32[6], f32[<=8])");
    check(
        Op::AllGather(Box::new(unknown())),
        &["f32[3,2]"],
        "error: cannot infer the shape of all-gather: its operands leave it open, so it must be given",
    );
    check_given(Op::AllGather(Box::new(unknown())), &["f32[3,2]"], "f32[12,2]", "f32[12,2]");
    check(Op::AllGatherStart(Box::new(groups())), &["f32[3]"], "(f32[3], f32[6])");
    check(Op::AllGatherDone(Box::new(groups())), &["(f32[3], f32[6])"], "f32[6]");
    let huge = format!("f32[{}]", i64::MAX);
    check(
        Op::AllGather(Box::new(groups())),
        &[&huge],
        "error: dimension 0 of the result would be beyond 64 bits",
    );
    let add = (&["f32[]", "f32[]"][..], "f32[]");
    check_calling(Op::AllReduce(Box::new(groups())), &["f32[3]", "f32[4]"], add, "(f32[3], f32[4])");
    check_calling(Op::ReduceScatter(Box::new(groups())), &["f32[4]"], add, "f32[2]");
    check_calling(
        Op::ReduceScatter(Box::new(groups())),
        &["f32[5]"],
        add,
        "error: operand 0 must be of an extent divisible by 2 in dimension 0, is f32[5]",
    );
    check_calling(
        Op::AllReduce(Box::new(groups())),
        &["f32[3]"],
        (&["f32[]"], "f32[]"),
        "error: computation f takes 2 parameters, has 1",
    );
    check(Op::AllToAll(Box::new(groups())), &["f32[4]"], "f32[4]");
    check(Op::AllToAll(Box::default()), &["f32[4]", "f32[4]"], "(f32[4], f32[4])");
    check(
        Op::AllToAll(Box::default()),
        &["f32[4]", "f32[5]"],
        "error: operands 0 and 1 must have the same shape, are f32[4] and f32[5]",
    );
    let offsets = "s32[2]";
    check(
        Op::RaggedAllToAll(Box::new(groups())),
        &["f32[4]", "f32[9]", offsets, offsets, offsets, offsets],
        "f32[9]",
    );
    check(Op::CollectivePermute(Box::new(groups())), &["f32[4]"], "f32[4]");
    check_given(
        Op::CollectivePermuteStart(Box::new(groups())),
        &["f32[4]"],
        "(f32[4], f32[4], u32[], u32[])",
        "(f32[4], f32[4], u32[], u32[])",
    );
    let in_place = Collective { slice_sizes: vec![list(&[1])], ..Default::default() };
    check(
        Op::CollectivePermute(Box::new(in_place.clone())),
        &["f32[4]", "f32[9]", "(s32[])", "(s32[])"],
        "f32[9]",
    );
    check(Op::CollectivePermute(Box::new(in_place)), &["f32[4]"], "error: takes 4 operands, has 1");
}

#[test]
fn declared_in_place_operands_must_fit() {
    let alias = |operand, index: &[u32]| CustomCall {
        output_operand_aliasing: vec![OutputOperandAlias {
            output_index: ShapeIndex::root(),
            operand,
            operand_index: index.iter().copied().into(),
        }],
        ..Default::default()
    };
    check_given(Op::CustomCall(Box::new(alias(0, &[1]))), &["(s32[], f32[2])"], "f32[2]", "f32[2]");
    check_given(
        Op::CustomCall(Box::new(alias(0, &[0]))),
        &["(s32[], f32[2])"],
        "f32[2]",
        "error: output_to_operand_aliasing must be of one shape, f32[2] as output {}, is s32[]",
    );
    check_given(
        Op::CustomCall(Box::new(alias(1, &[]))),
        &["f32[2]"],
        "f32[2]",
        "error: output_to_operand_aliasing must be an operand and an index into it, is (1, {})",
    );
}
