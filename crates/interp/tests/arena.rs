//! Programs inside the memory of their plans compute the same results as with separate buffers, bit for bit.

use crate::support;
use memplan_interp::{Error, Options, evaluate, npz, run_in_arena};
use memplan_ir::{ArrayLiteral, ElementType, Literal, Module, Shape};
use memplan_testkit::{CorpusProgram, assert_close, corpus, numerics};

#[test]
fn numerics_in_the_arena() {
    for case in numerics() {
        let module = read(&case.text);
        let inputs = npz::read_inputs(&module, case.inputs()).expect("the inputs fit");
        check(&case.name, &module, &inputs, "cpu");
    }
}

#[test]
fn scheduled_programs_in_the_arena() {
    for program in corpus().into_iter().filter(CorpusProgram::is_small) {
        for (form, target) in [("cpu", "cpu"), ("gpu", "gpu-h100")] {
            let name = format!("{} for {form}", program.name);
            let module = read(&program.text(form));
            let before = read(&program.text("before"));
            let inputs = inputs(&before);
            // cuDNN's convolutions are foreign.
            if let Err(Error::UnknownCustomCall { .. }) = evaluate(&module, &inputs, &Options::default()) {
                eprintln!("skipped: {name} calls a library");
                continue;
            }
            let found = check(&name, &module, &inputs, target);
            let meant = evaluate(&before, &inputs, &Options::default()).expect("the program is evaluated");
            // XLA leaves out conversions to half precision where it may, and then rounds less often.
            let tolerance = if program.text("before").contains("bf16[") { 1.0 / 64.0 } else { 1e-3 };
            assert_close(&name, &found, &meant, tolerance);
        }
    }
}

#[test]
fn an_update_that_reads_its_base_elsewhere_is_right_or_refused() {
    // In place, later elements would be made of those already shifted.
    let text = "HloModule m\n\nf {\n  b = s32[600] parameter(0)\n  i = s32[] parameter(1)\n  \
                u = s32[599] slice(b), slice={[0:599]}\n  ROOT r = s32[600] dynamic-update-slice(b, u, i)\n}\n\n\
                ENTRY e {\n  p = s32[600] parameter(0)\n  one = s32[] constant(1)\n  n = s32[600] negate(p)\n  \
                ROOT r = s32[600] fusion(n, one), kind=kLoop, calls=f\n}\n";
    let module = memplan_hlo::parse(text).expect("the module is valid");
    let bytes: Vec<u8> = (0..600i32).flat_map(i32::to_le_bytes).collect();
    let input = Literal::array(ElementType::S32, [600], bytes);
    let found = in_arena("shift", &module, &[input], "cpu");
    let expected: Vec<u8> = (0..600i32).flat_map(|i| (1 - i).min(0).to_le_bytes()).collect();
    match found {
        Ok(found) => assert_eq!(found, Literal::array(ElementType::S32, [600], expected)),
        Err(error) => assert!(matches!(error, Error::BrokenPlan(_)), "{error}"),
    }
}

#[test]
fn an_asynchronous_update_works_in_place() {
    let text = "HloModule m

body {
  s = (s32[], f32[8,300]{1,0}, f32[1,300]{1,0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  stack = f32[8,300]{1,0} get-tuple-element(s), index=1
  x = f32[1,300]{1,0} get-tuple-element(s), index=2
  zero = s32[] constant(0)
  y = f32[1,300]{1,0} sine(x)
  start = ((f32[8,300]{1,0}, f32[1,300]{1,0}, s32[], s32[]), f32[8,300]{1,0}, s32[]) dynamic-update-slice-start(stack, y, i, zero)
  z = f32[1,300]{1,0} cosine(y)
  done = f32[8,300]{1,0} dynamic-update-slice-done(start)
  one = s32[] constant(1)
  next = s32[] add(i, one)
  ROOT r = (s32[], f32[8,300]{1,0}, f32[1,300]{1,0}) tuple(next, done, z)
}

condition {
  s = (s32[], f32[8,300]{1,0}, f32[1,300]{1,0}) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(8)
  ROOT c = pred[] compare(i, end), direction=LT
}

ENTRY main {
  p = f32[8,300]{1,0} parameter(0)
  stack = f32[8,300]{1,0} negate(p)
  x = f32[1,300]{1,0} parameter(1)
  zero = s32[] constant(0)
  init = (s32[], f32[8,300]{1,0}, f32[1,300]{1,0}) tuple(zero, stack, x)
  loop = (s32[], f32[8,300]{1,0}, f32[1,300]{1,0}) while(init), condition=condition, body=body
  ROOT y = f32[8,300]{1,0} get-tuple-element(loop), index=1
}
";
    let module = memplan_hlo::parse(text).expect("the module is valid");
    let array = |dimensions: [i64; 2], scale: f32| {
        let n = dimensions.iter().product::<i64>();
        let bytes = (0..n).flat_map(|i| (i as f32 * scale).to_le_bytes()).collect::<Vec<u8>>();
        Literal::array(ElementType::F32, dimensions, bytes)
    };
    check("async update", &module, &[array([8, 300], 1.0), array([1, 300], 0.01)], "cpu");
}

/// Plans a module and runs it both ways.
#[track_caller]
fn check(name: &str, module: &Module, inputs: &[Literal], target: &str) -> Literal {
    let meant = evaluate(module, inputs, &Options::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = in_arena(name, module, inputs, target).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(found == meant, "{name}: the arena gives something else");
    found
}

/// Plans a module and runs it inside the plan.
#[track_caller]
fn in_arena(name: &str, module: &Module, inputs: &[Literal], target: &str) -> Result<Literal, Error> {
    let (module, planned) = support::planned(module, target).unwrap_or_else(|e| panic!("{name}: {e}"));
    run_in_arena(&module, &planned.schedule, &planned.plan, inputs, &Options::default())
}

/// Numbers like those the numerics cases have: small floats of both signs, few integers.
fn inputs(module: &Module) -> Vec<Literal> {
    let mut state = 1u64;
    let mut next = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f32 / (1u64 << 31) as f32
    };
    let parameters = &module.entry_computation().parameters;
    parameters
        .iter()
        .map(|&p| {
            let Shape::Array(shape) = module.shape(p) else { panic!("a parameter is an array") };
            let n = shape.element_count().expect("extents are known") as usize;
            let bytes: Vec<u8> = match shape.element_type {
                ElementType::F32 => (0..n).flat_map(|_| (next() * 0.5 + 0.05).to_le_bytes()).collect(),
                ElementType::Bf16 => {
                    (0..n).flat_map(|_| ((next().to_bits() >> 16) as u16).to_le_bytes()).collect()
                }
                t => (0..n)
                    .flat_map(|_| ((next() * 3.0) as u64).to_le_bytes()[..t.byte_width() as usize].to_vec())
                    .collect(),
            };
            Literal::Array(ArrayLiteral::new(shape.element_type, shape.dimensions.iter().copied(), bytes))
        })
        .collect()
}

fn read(text: &str) -> Module {
    memplan_hlo::parse(text).expect("the module is valid")
}
