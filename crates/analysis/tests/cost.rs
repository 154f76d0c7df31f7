//! Operations, reads and writes of instructions, on programs small enough to count by hand.

use memplan_analysis::{CallGraph, Costs, InPlace, KernelCosts, Products, Registers, RunEstimate, Work};
use memplan_hlo::parse;
use memplan_ir::{ElementType, InstructionId, Module};
use memplan_memory::{Bytes, FastMemory, MemorySpace, MemorySpaceId, Target, Transfer};
use memplan_testkit::corpus;

fn costs(module: &Module, target: &Target) -> (CallGraph, Costs) {
    let graph = CallGraph::new(module).unwrap();
    let costs = Costs::new(module, &graph, &InPlace::new(module), target);
    (graph, costs)
}

fn named(module: &Module, name: &str) -> InstructionId {
    module.instructions.iter().find(|(_, i)| &*i.name == name).map(|(id, _)| id).unwrap()
}

/// How often the body of the only loop runs. What the body adds to its state may take several instructions.
#[track_caller]
fn check_trips(body: &str, condition: &str, expected: Option<u64>) {
    let (before, body) = body.rsplit_once("; ").unwrap_or(("", body));
    let before: String = before.split_terminator("; ").map(|line| format!("\n  {line}")).collect();
    let text = format!(
        "HloModule m\n\nplus {{\n  a = s32[] parameter(0)\n  two = s32[] constant(2)\n  ROOT r = s32[] add(a, two)\n}}\n\n\
         both {{\n  n = s32[] parameter(0)\n  a = s32[] parameter(1)\n  two = s32[] constant(2)\n  r = s32[] add(a, two)\n  ROOT t = (s32[], s32[]) tuple(n, r)\n}}\n\n\
         nested {{\n  a = s32[] parameter(0)\n  c = s32[] copy(a)\n  ROOT r = s32[] fusion(c), kind=kLoop, calls=plus\n}}\n\n\
         below {{\n  n = s32[] parameter(0)\n  a = s32[] parameter(1)\n  ROOT r = pred[] compare(a, n), direction=LT\n}}\n\n\
         body {{\n  s = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         n = s32[] get-tuple-element(s), index=1{before}\n  next = s32[] {body}\n  ROOT r = (s32[], s32[]) tuple(next, n)\n}}\n\n\
         condition {{\n  s = (s32[], s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
         n = s32[] get-tuple-element(s), index=1\n  ROOT r = pred[] {condition}\n}}\n\n\
         ENTRY e {{\n  zero = s32[] constant(0)\n  ten = s32[] constant(10)\n  init = (s32[], s32[]) tuple(zero, ten)\n  \
         ROOT loop = (s32[], s32[]) while(init), condition=condition, body=body\n}}\n"
    );
    let module = parse(&text).unwrap();
    assert_eq!(memplan_analysis::trip_count(&module, named(&module, "loop")), expected);
}

#[test]
fn trips_are_counted_through_fusions() {
    check_trips("add(i, i)", "compare(i, n), direction=LT", None);
    check_trips("fusion(i), kind=kLoop, calls=plus", "compare(i, n), direction=LT", Some(5));
    check_trips("fusion(i), kind=kLoop, calls=plus", "fusion(n, i), kind=kLoop, calls=below", Some(5));
    // What is compared is not the counter.
    check_trips("fusion(i), kind=kLoop, calls=plus", "fusion(n, n), kind=kLoop, calls=below", None);
    check_trips("fusion(n), kind=kLoop, calls=plus", "fusion(n, i), kind=kLoop, calls=below", None);
}

/// As compilers leave them.
#[test]
fn trips_are_counted_through_copies_and_tuples() {
    let check = |body: &str, expected| check_trips(body, "compare(i, n), direction=LT", expected);
    check("two = s32[] constant(2); c = s32[] copy(i); add(c, two)", Some(5));
    check("two = s32[] constant(2); c = s32[] copy(i); b = s32[] bitcast(c); add(b, two)", Some(5));
    let transfer = "c = (s32[], s32[], u32[]) copy-start(i); d = s32[] copy-done(c)";
    check(&format!("two = s32[] constant(2); {transfer}; add(d, two)"), Some(5));
    check("f = (s32[], s32[]) fusion(n, i), kind=kLoop, calls=both; get-tuple-element(f), index=1", Some(5));
    check("f = (s32[], s32[]) fusion(n, i), kind=kLoop, calls=both; get-tuple-element(f), index=0", None);
    check("fusion(i), kind=kLoop, calls=nested", Some(5));
    // A copy of something else.
    check("two = s32[] constant(2); c = s32[] copy(n); add(c, two)", None);
    // As an unsigned number it could be another one.
    check("two = u32[] constant(2); b = s32[] bitcast(two); add(i, b)", None);
}

/// The way through 64 fusions of fusions is longer than anybody can follow.
#[test]
fn trips_through_too_many_fusions_are_not_counted() {
    let mut text = String::from(
        "HloModule m\n\nf0 {\n  a = s32[] parameter(0)\n  two = s32[] constant(2)\n  ROOT r = s32[] add(a, two)\n}\n",
    );
    for n in 1..64 {
        text += &format!(
            "\nf{n} {{\n  a = s32[] parameter(0)\n  b = s32[] fusion(a), kind=kLoop, calls=f{0}\n  \
             ROOT r = s32[] fusion(b), kind=kLoop, calls=f{0}\n}}\n",
            n - 1
        );
    }
    text += "\nbody {\n  s = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
             next = s32[] fusion(i), kind=kLoop, calls=f63\n  ROOT r = (s32[]) tuple(next)\n}\n\n\
             condition {\n  s = (s32[]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n  \
             ten = s32[] constant(10)\n  ROOT r = pred[] compare(i, ten), direction=LT\n}\n\n\
             ENTRY e {\n  zero = s32[] constant(0)\n  init = (s32[]) tuple(zero)\n  \
             ROOT loop = (s32[]) while(init), condition=condition, body=body\n}\n";
    let module = parse(&text).unwrap();
    assert_eq!(memplan_analysis::trip_count(&module, named(&module, "loop")), None);
}

/// Accesses as `operand:bytes`, `>` for the result.
#[track_caller]
fn check(text: &str, name: &str, expected: &str) -> Work {
    let module = parse(&format!("HloModule m\n{text}")).unwrap();
    let (_, costs) = costs(&module, &Target::find("toy").unwrap());
    let work = costs.work(named(&module, name)).clone();
    let shown = work.accesses.iter().map(|access| match access.operand {
        Some(operand) => format!("{operand}:{}", access.bytes.0),
        None => format!(">{}:{}", access.index, access.bytes.0),
    });
    assert_eq!(shown.collect::<Vec<_>>().join(" "), expected);
    work
}

#[test]
fn kernels_read_operands_and_write_results() {
    let work = check(
        "ENTRY e {
           a = f32[8,16] parameter(0)
           b = f32[16,4] parameter(1)
           ROOT d = f32[8,4] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
         }",
        "d",
        "0:512 1:256 >{}:128",
    );
    let operations = 2.0 * 8.0 * 4.0 * 16.0;
    let products = Products { element_type: ElementType::F32, operations, padded: operations, start: 0.0 };
    assert_eq!(work.matrix.as_slice(), [products]);
}

#[test]
fn slices_read_what_they_take() {
    check(
        "ENTRY e {
           a = f32[64,16] parameter(0)
           i = s32[] parameter(1)
           ROOT d = f32[1,16] dynamic-slice(a, i, i), dynamic_slice_sizes={1,16}
         }",
        "d",
        "0:64 >{}:64",
    );
}

#[test]
fn updates_in_place_write_the_update() {
    check(
        "ENTRY e {
           a = f32[64,16] parameter(0)
           u = f32[2,16] parameter(1)
           i = s32[] parameter(2)
           ROOT d = f32[64,16] dynamic-update-slice(a, u, i, i)
         }",
        "d",
        "1:128 >{}:128",
    );
}

#[test]
fn fusions_read_what_their_insides_need() {
    // Of the table two rows, through an elementwise operation; all of `x`, once, though it is used twice; nothing of
    // what is updated in place.
    let work = check(
        "inner {
           table = f32[64,16] parameter(0)
           x = f32[2,16] parameter(1)
           stack = f32[8,2,16] parameter(2)
           i = s32[] parameter(3)
           zero = s32[] constant(0)
           small = f32[64,16] negate(table)
           rows = f32[2,16] slice(small), slice={[3:5], [0:16]}
           sum = f32[2,16] add(rows, x)
           y = f32[2,16] multiply(sum, x)
           update = f32[1,2,16] reshape(y)
           ROOT out = f32[8,2,16] dynamic-update-slice(stack, update, i, zero, zero)
         }
         ENTRY e {
           table = f32[64,16] parameter(0)
           x = f32[2,16] parameter(1)
           stack = f32[8,2,16] parameter(2)
           i = s32[] parameter(3)
           ROOT f = f32[8,2,16] fusion(table, x, stack, i), kind=kLoop, calls=inner
         }",
        "f",
        "0:128 1:128 >{}:128",
    );
    // Negations of two rows, additions, multiplications, the slice and the reshape, and the update.
    assert_eq!(work.vector, 6.0 * 32.0);
}

#[test]
fn what_passes_values_on_costs_nothing() {
    let text = "ENTRY e { a = f32[4] parameter(0) b = f32[2,2] bitcast(a) ROOT t = (f32[2,2]) tuple(b) }";
    check(text, "b", "");
    check(text, "t", "");
}

const LOOP: &str = "
body {
  state = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4] get-tuple-element(state), index=1
  n = s32[] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[4] negate(x)
  ROOT result = (s32[], f32[4], s32[]) tuple(next, y, n)
}
condition {
  state = (s32[], f32[4], s32[]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] get-tuple-element(state), index=2
  ROOT goes_on = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  n = s32[] constant(12)
  init = (s32[], f32[4], s32[]) tuple(zero, x, n)
  ROOT loop = (s32[], f32[4], s32[]) while(init), condition=condition, body=body
}";

#[test]
fn loops_count_as_often_as_they_run() {
    // The bound comes in as state that the body hands through.
    let module = parse(&format!("HloModule m\n{LOOP}")).unwrap();
    let target = Target::find("toy").unwrap();
    let (graph, costs) = costs(&module, &target);
    let parent = |name| module.instructions[named(&module, name)].parent;
    assert_eq!(costs.frequency(parent("y")), 12.0);
    assert_eq!(costs.frequency(parent("goes_on")), 13.0);
    assert_eq!(RunEstimate::new(&module, &graph, &costs, &target).main_memory_bytes, 12.0 * 32.0);
}

/// A byte of main memory takes a nanosecond, like a vector operation; fast memory takes no time.
fn machine() -> Target {
    let mut target = Target::find("toy").unwrap();
    let space = |id: u32| MemorySpace {
        id: MemorySpaceId(id),
        name: format!("memory-{id}"),
        capacity: Some(Bytes(1 << 20)),
        bandwidth: (id == 0).then_some(1e9),
        ..target.spaces[0].clone()
    };
    target.spaces = (0..3).map(space).collect();
    let way = |from, to| Transfer {
        from: MemorySpaceId(from),
        to: MemorySpaceId(to),
        bandwidth: None,
        blocks_kernels: false,
    };
    target.transfers = vec![way(0, 1), way(1, 0)];
    target.fast_memory = Some(FastMemory { space: MemorySpaceId(1), flags: MemorySpaceId(2) });
    target.vector_rate = Some(1e9);
    target.validate().unwrap();
    target
}

#[track_caller]
fn check_run(body: &str, nanoseconds: f64, waiting: f64, bytes: f64) {
    let text = format!(
        "HloModule m, is_scheduled=true
         ENTRY e {{
           x = f32[100]{{0:S(1)}} constant({{...}})
           w = f32[100]{{0}} parameter(0)
           {body}
         }}"
    );
    let (module, target) = (parse(&text).unwrap(), machine());
    let (graph, costs) = costs(&module, &target);
    let run = RunEstimate::new(&module, &graph, &costs, &target);
    let close = |found: f64, expected: f64| (found - expected).abs() < 1e-6;
    assert!(
        close(run.seconds * 1e9, nanoseconds)
            && close(run.waiting * 1e9, waiting)
            && run.main_memory_bytes == bytes,
        "{run:?}"
    );
}

const START: &str = "s = (f32[100]{0:S(1)}, f32[100]{0}, u32[]{:S(2)}) copy-start(w)";
const DONE: &str = "d = f32[100]{0:S(1)} copy-done(s)";

#[test]
fn transfers_hide_behind_compute() {
    // An exponential of 100 elements takes 800 ns and leaves main memory alone, so that 400 bytes arrive meanwhile.
    check_run(&format!("{START} a = f32[100]{{0:S(1)}} exponential(x) ROOT {DONE}"), 800.0, 0.0, 400.0);
    // A negation takes 100 ns; the cores wait for the other 300.
    check_run(&format!("{START} a = f32[100]{{0:S(1)}} negate(x) ROOT {DONE}"), 400.0, 300.0, 400.0);
    // One that writes main memory takes 400 ns, none of them idle.
    check_run(&format!("{START} a = f32[100]{{0}} negate(x) ROOT {DONE}"), 800.0, 400.0, 800.0);
}

/// What a kernel of a program for a TPU passes through its units.
fn on_a_tpu(body: &str) -> (Work, RunEstimate) {
    let text = format!(
        "HloModule m, is_scheduled=true
         sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
         scaled_sum {{
           p = f32[8,2048]{{1,0:T(8,128)}} parameter(0)
           s = f32[8,2048]{{1,0:T(8,128)}} multiply(p, p)
           z = f32[] constant(0)
           ROOT r = f32[8]{{0:T(128)}} reduce(s, z), dimensions={{1}}, to_apply=sum
         }}
         ENTRY e {{
           x = f32[8,2048]{{1,0:T(8,128)}} parameter(0)
           y = pred[32,1024]{{1,0:T(32,128)}} parameter(1)
           w = bf16[64,10]{{1,0:T(8,128)(2,1)}} parameter(2)
           v = bf16[10,64]{{1,0:T(8,128)(2,1)}} parameter(3)
           n = s32[] parameter(4)
           ROOT k = {body}
         }}"
    );
    let (module, target) = (parse(&text).unwrap(), Target::find("tpu-v5e").unwrap());
    let (graph, costs) = costs(&module, &target);
    let kernel = named(&module, "k");
    let run = *KernelCosts::new(&module, &graph, &costs, &target).of(kernel);
    (costs.work(kernel).clone(), run)
}

#[test]
fn kernels_pass_registers_through_the_vector_unit() {
    let registers = |body: &str| on_a_tpu(body).0.registers;
    let two_dimensional = "f32[8,2048]{1,0:T(8,128)}";
    assert_eq!(
        registers(&format!("{two_dimensional} negate(x)")),
        Registers { evaluated: 16.0, accessed: 32.0, is_move: false }
    );
    // What is reduced counts, and not the few sums that come of it.
    let sum = registers("f32[8]{0:T(128)} fusion(x), kind=kLoop, calls=scaled_sum");
    assert_eq!((sum.evaluated, sum.accessed), (16.0, 16.125));
    // Each truth value is a byte in memory, and a word in a register.
    let not = registers("pred[32,1024]{1,0:T(32,128)} not(y)");
    assert_eq!((not.evaluated, not.accessed), (32.0, 16.0));
    assert!(registers(&format!("{two_dimensional} copy(x)")).is_move);
    assert!(!registers("f32[8,2048]{0,1:T(8,128)} copy(x)").is_move);
}

#[test]
fn matrix_units_work_on_whole_tiles() {
    let dot = "bf16[64,64]{1,0:T(8,128)(2,1)} dot(w, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}";
    let [products] = on_a_tpu(dot).0.matrix[..] else { panic!("a product is one") };
    assert_eq!(
        (products.operations, products.padded),
        (2.0 * 64.0 * 64.0 * 10.0, 2.0 * 64.0 * 128.0 * 128.0)
    );
}

#[test]
fn scalars_need_no_kernel() {
    assert_eq!(on_a_tpu("s32[] add(n, n)").1.overhead, 0.0);
    let target = Target::find("tpu-v5e").unwrap();
    assert_eq!(on_a_tpu("f32[8,2048]{1,0:T(8,128)} negate(x)").1.overhead, target.kernel_overhead);
}

/// Loops as XLA's compilers leave them, against what they say themselves.
#[test]
fn trips_are_those_that_compilers_note() {
    for program in corpus() {
        for form in ["cpu", "gpu"] {
            let module = parse(&program.text(form)).unwrap();
            for (id, instruction) in module.instructions.iter() {
                let Some(noted) = memplan_analysis::noted_trip_count(instruction) else { continue };
                let counted = memplan_analysis::trip_count(&module, id);
                assert_eq!(counted, Some(noted), "{} on {form}: {}", program.name, instruction.name);
            }
        }
    }
}

#[test]
fn what_compilers_note_counts_where_trips_are_not_plain_to_see() {
    let text = |config: &str| {
        format!(
            "HloModule m
body {{
  s = (f32[4]) parameter(0)
  x = f32[4] get-tuple-element(s), index=0
  y = f32[4] negate(x)
  ROOT r = (f32[4]) tuple(y)
}}
condition {{
  s = (f32[4]) parameter(0)
  ROOT go = pred[] custom-call(s), custom_call_target=\"more\"
}}
ENTRY e {{
  x = f32[4] parameter(0)
  init = (f32[4]) tuple(x)
  ROOT loop = (f32[4]) while(init), condition=condition, body=body{config}
}}"
        )
    };
    let frequency = |config: &str| {
        let module = parse(&text(config)).unwrap();
        let (_, costs) = costs(&module, &Target::find("toy").unwrap());
        costs.frequency(module.instructions[named(&module, "y")].parent)
    };
    assert_eq!(frequency(""), 10.0);
    assert_eq!(
        frequency(", backend_config={\"known_trip_count\":{\"n\":\"7\"},\"known_init_step\":{}}"),
        7.0
    );
    assert_eq!(frequency(", backend_config={\"known_trip_count\":{\"n\":\"many\"}}"), 10.0);
}

/// What a custom call computes: operations of the matrix units, and of the vector units.
#[track_caller]
fn check_call(target: &str, operands: &[&str], result: &str, attributes: &str, expected: (f64, f64)) {
    let parameters: String =
        operands.iter().enumerate().map(|(i, shape)| format!("  p{i} = {shape} parameter({i})\n")).collect();
    let names: Vec<String> = (0..operands.len()).map(|i| format!("p{i}")).collect();
    let text = format!(
        "HloModule m\nENTRY e {{\n{parameters}  ROOT r = {result} custom-call({}), custom_call_target=\"{target}\"{attributes}\n}}",
        names.join(", ")
    );
    let module = parse(&text).unwrap();
    let work = memplan_analysis::operations(&module, named(&module, "r"));
    let matrix = work.matrix_operations();
    assert_eq!((matrix, work.vector), expected, "{target}");
}

#[test]
fn library_calls_are_what_they_compute() {
    let dot = ", backend_config={\"gemm_backend_config\":{\"alpha_real\":1,\"dot_dimension_numbers\":{\
               \"lhs_contracting_dimensions\":[\"2\"],\"rhs_contracting_dimensions\":[\"1\"],\
               \"lhs_batch_dimensions\":[\"0\"],\"rhs_batch_dimensions\":[\"0\"]}}}";
    let (a, b) = ("f32[3,8,16]", "f32[3,16,32]");
    let result = "(f32[3,8,32], s8[4096])";
    for target in ["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"] {
        check_call(target, &[a, b], result, dot, (2.0 * 3.0 * 8.0 * 16.0 * 32.0, 0.0));
    }
    let transposed = ", backend_config={\"onednn_matmul_config\":{\"transpose_b\":true}}";
    check_call("__onednn$matmul", &["f32[8,16]", "f32[32,16]"], "f32[8,32]", transposed, (8192.0, 0.0));
    // Without a note nothing is known of the product.
    check_call("__cublas$gemm", &[a, b], result, "", (0.0, 768.0));

    // The same convolution in all directions: 4 x 4 positions, 3 x 3 elements, 8 features to 16.
    let labels = ", window={size=3x3}, dim_labels=b01f_o01i->b01f";
    let [input, filter, output] = ["f32[2,6,6,8]", "f32[16,3,3,8]", "f32[2,4,4,16]"];
    let multiplications = 2.0 * 16.0 * 9.0 * 8.0 * 16.0;
    for (target, operands, result) in [
        ("__cudnn$convForward", [input, filter], output),
        ("__cudnn$convBackwardInput", [output, filter], input),
        ("__cudnn$convBackwardFilter", [input, output], filter),
    ] {
        check_call(target, &operands, &format!("({result}, u8[0])"), labels, (2.0 * multiplications, 0.0));
    }

    // 2 x 4 heads, 64 queries and 32 keys of 16 elements; two heads share the keys of one.
    let numbers = "{\"lhs_contracting_dimensions\":[\"3\"],\"rhs_contracting_dimensions\":[\"3\"],\
                   \"lhs_batch_dimensions\":[\"0\",\"2\"],\"rhs_batch_dimensions\":[\"0\",\"2\"]}";
    let attention = |key: &str, mask: &str| {
        format!(
            ", backend_config={{\"cudnn_fmha_backend_config\":{{\"{key}_dot_dimension_numbers\":{numbers},\"mask_type\":\"{mask}\"}}}}"
        )
    };
    let (q, kv) = ("bf16[2,64,4,16]", "bf16[2,32,2,16]");
    let scores = 2.0 * 8.0 * 64.0 * 32.0 * 16.0;
    let (forward, result) = ("__cudnn$fmhaSoftmax", format!("({q}, u8[0])"));
    check_call(forward, &[q, kv, kv], &result, &attention("bmm1", "NO_MASK"), (2.0 * scores, 0.0));
    check_call(forward, &[q, kv, kv], &result, &attention("bmm1", "CAUSAL"), (scores, 0.0));
    let gradients = format!("({q}, {kv}, {kv}, u8[0])");
    let backward = attention("bmm2_grad_gemm2", "NO_MASK");
    check_call("__cudnn$fmhaSoftmaxBackward", &[q, kv, kv], &gradients, &backward, (5.0 * scores, 0.0));

    check_call("TopK", &["f32[16,64]"], "(f32[16,2], s32[16,2])", "", (0.0, 1024.0));
    let sorted = "(f32[16,64], s32[16,64], u8[100])";
    check_call("__cub$DeviceRadixSort", &["f32[16,64]", "s32[16,64]"], sorted, "", (0.0, 1024.0 * 6.0 * 2.0));
    let lu = "(f32[2,9,6], s32[2,6], s32[2])";
    for target in ["lapack_sgetrf_ffi", "cusolver_getrf_ffi"] {
        check_call(target, &["f32[2,9,6]"], lu, "", (0.0, 2.0 * (9.0 * 36.0 - 72.0)));
    }
    check_call("__cusolver$cholesky", &["f32[6,6]"], "(f32[6,6], u8[0], s32[])", "", (0.0, 72.0));
    let kernel = ", backend_config={\"custom_call_config\":{\"cost_estimate\":{\"flops\":\"640\"}}}";
    check_call("tpu_custom_call", &["f32[8]"], "f32[8]", kernel, (640.0, 0.0));
    check_call("somebody's own", &["f32[8]"], "f32[8]", "", (0.0, 8.0));
}

/// What a kernel of a program for a GPU does.
fn on_a_gpu(body: &str) -> (Work, Target) {
    let text = format!(
        "HloModule m, is_scheduled=true
         sum {{ a = f32[] parameter(0) b = f32[] parameter(1) ROOT r = f32[] add(a, b) }}
         last {{ a = f32[] parameter(0) ROOT r = f32[] parameter(1) }}
         ENTRY e {{
           table = f32[1000,64] parameter(0)
           rows = s32[500,1] parameter(1)
           updates = f32[500,64] parameter(2)
           image = f32[8,32,32,64] parameter(3)
           each = f32[3,3,1,64] parameter(4)
           dense = f32[3,3,64,3] parameter(5)
           wide = f32[3,3,64,64] parameter(6)
           square = f32[64,64] parameter(7)
           ROOT k = {body}
         }}"
    );
    let (module, target) = (parse(&text).unwrap(), Target::find("gpu-h100").unwrap());
    let (_, costs) = costs(&module, &target);
    (costs.work(named(&module, "k")).clone(), target)
}

#[test]
fn scatters_that_add_take_what_additions_in_memory_take() {
    let scatter = |combiner: &str| {
        on_a_gpu(&format!(
            "f32[1000,64] scatter(table, rows, updates), update_window_dims={{1}}, inserted_window_dims={{0}}, \
             scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={combiner}"
        ))
    };
    let (adds, target) = scatter("sum");
    let seconds = adds.vector / target.vector_rate.unwrap();
    let rate = target.scatter_rates.get(ElementType::F32).unwrap();
    assert!((seconds * rate / (500.0 * 64.0) - 1.0).abs() < 1e-9, "{seconds}");
    assert_eq!(scatter("last").0.vector, 500.0 * 64.0);
}

#[test]
fn convolutions_on_gpus_compute_whole_tiles_or_each_feature_by_itself() {
    let convolution = |result: &str, kernel: &str, groups: u64| {
        let text = format!(
            "f32[8,32,32,{result}] convolution(image, {kernel}), window={{size=3x3 pad=1_1x1_1}}, \
             dim_labels=b01f_01io->b01f, feature_group_count={groups}"
        );
        let [products] = on_a_gpu(&text).0.matrix[..] else { panic!("a convolution is one product") };
        products
    };
    let (few, many) = (convolution("3", "dense", 1), convolution("64", "wide", 1));
    assert!(few.operations < many.operations / 20.0);
    assert_eq!(few.padded, many.padded);
    let share = Target::find("gpu-h100").unwrap().matrix_cores.unwrap().depthwise_share.unwrap();
    let each = convolution("64", "each", 64);
    assert_eq!(each.padded, each.operations / share);
}

#[test]
fn working_memory_of_libraries_is_not_written() {
    let (work, _) = on_a_gpu(
        "(f32[64,64], s8[33554432]) custom-call(square, square), custom_call_target=\"__cublas$gemm\", \
         backend_config={\"gemm_backend_config\":{\"dot_dimension_numbers\":{\"lhs_contracting_dimensions\":[\"1\"],\
         \"rhs_contracting_dimensions\":[\"0\"],\"lhs_batch_dimensions\":[],\"rhs_batch_dimensions\":[]}}}",
    );
    assert_eq!(work.accessed(), 3.0 * 64.0 * 64.0 * 4.0);
}
