//! `reduce-scatter-decomposer`: computes whole sums where XLA's TPU compiler cannot scatter them.
//!
//! ```text
//!                                                                    s = bf16[64,1024] all-reduce(x)
//!   r = bf16[64,128] reduce-scatter(x), dimensions={1}      =>       r = bf16[64,128] dynamic-slice(s, 0, 128 * index)
//! ```
//!
//! libtpu packs two rows of 16 bits into the words of a tile of 128 lanes. It scatters a sum along the lanes only if the part of a
//! device is a whole number of such pairs of tiles: of bf16, it scatters parts of 256 and 512 columns, and computes sums whole whose
//! parts have 128 or 384; of f32, it scatters all of these. Parts of 64 or 192 columns it lays out in the other order, and scatters.
//!
//! The index of a device in its group is what the others send it of iotas.
//!
//! *Changed* means that there was such a sum.

use memplan_ir::{
    ArrayShape, BinaryOp, Collective, CollectiveGroupMode, Cursor, Dimensions, ElementType, Insert,
    InstructionId, Module, Names, Op, Opcode, Shape,
};
use memplan_memory::TileRule;
use memplan_rewriter::{Context, PassError, PassFn};

/// The pass.
pub const REDUCE_SCATTER_DECOMPOSER: PassFn = PassFn {
    name: "reduce-scatter-decomposer",
    description: "compute sums whole whose parts are an odd number of tiles, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let Some(rule) = &context.target.layout else { return Ok(false) };
    let [replicas, _] = module.config.replicas_and_partitions();
    if replicas != 1 {
        return Ok(false);
    }
    let mut names = Names::new(module);
    let mut changed = false;
    for computation in module.computations.keys().collect::<Vec<_>>() {
        module.edit_in_order(computation, |module, id| {
            if let Some((collective, d)) = odd_scatter(module, id, rule) {
                compute_whole(module, &mut names, id, &collective, d);
                changed = true;
            }
            module.list(id);
        });
    }
    Ok(changed)
}

/// A sum that is scattered into parts of an odd number of tiles, and along which dimension.
fn odd_scatter(module: &Module, id: InstructionId, rule: &TileRule) -> Option<(Collective, usize)> {
    let instruction = &module.instructions[id];
    let Op::ReduceScatter(collective) = &instruction.op else { return None };
    // All ids in groups are partitions.
    let is_plain = collective.group_mode(Opcode::ReduceScatter) == CollectiveGroupMode::FlattenedId;
    let d = usize::try_from(collective.dimension?).ok()?;
    let is_odd = instruction.operands.len() == 1 && is_odd(module.shape(id).as_array()?, d, rule);
    (is_plain && is_odd).then(|| ((**collective).clone(), d))
}

/// Whether the part of a sum that is scattered along dimension `d` is an odd number of tiles wide.
fn is_odd(part: &ArrayShape, d: usize, rule: &TileRule) -> bool {
    let minor = match &part.layout {
        Some(layout) => layout.minor_to_major.first().map(|&d| d as usize),
        None => part.rank().checked_sub(1),
    };
    let lanes = rule.lanes as i64;
    let packed = (32 / i64::from(part.element_type.bits().max(1))).max(1);
    minor == Some(d) && part.dimensions[d] % lanes == 0 && part.dimensions[d] % (lanes * packed) != 0
}

/// Turns a scattered sum into a device's part of the whole sum.
fn compute_whole(
    module: &mut Module,
    names: &mut Names,
    id: InstructionId,
    collective: &Collective,
    d: usize,
) {
    let (summand, reducer) = (module.instructions[id].operands[0], module.instructions[id].called[0]);
    let whole = module.shape(summand).clone();
    let part: Dimensions =
        module.shape(id).as_array().map_or_else(Dimensions::new, |it| it.dimensions.clone());
    let members = whole.as_array().map_or(1, |array| array.dimensions[d] / part[d].max(1));
    let everywhere = Op::AllReduce(Box::new(Collective { dimension: None, ..collective.clone() }));
    let mut at = Cursor::beside(module, names, id);
    let sum = at.insert_instruction(everywhere, [summand], [reducer], Some(whole));
    let index = index(&mut at, collective, members);
    let extent = at.integer(ElementType::S32, part[d]);
    let start = at.binary(BinaryOp::Multiply, index, extent);
    let zero = at.integer(ElementType::S32, 0);
    let starts = (0..part.len()).map(|dimension| if dimension == d { start } else { zero });
    let operands = [sum].into_iter().chain(starts).collect();
    let instruction = &mut module.instructions[id];
    instruction.op = Op::DynamicSlice { slice_sizes: part };
    instruction.operands = operands;
    instruction.called.clear();
}

/// The index of a device in its group: every member sends the `i`-th one the number `i`.
fn index(at: &mut Cursor<'_>, collective: &Collective, members: i64) -> InstructionId {
    let numbers = Shape::array(ElementType::S32, [members]);
    let iota = at.iota(numbers.clone(), 0);
    let exchange = Collective { dimension: Some(0), use_global_device_ids: false, ..collective.clone() };
    let received = at.insert_shaped(Op::AllToAll(Box::new(exchange)), [iota], numbers);
    let first = at.slice_along(received, 0, 0..1);
    at.reshape(first, [])
}
