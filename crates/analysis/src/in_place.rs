//! Operations that work in place: which operand's buffer a result must share, and which it may take over.

use cranelift_entity::SecondaryMap;
use memplan_ir::{
    ArrayShape, ComputationId, Instruction, InstructionId, Module, Op, Shape, ShapeIndex, UnaryOp,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A part of an operand and the part of the result that shares its buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlacePair {
    /// Number of the operand.
    pub operand: u32,
    /// Position within the operand.
    pub operand_index: ShapeIndex,
    /// Position within the result.
    pub output_index: ShapeIndex,
}

/// In-place facts of a whole module: fusions are looked into once, nested ones first.
#[derive(Clone, Debug)]
pub struct InPlace {
    /// For each fused computation: leaves of the root that are written into a parameter.
    fused: SecondaryMap<ComputationId, Vec<FusedInPlace>>,
    /// For each fused computation: parameters that are only read at the index that is being written.
    read_at_written_index: SecondaryMap<ComputationId, Vec<bool>>,
}

#[derive(Clone, Debug)]
struct FusedInPlace {
    parameter: u32,
    output_index: ShapeIndex,
}

impl InPlace {
    /// Looks into every fused computation. Linear in the module.
    pub fn new(module: &Module) -> InPlace {
        let mut facts = InPlace { fused: SecondaryMap::new(), read_at_written_index: SecondaryMap::new() };
        // Callees precede callers, so a nested fusion is known before the one around it.
        for computation in module.computations.values() {
            for &instruction in &computation.instructions {
                let instruction = &module.instructions[instruction];
                if let (Op::Fusion(_), &[fused]) = (&instruction.op, instruction.called.as_slice())
                    && facts.read_at_written_index[fused].is_empty()
                {
                    facts.fused[fused] = fused_in_place(module, fused, &facts);
                    facts.read_at_written_index[fused] = parameters_read_at_written_index(module, fused);
                }
            }
        }
        facts
    }

    /// The pairs of an instruction that must share a buffer for the operation to mean what it says.
    pub fn must_alias(&self, module: &Module, id: InstructionId) -> SmallVec<[InPlacePair; 1]> {
        let instruction = &module.instructions[id];
        let pair = |operand: u32, operand_index: ShapeIndex, output_index: ShapeIndex| InPlacePair {
            operand,
            operand_index,
            output_index,
        };
        let root = ShapeIndex::root;
        let declared = |aliases: &[memplan_ir::OutputOperandAlias]| {
            aliases.iter().map(|a| pair(a.operand, a.operand_index.clone(), a.output_index.clone())).collect()
        };
        match &instruction.op {
            Op::DynamicUpdateSlice | Op::SetDimensionSize { .. } => {
                SmallVec::from_iter([pair(0, root(), root())])
            }
            Op::Scatter(_) | Op::AllReduceStart(_) => {
                let n = match &instruction.op {
                    Op::Scatter(_) => instruction.operands.len() / 2,
                    _ => instruction.operands.len(),
                };
                match module.shape(id).is_tuple() {
                    true => (0..n as u32).map(|i| pair(i, root(), [i].into())).collect(),
                    false => SmallVec::from_iter([pair(0, root(), root())]),
                }
            }
            Op::RaggedAllToAll(_) => SmallVec::from_iter([pair(1, root(), root())]),
            // The form with four operands updates a buffer that is given as operand 1.
            Op::CollectivePermute(_) if instruction.operands.len() == 4 => {
                SmallVec::from_iter([pair(1, root(), root())])
            }
            Op::CollectivePermuteStart(_) if instruction.operands.len() == 4 => {
                SmallVec::from_iter([pair(1, root(), [1].into())])
            }
            Op::CustomCall(call) => declared(&call.output_operand_aliasing),
            Op::AsyncStart(start) => declared(&start.output_operand_aliasing),
            Op::Fusion(fusion) => {
                let mut pairs: SmallVec<[InPlacePair; 1]> = declared(&fusion.output_operand_aliasing);
                for found in instruction.called.first().map_or(&[][..], |&fused| &self.fused[fused]) {
                    // One leaf cannot live in two operands, nor one operand hold two leaves: what is declared wins.
                    let taken = pairs
                        .iter()
                        .any(|p| p.output_index == found.output_index || p.operand == found.parameter);
                    if !taken {
                        pairs.push(pair(found.parameter, root(), found.output_index.clone()));
                    }
                }
                pairs
            }
            _ => SmallVec::new(),
        }
    }

    /// Whether the array result at `output` may be written into the buffer of operand `operand`, when that operand
    /// is dead afterwards: every element is read before, and only for, the element that replaces it, or the
    /// operation is one whose kernels work in place anyway.
    pub fn may_take_over(
        &self,
        module: &Module,
        id: InstructionId,
        operand: usize,
        output: &ShapeIndex,
    ) -> bool {
        let instruction = &module.instructions[id];
        let (Some(Shape::Array(result)), Shape::Array(source)) =
            (module.shape(id).subshape(output), module.shape(instruction.operands[operand]))
        else {
            return false;
        };
        if !same_storage(result, source) {
            return false;
        }
        match &instruction.op {
            // Element k of operand i is only moved within result i, and kernels start from a copy in the result.
            Op::Sort { .. } => output.0.first().map_or(0, |&i| i as usize) == operand,
            Op::TriangularSolve(_) => operand == 1,
            Op::Fusion(_) => {
                let fused = instruction.called[0];
                self.read_at_written_index[fused].get(operand).copied().unwrap_or(false)
            }
            _ => output.is_root() && is_elementwise(instruction),
        }
    }
}

/// Whether element `i` of the result depends on element `i` of each array operand and on nothing else of them.
pub fn is_elementwise(instruction: &Instruction) -> bool {
    match &instruction.op {
        // Real and imag read half of each element, but at the same index; counted by width elsewhere.
        Op::Unary(op) => !matches!(op, UnaryOp::Real | UnaryOp::Imag),
        Op::Binary(_)
        | Op::Compare { .. }
        | Op::Select
        | Op::Clamp
        | Op::Convert
        | Op::StochasticConvert
        | Op::Copy
        | Op::ReducePrecision { .. } => true,
        Op::BitcastConvert => true,
        _ => false,
    }
}

/// Same extents, element width, order and tiling: element `i` lies at the same byte in both.
fn same_storage(a: &ArrayShape, b: &ArrayShape) -> bool {
    let storage = |s: &ArrayShape| {
        let packed = s.layout.as_ref().map_or(0, |l| l.element_size_in_bits);
        if packed == 0 { i64::from(s.element_type.byte_width()) * 8 } else { packed }
    };
    let order = |s: &ArrayShape| s.minor_to_major();
    let tiles = |s: &ArrayShape| s.layout.as_ref().map(|l| l.tiles.clone()).unwrap_or_default();
    a.dimensions == b.dimensions
        && !a.is_dynamic()
        && !b.is_dynamic()
        && storage(a) == storage(b)
        && order(a) == order(b)
        && tiles(a) == tiles(b)
        && a.memory_space() == b.memory_space()
}

/// Leaves of a fused root that an in-place operation writes into a parameter's buffer.
fn fused_in_place(module: &Module, fused: ComputationId, facts: &InPlace) -> Vec<FusedInPlace> {
    let root = module.computations[fused].root;
    let leaves: Vec<(InstructionId, ShapeIndex)> = match &module.instructions[root].op {
        Op::Tuple => {
            let operands = module.instructions[root].operands.iter();
            operands.enumerate().map(|(i, &leaf)| (leaf, [i as u32].into())).collect()
        }
        _ => vec![(root, ShapeIndex::root())],
    };
    let mut found: Vec<FusedInPlace> = Vec::new();
    for (leaf, output_index) in leaves {
        let (leaf, at) = see_through(module, leaf);
        let Some(parameter) = written_parameter(module, leaf, &at, facts) else { continue };
        if found.iter().all(|f| f.parameter != parameter) {
            found.push(FusedInPlace { parameter, output_index });
        }
    }
    found
}

/// The fusion parameter into which an in-place operation writes the result at `at`.
fn written_parameter(
    module: &Module,
    mut id: InstructionId,
    at: &ShapeIndex,
    facts: &InPlace,
) -> Option<u32> {
    let mut at = at.clone();
    // Each step walks up to an operand, so this ends.
    let mut is_in_place = false;
    loop {
        let instruction = &module.instructions[id];
        if let Op::Parameter { number } = instruction.op {
            return is_in_place.then_some(number);
        }
        let pair = facts.must_alias(module, id).into_iter().find(|pair| pair.output_index == at)?;
        is_in_place = true;
        (id, at) = see_through(module, instruction.operands[pair.operand as usize]);
        if !pair.operand_index.is_root() {
            return None;
        }
    }
}

/// Walks up through bitcasts and tuple elements to where a value is made: an instruction and a position in it.
fn see_through(module: &Module, mut id: InstructionId) -> (InstructionId, ShapeIndex) {
    let mut at = ShapeIndex::root();
    loop {
        let instruction = &module.instructions[id];
        match &instruction.op {
            Op::Bitcast => id = instruction.operands[0],
            Op::GetTupleElement { index } => {
                at.0.insert(0, *index);
                id = instruction.operands[0];
            }
            Op::Tuple if !at.is_root() => id = instruction.operands[at.0.remove(0) as usize],
            _ => return (id, at),
        }
    }
}

/// For each parameter: whether all that is computed from it is elementwise, up to the roots.
fn parameters_read_at_written_index(module: &Module, fused: ComputationId) -> Vec<bool> {
    let computation = &module.computations[fused];
    // For each instruction, from the last to the first: whether everything that uses it is elementwise, and has its
    // extents. What is only used so is read at the index that is being written.
    let mut users_elementwise: FxHashMap<InstructionId, bool> = FxHashMap::default();
    for &id in computation.instructions.iter().rev() {
        let instruction = &module.instructions[id];
        let own = *users_elementwise.entry(id).or_insert(true);
        let passes = match &instruction.op {
            Op::Tuple => id == computation.root,
            // A bitcast keeps the linear order of bytes, so "the same index" still means the same bytes.
            Op::Bitcast => own && same_width(module, id, instruction.operands[0]),
            _ => own && is_elementwise(instruction),
        };
        for &operand in &instruction.operands {
            let fits = passes
                && (instruction.op == Op::Tuple
                    || instruction.op == Op::Bitcast
                    || same_order(module.shape(id), module.shape(operand)));
            let entry = users_elementwise.entry(operand).or_insert(true);
            *entry &= fits;
        }
    }
    computation.parameters.iter().map(|p| users_elementwise.get(p).copied().unwrap_or(true)).collect()
}

/// Whether two arrays have the same extents and order, so that index `i` of one lies where index `i` of the other
/// does, widths aside.
fn same_order(a: &Shape, b: &Shape) -> bool {
    match (a.as_array(), b.as_array()) {
        (Some(a), Some(b)) => a.dimensions == b.dimensions && a.minor_to_major() == b.minor_to_major(),
        _ => false,
    }
}

fn same_width(module: &Module, a: InstructionId, b: InstructionId) -> bool {
    match (module.shape(a).as_array(), module.shape(b).as_array()) {
        (Some(a), Some(b)) => a.element_type.byte_width() == b.element_type.byte_width(),
        _ => false,
    }
}
