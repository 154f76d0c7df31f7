//! The meaning of bitcasts in modules whose layouts have none.
//!
//! A bitcast gives the same bytes another shape, so its effect on elements depends on the layouts of operand and
//! result. In a module whose layouts [do not agree](crate::layouts_agree), layouts are about to be assigned again, so
//! the bitcast's effect must first be expressed in elements:
//!
//! ```text
//!   p = f32[3,2]{1,0} parameter(0)         p = f32[3,2]{1,0} parameter(0)
//!                                     =>   r = f32[3,2]{1,0} reshape(p)
//!   t = f32[2,3]{0,1} bitcast(p)           t = f32[2,3]{0,1} transpose(r), dimensions={1,0}
//! ```

use crate::{
    ArrayShape, Computation, ComputationId, Cursor, Dimensions, EntityRef, Insert, InstructionId, Layout,
    Module, Names, Op, layouts_agree,
};

/// Spells bitcasts out as transposes and reshapes, where the layouts of the module do not agree; says whether it did.
/// Nothing is done when a bitcast cuts tiles anew or changes the width of elements. Linear in the module.
pub fn expand_bitcasts(module: &mut Module) -> bool {
    let has_bitcast = module.instructions.values().any(|instruction| instruction.op == Op::Bitcast);
    if module.is_scheduled || !has_bitcast || layouts_agree(module) {
        return false;
    }
    let can_be_said = |computation: &Computation| {
        let mut instructions = computation.instructions.iter();
        instructions.all(|&id| module.instructions[id].op != Op::Bitcast || Move::of(module, id).is_some())
    };
    if !module.computations.values().all(can_be_said) {
        return false;
    }
    let mut names = Names::new(module);
    for number in 0..module.computations.len() {
        expand_in(module, ComputationId::new(number), &mut names);
    }
    true
}

fn expand_in(module: &mut Module, computation: ComputationId, names: &mut Names) {
    let listed = std::mem::take(&mut module.computations[computation].instructions);
    for id in listed {
        if module.instructions[id].op == Op::Bitcast {
            let movement = Move::of(module, id).expect("all bitcasts were looked at");
            movement.write(module, id, names);
        }
        module.computations[computation].instructions.push(id);
    }
}

/// The effect of a bitcast on elements.
struct Move {
    from: ArrayShape,
    to: ArrayShape,
}

impl Move {
    fn of(module: &Module, id: InstructionId) -> Option<Move> {
        let from = module.shape(module.instructions[id].operands[0]).as_array()?;
        let to = module.shape(id).as_array()?;
        let is_plain = |array: &ArrayShape| {
            !array.is_dynamic() && array.layout.as_ref().is_none_or(|layout| layout.rare.is_none())
        };
        let can_be_said = is_plain(from)
            && is_plain(to)
            && from.element_type.bits() == to.element_type.bits()
            && from.element_count() == to.element_count()
            && keeps_tiles(from, to);
        can_be_said.then(|| Move { from: from.clone(), to: to.clone() })
    }

    /// Turns the bitcast into the last of the instructions that express its effect.
    fn write(self, module: &mut Module, id: InstructionId, names: &mut Names) {
        let Move { from, to } = self;
        let (outer_from, outer_to) = (major_to_minor(&from), major_to_minor(&to));
        let in_order = |order: &Dimensions| order.iter().enumerate().all(|(i, &d)| i as i64 == d);
        let lying = |array: &ArrayShape, order: &Dimensions| ArrayShape {
            dimensions: order.iter().map(|&d| array.dimensions[d as usize]).collect(),
            layout: Some(Layout::row_major(array.rank())),
            ..array.clone()
        };
        let mut steps: Vec<(Op, ArrayShape)> = Vec::new();
        if !in_order(&outer_from) {
            let lying = lying(&from, &outer_from);
            steps.push((Op::Transpose { dimensions: outer_from }, lying));
        }
        if from.element_type != to.element_type {
            let now = steps.last().map_or(&from, |(_, now)| now);
            let converted = ArrayShape { element_type: to.element_type, ..now.clone() };
            steps.push((Op::BitcastConvert, converted));
        }
        let lying = lying(&to, &outer_to);
        steps.push((Op::Reshape { inferred_dimension: None }, lying));
        if !in_order(&outer_to) {
            let mut dimensions = outer_to.clone();
            (0..).zip(&outer_to).for_each(|(i, &d)| dimensions[d as usize] = i);
            steps.push((Op::Transpose { dimensions }, to.clone()));
        }
        let (last, _) = steps.pop().expect("there is a reshape");
        let bitcast = &module.instructions[id];
        let (parent, stem, mut operand) = (bitcast.parent, bitcast.name.clone(), bitcast.operands[0]);
        let mut at = Cursor::end(module, names, parent);
        for (op, array) in steps {
            operand = at.named_unique(&stem).insert_shaped(op, [operand], array);
        }
        let bitcast = &mut module.instructions[id];
        bitcast.op = last;
        bitcast.operands[0] = operand;
    }
}

/// Whether the dimensions that tiles cover are the same on both sides, so that only whole tiles are renamed.
fn keeps_tiles(from: &ArrayShape, to: &ArrayShape) -> bool {
    let tiles = |array: &ArrayShape| array.layout.as_ref().map_or_else(Default::default, |l| l.tiles.clone());
    let n = tiles(from).iter().map(|tile| tile.dimensions.len()).max().unwrap_or(0);
    let covered = |array: &ArrayShape| -> Option<Dimensions> {
        let minor = array.minor_to_major();
        (n <= minor.len()).then(|| minor[..n].iter().map(|&d| array.dimensions[d as usize]).collect())
    };
    tiles(from) == tiles(to) && covered(from).is_some() && covered(from) == covered(to)
}

fn major_to_minor(array: &ArrayShape) -> Dimensions {
    let mut order = array.minor_to_major();
    order.reverse();
    order
}
