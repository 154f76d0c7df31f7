//! Reservations of kernels: the rule, its instructions, and the use of libtpu's kernels.

use memplan_analysis::{KernelScratch, kernel_scratch};
use memplan_hlo::parse;
use memplan_ir::{InstructionId, Module};
use memplan_memory::{Bytes, MemorySpaceId, Target};
use memplan_testkit::corpus;

const VMEM: MemorySpaceId = MemorySpaceId(1);

#[test]
fn the_rule() {
    let target = Target::find("tpu-v5e").unwrap();
    let mut vmem = target.space(VMEM).unwrap().clone();
    let (base, limit) = (512 << 10, 16 << 20);
    let cases =
        [(0, 0), (512, base + 1024), (1 << 20, base + (2 << 20)), (1 << 40, limit), (u64::MAX, limit)];
    for (touched, expected) in cases {
        assert_eq!(vmem.scratch_of_kernel(Bytes(touched)), Bytes(expected), "{touched}");
    }
    vmem.kernel_scratch_per_byte = None;
    assert_eq!(vmem.scratch_of_kernel(Bytes(512)), Bytes(limit), "without a rule the limit is all there is");
    assert_eq!(vmem.scratch_of_kernel(Bytes(0)), Bytes(0), "scalars need none");
}

/// Kernels of the entry, of loops and of branches; no transfers, no control flow, nothing that only passes values on,
/// and nothing inside of kernels or of asynchronous calls.
#[test]
fn kernels_reserve() {
    let module = parse(
        "HloModule m, is_scheduled=true
inside {
  f = f32[1024]{0} parameter(0)
  ROOT e = f32[1024]{0} exponential(f)
}
sliced {
  a = f32[1024]{0} parameter(0)
  ROOT d = f32[256]{0} slice(a), slice={[0:256]}
}
condition {
  c = (s32[], f32[1024]{0}) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(3)
  ROOT less = pred[] compare(i, n), direction=LT
}
body {
  b = (s32[], f32[1024]{0}) parameter(0)
  j = s32[] get-tuple-element(b), index=0
  x = f32[1024]{0} get-tuple-element(b), index=1
  one = s32[] constant(1)
  k = s32[] add(j, one)
  fused = f32[1024]{0} fusion(x), kind=kLoop, calls=inside
  ROOT t = (s32[], f32[1024]{0}) tuple(k, fused)
}
ENTRY main {
  p = f32[1024]{0} parameter(0)
  z = s32[] constant(0)
  start = ((f32[1024]{0}), f32[256]{0}, s32[]) async-start(p), calls=sliced
  state = (s32[], f32[1024]{0}) tuple(z, p)
  loop = (s32[], f32[1024]{0}) while(state), condition=condition, body=body
  y = f32[1024]{0} get-tuple-element(loop), index=1
  part = f32[256]{0} async-done(start)
  view = f32[4,256]{1,0} bitcast(y)
  storage = f32[4,256]{1,0} custom-call(), custom_call_target=\"AllocateBuffer\"
  wide = f32[4,256]{1,0} broadcast(part), dimensions={1}
  own = f32[4,256]{1,0} custom-call(wide, storage), custom_call_target=\"mine\"
  ROOT sum = f32[4,256]{1,0} add(own, view)
}",
    )
    .unwrap();
    let target = Target::find("tpu-v5e").unwrap();
    let found: Vec<(&str, u64)> = kernel_scratch(&module, &target)
        .iter()
        .map(|it| (&*module.instructions[it.instruction].name, (it.size.0 - (512 << 10)) / 2 / 4))
        .collect();
    let expected = [("fused", 2048), ("wide", 1280), ("own", 3072), ("sum", 3072)];
    assert_eq!(found, expected, "elements of operands and results");
    assert_eq!(kernel_scratch(&module, &Target::find("gpu-h100").unwrap()), []);
}

/// What libtpu says that its kernels use (`used_scoped_memory_configs`) begins at offset 0, and is within what the rule
/// reserves for at least 99 of 100 that use any.
#[test]
fn kernels_of_libtpu_are_within_the_rule() {
    let target = Target::find("tpu-v5e").unwrap();
    let (mut within, mut all) = (0, 0);
    for program in corpus() {
        let module = parse(&program.text("tpu")).unwrap();
        let reserved = kernel_scratch(&module, &target);
        for (id, _) in module.instructions.iter() {
            let Some(used) = scoped_memory(&module, id).filter(|&used| used > 0) else { continue };
            let is_enough =
                |it: &KernelScratch| it.instruction == id && it.space == VMEM && it.size.0 >= used;
            all += 1;
            within += usize::from(reserved.iter().any(is_enough));
        }
    }
    assert!(all > 100 && within * 100 >= all * 99, "{within} of {all}");
}

/// Bytes of VMEM that libtpu's kernel for an instruction uses, when it says so.
fn scoped_memory(module: &Module, id: InstructionId) -> Option<u64> {
    let config = std::str::from_utf8(module.instructions[id].backend_config.as_deref()?).unwrap();
    let (_, rest) = config.split_once("\"used_scoped_memory_configs\":[{")?;
    let (entry, _) = rest.split_once('}')?;
    assert!(entry.starts_with("\"memory_space\":\"1\",\"offset\":\"0\",\"size\":\""), "{entry}");
    entry.split('"').nth(11)?.parse().ok()
}
