//! The times of transfers and kernels by XLA's model (`SolLatencyEstimator`), as it logs them.

use memplan_ir::{
    ArrayShape, ComputationId, ElementType, FusionKind, InstructionId, Module, Op, ReplicaGroups,
};
use memplan_memory::LatencyHiding;
use rustc_hash::FxHashMap;

/// What the scheduler waits between any two instructions, and what starts and ends of transfers take themselves.
pub(super) const STEP: f64 = 1e-6;
/// What instructions take that it knows nothing of.
pub(super) const UNKNOWN: f64 = 1e-8;
/// What calls of libraries take.
pub(super) const LIBRARY_CALL: f64 = 1e-5;

/// Bytes that a collective brings or takes, whichever is more.
fn bytes_moved(module: &Module, id: InstructionId) -> f64 {
    let bytes = |id: InstructionId| module.shape(id).dense_bytes() as f64;
    let instruction = &module.instructions[id];
    let given = instruction.operands.iter().map(|&operand| bytes(operand)).sum::<f64>();
    let twice = if matches!(instruction.op, Op::AllReduce(_)) { 2.0 } else { 1.0 };
    given.max(bytes(id)) * twice
}

/// The time of a transfer by the scheduler's table, which begins with transfers of a KiB.
pub(super) fn transfer_seconds(module: &Module, id: InstructionId, rules: &LatencyHiding) -> f64 {
    let bytes = bytes_moved(module, id);
    let least = rules.transfer + rules.transfer_per_device * devices(module, id);
    let (times, bandwidth) = match module.instructions[id].op {
        Op::AllReduce(_) => (rules.all_reduce, rules.bandwidth),
        Op::ReduceScatter(_) => (1.0, rules.scatter_bandwidth),
        _ => (1.0, rules.bandwidth),
    };
    let least = least * times;
    least * (bytes / 1024.0).min(1.0) + bytes / bandwidth
}

/// How many devices take part in a collective.
fn devices(module: &Module, id: InstructionId) -> f64 {
    let all = module.config.num_partitions.unwrap_or(1) as f64;
    let groups = module.instructions[id].op.collective().map(|collective| &collective.replica_groups);
    match groups {
        Some(ReplicaGroups::List(groups)) => groups.first().map_or(all, |group| group.len() as f64),
        Some(ReplicaGroups::Iota { dimensions, .. }) => dimensions[1] as f64,
        Some(ReplicaGroups::Mesh { .. }) | None => all,
    }
}

/// The scheduler's seconds of an instruction that is no transfer; `seconds` are those of the cost model.
pub(super) fn work_seconds(
    module: &Module,
    id: InstructionId,
    rules: &LatencyHiding,
    seconds: &dyn Fn(InstructionId) -> f64,
) -> f64 {
    let products: f64 = products_of(module, id).map(|product| product_seconds(module, product, rules)).sum();
    match &module.instructions[id].op {
        _ if products > 0.0 => products,
        // It knows no kernels of Triton but products.
        Op::Fusion(fusion) if fusion.kind == FusionKind::Custom => UNKNOWN,
        Op::CustomCall(_) => LIBRARY_CALL,
        Op::Sort { .. } | Op::Fft { .. } | Op::Cholesky { .. } | Op::TriangularSolve { .. } => UNKNOWN,
        // Each is a kernel of its own.
        _ => seconds(id),
    }
}

/// Whether an instruction is a library's convolution, which may add to its result.
pub(super) fn is_convolution(module: &Module, id: InstructionId) -> bool {
    computed_by(module, id).any(|id| matches!(module.instructions[id].op, Op::Convolution(_)))
}

/// The products of an instruction.
fn products_of(module: &Module, id: InstructionId) -> impl Iterator<Item = InstructionId> {
    computed_by(module, id).filter(|&id| matches!(module.instructions[id].op, Op::Dot(_)))
}

/// The operands that the product in a kernel reads in another shape.
pub(super) fn reshaped_operands(module: &Module, id: InstructionId) -> Vec<usize> {
    if products_of(module, id).next().is_none_or(|product| product == id) {
        return Vec::new();
    }
    // The parameters that values before the product are made of.
    let mut made_of: FxHashMap<InstructionId, Vec<usize>> = FxHashMap::default();
    let mut found = Vec::new();
    for inside in computed_by(module, id).filter(|&inside| inside != id) {
        let instruction = &module.instructions[inside];
        let mut parameters: Vec<usize> = match instruction.op {
            Op::Dot(_) => Vec::new(),
            Op::Parameter { number } => vec![number as usize],
            _ => instruction.operands.iter().flat_map(|read| made_of[read].iter().copied()).collect(),
        };
        parameters.sort_unstable();
        parameters.dedup();
        if matches!(instruction.op, Op::Bitcast | Op::Reshape { .. }) {
            found.extend(&parameters);
        }
        made_of.insert(inside, parameters);
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// What an instruction computes: itself, or what is in the kernel that it describes.
fn computed_by(module: &Module, id: InstructionId) -> impl Iterator<Item = InstructionId> {
    let instruction = &module.instructions[id];
    let inside: &[ComputationId] =
        if matches!(instruction.op, Op::Fusion(_)) { &instruction.called } else { &[] };
    let inside = inside.iter().flat_map(|&called| module.computations[called].instructions.iter().copied());
    inside.chain([id])
}

/// The extents of products in the scheduler's table: 0.087 us for f32[64,64] by f32[64,64], a 64th of the smallest one.
const SMALLEST: f64 = 256.0;
const LARGEST: f64 = 4096.0;
/// The most batches of products there.
const MOST_BATCHES: f64 = 4.0;

/// The time of a product by the scheduler's table: those with a wide result are priced as products of wide numbers.
fn product_seconds(module: &Module, id: InstructionId, rules: &LatencyHiding) -> f64 {
    let instruction = &module.instructions[id];
    let (Some(result), Some(dimensions)) = (module.shape(id).as_array(), instruction.op.dot_dimensions())
    else {
        return 0.0;
    };
    let Some(lhs) = module.shape(instruction.operands[0]).as_array() else { return 0.0 };
    let extents = |of: &[i64], array: &ArrayShape| -> f64 {
        of.iter().map(|&d| array.dimensions[d as usize] as f64).product()
    };
    let summed = extents(&dimensions.lhs_contracting, lhs);
    let batch = extents(&dimensions.lhs_batch, lhs);
    let elements = result.element_count().unwrap_or(0) as f64;
    let rows = lhs.element_count().unwrap_or(0) as f64 / (summed * batch).max(1.0);
    let columns = elements / (rows * batch).max(1.0);
    let rate = if lhs.element_type == ElementType::F32 {
        rules.f32_rate
    } else if result.element_type.bits() <= ElementType::Bf16.bits() {
        rules.narrow_rate
    } else {
        rules.wide_rate
    };
    // Of a product that is not in the table it takes the rate of the nearest one that is.
    let in_table = |extent: f64| extent.clamp(SMALLEST, LARGEST);
    let of_each = in_table(rows) * in_table(columns) * batch.clamp(1.0, MOST_BATCHES);
    let operations = 2.0 * in_table(summed) * of_each;
    let seconds = rules.product + operations / rate + of_each * rules.element;
    let seconds = if columns > rows { seconds * rules.more_columns } else { seconds };
    seconds * (2.0 * summed * elements) / operations
}
