//! Kernels use no memory but their operands, their results, and the scratch they ask for: counted.
//!
//! A kernel's registers have a fixed size, for any operands; the limit allows for them.

#![expect(unsafe_code, reason = "an allocator that counts is one, which is unsafe to be")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use memplan_interp::{Options, evaluate, scratch_bytes};
use memplan_ir::{ArrayLiteral, ElementType, Literal, Module};

/// The system's allocator, with the bytes in use and the most there were.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(used, Ordering::Relaxed);
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Registers, the blocks of products, kernels, and the module's own bookkeeping.
const FIXED: usize = 3 << 18;

/// Large enough for a hidden copy of an array of this many elements to show.
const N: usize = 1 << 18;

#[test]
fn kernels_work_in_their_scratch() {
    let less = "less {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n\n";
    let add = "add {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n\n";
    let step = "step {\n  a = f32[4096] parameter(0)\n  b = f32[4096] parameter(1)\n  s = f32[4096] add(a, b)\n  ROOT r = (f32[4096], f32[4096]) tuple(s, s)\n}\n\n";
    let branch = "yes {\n  ROOT a = f32[] parameter(0)\n}\n\nmaximum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  p = pred[] compare(a, b), direction=GT\n  ROOT r = f32[] conditional(p, a, b), true_computation=yes, false_computation=yes\n}\n\n";
    let square = "p = f32[512,512] parameter(0)\n  ";
    let line = format!("p = f32[{N}] parameter(0)\n  ");
    for (name, callees, body) in [
        ("sort", less, format!("{line}ROOT r = f32[{N}] sort(p), dimensions={{0}}, to_apply=less")),
        ("topk", "", format!("{line}ROOT r = (f32[1000], s32[1000]) topk(p), k=1000, largest=true")),
        ("fft", "", format!("{line}c = c64[{N}] convert(p)\n  ROOT r = c64[{N}] fft(c), fft_type=FFT, fft_length={{{N}}}")),
        ("awkward fft", "", format!("p = c64[{0}] parameter(0)\n  ROOT r = c64[{0}] fft(p), fft_type=IFFT, fft_length={{{0}}}", N - 1)),
        ("real fft", "", format!("{line}ROOT r = c64[{}] fft(p), fft_type=RFFT, fft_length={{{N}}}", N / 2 + 1)),
        ("batch norm", "", "p = f32[4096,64] parameter(0)\n  s = f32[64] parameter(1)\n  o = f32[64] parameter(2)\n  ROOT r = (f32[4096,64], f32[64], f32[64]) batch-norm-training(p, s, o), epsilon=0.1, feature_index=1".to_string()),
        ("bitcast", "", format!("{line}ROOT r = u8[{N},4] bitcast-convert(p)")),
        ("bits", "", format!("s = u64[2] parameter(0)\n  ROOT r = (u64[2], u32[{N}]) rng-bit-generator(s), algorithm=rng_three_fry")),
        ("philox", "", format!("s = u64[2] parameter(0)\n  ROOT r = (u64[2], u32[{N}]) rng-bit-generator(s), algorithm=rng_philox")),
        ("random", "", format!("a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[{N}] rng(a, b), distribution=rng_normal")),
        ("dot", "", format!("{square}ROOT r = f32[512,512] dot(p, p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")),
        ("convolution", "", "p = f32[4,128,128,4] parameter(0)\n  k = f32[3,3,4,4] parameter(1)\n  ROOT r = f32[4,126,126,4] convolution(p, k), window={size=3x3}, dim_labels=b01f_01io->b01f".to_string()),
        ("triangular solve", "", "a = f32[32,16,16] parameter(0)\n  b = f32[32,16,512] parameter(1)\n  ROOT r = f32[32,16,512] triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=true, transpose_a=NO_TRANSPOSE".to_string()),
        ("cholesky", "", "a = f32[1024,16,16] parameter(0)\n  ROOT r = f32[1024,16,16] cholesky(a), lower=true".to_string()),
        ("lu", "", "a = f32[1024,16,16] parameter(0)\n  ROOT r = (f32[1024,16,16], s32[1024,16], s32[1024]) custom-call(a), custom_call_target=\"lapack_sgetrf_ffi\"".to_string()),
        ("ragged dot", "", format!("{square}q = f32[4,512,64] parameter(1)\n  g = s32[4] parameter(2)\n  ROOT r = f32[512,64] ragged-dot(p, q, g), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, lhs_ragged_dims={{0}}, rhs_group_dims={{0}}")),
        ("reduce", add, format!("{line}z = f32[] parameter(1)\n  ROOT r = f32[] reduce(p, z), dimensions={{0}}, to_apply=add")),
        ("reduce with branches", branch, format!("{line}z = f32[] parameter(1)\n  ROOT r = f32[] reduce(p, z), dimensions={{0}}, to_apply=maximum")),
        ("scan", step, "p = f32[64,4096] parameter(0)\n  c = f32[4096] parameter(1)\n  ROOT r = (f32[64,4096], f32[4096]) scan(p, c), dimensions={0}, num_carries=1, to_apply=step".to_string()),
    ] {
        let text = format!("HloModule m\n\n{callees}ENTRY e {{\n  {body}\n}}\n");
        let module = memplan_hlo::parse(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        check(name, &module);
    }
}

#[track_caller]
fn check(name: &str, module: &Module) {
    let entry = module.entry_computation();
    let bytes_of = |shapes: Vec<(_, &memplan_ir::Shape)>| -> usize {
        let arrays = shapes.iter().filter_map(|(_, shape)| shape.as_array());
        arrays
            .map(|a| {
                a.element_count().expect("extents are known") as usize * a.element_type.byte_width() as usize
            })
            .sum()
    };
    let inputs: Vec<Literal> = (entry.parameters.iter())
        .map(|&p| {
            let shape = module.shape(p).as_array().expect("parameters are arrays");
            let n = shape.element_count().expect("extents are known") as usize;
            let bytes: Vec<u8> = match shape.element_type {
                ElementType::F32 | ElementType::C64 => {
                    let n = n * shape.element_type.byte_width() as usize / 4;
                    (0..n).flat_map(|i| (((i * 7919) % 1009) as f32 / 64.0).to_le_bytes()).collect()
                }
                t => (0..n)
                    .flat_map(|i| (i as u64 * 100).to_le_bytes()[..t.byte_width() as usize].to_vec())
                    .collect(),
            };
            Literal::Array(ArrayLiteral::new(shape.element_type, shape.dimensions.iter().copied(), bytes))
        })
        .collect();
    // Every value has a buffer.
    let values: usize = entry.instructions.iter().map(|&id| bytes_of(module.shape(id).leaves())).sum();
    let scratch: u64 = entry.instructions.iter().map(|&id| scratch_bytes(module, id)).sum();
    // When the result becomes a literal, which takes two copies of it, all else is given back.
    let result = bytes_of(module.shape(entry.root).leaves());
    let allowed = (values + scratch as usize).max(3 * result) + FIXED;
    let before = USED.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    evaluate(module, &inputs, &Options::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let used = PEAK.load(Ordering::Relaxed) - before;
    assert!(
        used <= allowed,
        "{name} takes {used} bytes, but {allowed} are accounted for, {scratch} of them scratch"
    );
}
