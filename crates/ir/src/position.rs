//! Positions: every place where a value appears, numbered densely.

use cranelift_entity::{EntityRef, PrimaryMap, entity_impl};

use crate::{InstructionId, Module, Shape, ShapeId, ShapeIndex};

/// An instruction together with a shape index: one place where a value appears.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PositionId(u32);
entity_impl!(PositionId, "pos");

/// A place where a value appears, spelled out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The instruction.
    pub instruction: InstructionId,
    /// Path into its result.
    pub index: ShapeIndex,
}

/// The dense numbering of all positions of a module, built in time linear in their number.
///
/// The positions of one instruction are consecutive, in preorder of its shape: the whole result first, then
/// depth first from left to right.
#[derive(Clone, Debug)]
pub struct Positions {
    /// First position of each instruction; one more entry at the end.
    starts: Vec<u32>,
    /// The instruction of each position.
    instructions: PrimaryMap<PositionId, InstructionId>,
    /// The parts of each shape of the module.
    trees: Vec<ShapeTree>,
    /// The shape of each instruction.
    shapes: Vec<ShapeId>,
}

/// The parts of one shape in preorder.
#[derive(Clone, Debug)]
pub struct ShapeTree {
    parts: Vec<ShapePart>,
    /// Preorder numbers of the elements of each tuple, tuple by tuple.
    children: Vec<u32>,
}

#[derive(Clone, Debug)]
struct ShapePart {
    index: ShapeIndex,
    /// Parts of the subtree, itself included.
    size: u32,
    /// The index of its first element in `ShapeTree::children`.
    first_child: u32,
    n_children: u32,
}

impl Positions {
    /// Numbers the positions of every instruction that a computation lists.
    pub fn new(module: &Module) -> Positions {
        let trees: Vec<ShapeTree> = module.shapes.iter().map(ShapeTree::new).collect();
        let n = module.instructions.len();
        let mut size = vec![0u32; n];
        for &id in module.computations.values().flat_map(|c| &c.instructions) {
            size[id.index()] = trees[module.instructions[id].shape.index()].parts.len() as u32;
        }
        let mut starts = Vec::with_capacity(n + 1);
        let mut instructions = PrimaryMap::new();
        starts.push(0);
        for (i, size) in size.into_iter().enumerate() {
            for _ in 0..size {
                instructions.push(InstructionId::new(i));
            }
            starts.push(instructions.len() as u32);
        }
        let shapes = module.instructions.values().map(|i| i.shape).collect();
        Positions { starts, instructions, trees, shapes }
    }

    /// Number of positions.
    pub fn len(&self) -> usize {
        self.instructions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.instructions.is_empty()
    }

    /// The position of an instruction's whole result.
    pub fn root(&self, instruction: InstructionId) -> PositionId {
        PositionId::new(self.starts[instruction.index()] as usize)
    }

    /// All positions of an instruction, in preorder.
    pub fn of(&self, instruction: InstructionId) -> impl DoubleEndedIterator<Item = PositionId> + use<> {
        let i = instruction.index();
        (self.starts[i]..self.starts[i + 1]).map(|p| PositionId::new(p as usize))
    }

    /// Number of positions of an instruction.
    pub fn count_of(&self, instruction: InstructionId) -> usize {
        let i = instruction.index();
        (self.starts[i + 1] - self.starts[i]) as usize
    }

    /// The instruction of a position.
    pub fn instruction(&self, position: PositionId) -> InstructionId {
        self.instructions[position]
    }

    /// The preorder number of a position within its instruction.
    pub fn preorder(&self, position: PositionId) -> usize {
        position.index() - self.starts[self.instructions[position].index()] as usize
    }

    /// The shape index of a position.
    pub fn shape_index(&self, position: PositionId) -> &ShapeIndex {
        &self.tree(self.instructions[position]).parts[self.preorder(position)].index
    }

    /// The part of the module's shapes at a position.
    ///
    /// # Panics
    /// When the instruction has another structure than in the module of these positions.
    pub fn part<'m>(&self, module: &'m Module, position: PositionId) -> &'m Shape {
        let shape = module.shape(self.instruction(position));
        shape.subshape(self.shape_index(position)).expect("positions are parts of shapes")
    }

    /// The position spelled out.
    pub fn position(&self, position: PositionId) -> Position {
        Position { instruction: self.instruction(position), index: self.shape_index(position).clone() }
    }

    /// The position at a shape index of an instruction; `None` when there is no such part.
    pub fn find(&self, instruction: InstructionId, index: &ShapeIndex) -> Option<PositionId> {
        let preorder = self.tree(instruction).find(index)?;
        (preorder < self.count_of(instruction))
            .then(|| PositionId::new(self.starts[instruction.index()] as usize + preorder))
    }

    /// The positions of the subtree at a position, itself first, in preorder.
    pub fn subtree(&self, position: PositionId) -> impl Iterator<Item = PositionId> + use<> {
        let size = self.tree(self.instructions[position]).parts[self.preorder(position)].size;
        (position.index()..position.index() + size as usize).map(PositionId::new)
    }

    /// The parts of an instruction's shape.
    pub fn tree(&self, instruction: InstructionId) -> &ShapeTree {
        &self.trees[self.shapes[instruction.index()].index()]
    }
}

impl ShapeTree {
    /// The parts of a shape.
    pub fn new(shape: &Shape) -> ShapeTree {
        let mut parts: Vec<ShapePart> = Vec::new();
        let mut children = Vec::new();
        // The tuples around the current part, outermost first.
        let mut open: Vec<usize> = Vec::new();
        shape.for_each_subshape(|index, part| {
            let n_children = part.as_tuple().map_or(0, |elements| elements.len() as u32);
            open.truncate(index.0.len());
            open.iter().for_each(|&tuple| parts[tuple].size += 1);
            if let (Some(&tuple), Some(&step)) = (open.last(), index.0.last()) {
                children[(parts[tuple].first_child + step) as usize] = parts.len() as u32;
            }
            open.push(parts.len());
            let first_child = children.len() as u32;
            children.resize(children.len() + n_children as usize, 0);
            parts.push(ShapePart { index: index.clone(), size: 1, first_child, n_children });
        });
        ShapeTree { parts, children }
    }

    /// Number of parts.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Never: every shape has at least itself.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The shape indices of the parts, in preorder.
    pub fn indices(&self) -> impl ExactSizeIterator<Item = &ShapeIndex> {
        self.parts.iter().map(|part| &part.index)
    }

    /// The preorder number of a part. Takes time linear in the depth.
    pub fn find(&self, index: &ShapeIndex) -> Option<usize> {
        index.0.iter().try_fold(0, |at, &step| {
            let part = &self.parts[at];
            (step < part.n_children).then(|| self.children[(part.first_child + step) as usize] as usize)
        })
    }

    /// The preorder numbers of the elements of the tuple at a preorder number.
    pub fn children(&self, preorder: usize) -> &[u32] {
        let part = &self.parts[preorder];
        &self.children[part.first_child as usize..(part.first_child + part.n_children) as usize]
    }
}
