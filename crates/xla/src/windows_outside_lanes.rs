//! `windows-outside-lanes`: copies operands so that overlapping windows do not move along the dimension in lanes.
//!
//! ```text
//!                                                  c = f32[1,112,112,64]{3,2,1,0:T(8,128)} copy(x)
//!   r = reduce-window(x), window={size=1x3x3x1     r = reduce-window(c), window={size=1x3x3x1
//!       stride=1x2x2x1}                         =>     stride=1x2x2x1}
//!   x: f32[1,112,112,64]{2,3,1,0:T(8,128)}
//! ```
//!
//! The machine's default layout puts the width of an image into lanes if that needs less padding than features do.
//! Windows that overlap there read the same lanes several times, which a TPU does slowly, so libtpu copies the array:
//! of the dimensions without windows, the one that needs the fewest bytes goes into lanes, all others keep their order.
//! Gradients of windows choose a position in each window, so the pass treats all their windows as overlapping ones.
//!
//! Runs after fusion. Left alone: windows inside fusions, which read computed values, windows that cover all
//! dimensions, and machines without tiles. *Changed* means that there is a new copy.

use memplan_ir::{ArrayShape, InstructionId, Module, Names, Op, Shape, Window, WindowDimension, copy_into};
use memplan_memory::Target;
use memplan_rewriter::{Context, PassError, PassFn, call_graph};

/// The pass.
pub const WINDOWS_OUTSIDE_LANES: PassFn = PassFn {
    name: "windows-outside-lanes",
    description: "copy arrays along whose lanes overlapping windows would move, as XLA's TPU compiler does",
    run,
};

fn run(module: &mut Module, context: &Context<'_>) -> Result<bool, PassError> {
    let has_windows = |op: &Op| matches!(op, Op::ReduceWindow(_) | Op::SelectAndScatter(_));
    if !module.instructions.values().any(|instruction| has_windows(&instruction.op)) {
        return Ok(false);
    }
    let graph = call_graph(module, WINDOWS_OUTSIDE_LANES.name)?;
    let mut names = Names::new(module);
    let mut changed = false;
    for &computation in graph.sequential() {
        module.edit_in_order(computation, |module, id| {
            for (number, shape) in wanted(module, id, context.target) {
                let operand = module.instructions[id].operands[number];
                let copy = copy_into(module, operand, Shape::Array(shape), "lanes", &mut names);
                module.instructions[id].operands[number] = copy;
                changed = true;
            }
            module.list(id);
        });
    }
    Ok(changed)
}

/// Operands along whose lanes windows would move, with the layouts that they should have.
fn wanted(module: &Module, id: InstructionId, target: &Target) -> Vec<(usize, ArrayShape)> {
    let instruction = &module.instructions[id];
    let (window, moves): (_, fn(&WindowDimension) -> bool) = match &instruction.op {
        Op::ReduceWindow(window) => (window, |w| w.size > w.stride),
        Op::SelectAndScatter(window) => (window, |w| w.size > 1),
        _ => return Vec::new(),
    };
    let operands = instruction.operands.iter().enumerate();
    let arrays = operands.filter_map(|(i, &operand)| Some((i, module.shape(operand).as_array()?)));
    arrays.filter_map(|(i, array)| Some((i, outside_lanes(array, window, moves, target)?))).collect()
}

/// A tiled array with lanes that hold no dimension of a window; `None` if it has such a layout already, or if no
/// dimension is free. Initial values have no dimensions.
fn outside_lanes(
    array: &ArrayShape,
    window: &Window,
    moves: fn(&WindowDimension) -> bool,
    target: &Target,
) -> Option<ArrayShape> {
    let order = array.minor_to_major();
    let along = |d: i64| &window.dimensions[d as usize];
    let is_tiled = array.layout.as_ref().is_some_and(|layout| !layout.tiles.is_empty());
    order.first().filter(|&&lanes| is_tiled && moves(along(lanes)))?;
    let free = (0..array.rank() as i64).filter(|&d| along(d).size == 1 && array.dimensions[d as usize] > 1);
    let ways = free.map(|free| {
        let others = order.iter().copied().filter(|&d| d != free);
        let order: Vec<i64> = std::iter::once(free).chain(others).collect();
        ArrayShape { layout: Some(target.layout_with_order(array, &order)), ..array.clone() }
    });
    ways.min_by_key(|way| target.size_of(&Shape::Array(way.clone())))
}
