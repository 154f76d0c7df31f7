//! Finds equal dimensions of a program's values: tracks them through every operation, by union-find.
//!
//! ```text
//!   x = f32[8,1024,768] parameter(0)       8 and 1024 and 768
//!   r = f32[8192,768] reshape(x)           8·1024 and 768: the same factors
//!   d = f32[8192,64] dot(r, w)             8·1024 again, and 64 from `w`
//! ```
//!
//! An extent is a product of *factors*: if a reshape merges or splits dimensions, factors say which part is which. If
//! extents depend on each other other than by multiplication (a slice is shorter by one, a window moves), a
//! [`Relation`] says how.
//!
//! All callers of a computation share its dimensions, and so do all readers of a constant, so unrelated values may seem
//! to be related. Passes can prevent that beforehand (`passes::UNSHARE_SPLATS`).

mod batch;
mod factors;
mod rules;

pub use batch::{Batch, BatchOfArguments};
pub use factors::{FactorId, FactorList};
pub use rules::prefix_windows;

use factors::Factors;
use memplan_ir::{
    ArrayShape, InstructionId, Module, Op, PaddingDimension, PositionId, Positions, Shape, SliceDimension,
    WindowDimension,
};

/// The factors of every dimension of every value.
#[derive(Clone, Debug)]
pub struct Dimensions {
    positions: Positions,
    /// The first dimension of each position among all; one more entry at the end.
    first: Vec<u32>,
    /// The factor that each dimension began with, which may have been split since.
    factor: Vec<Option<FactorId>>,
    factors: Factors,
    relations: Vec<Relation>,
    held: Vec<(DimensionId, InstructionId)>,
}

/// A dimension of a value: its number among all dimensions of the module.
pub type DimensionId = u32;

/// An extent that follows from others, but not by multiplication alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// The instruction that relates them.
    pub instruction: InstructionId,
    /// The dimensions that determine the extent.
    pub from: Vec<DimensionId>,
    /// The dimension with that extent.
    pub to: DimensionId,
    /// How.
    pub kind: RelationKind,
}

/// How an extent follows from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelationKind {
    /// A part is cut out.
    Slice(SliceDimension),
    /// Padding is added.
    Pad(PaddingDimension),
    /// The sum of all.
    Concatenation,
    /// A window moves over the first; the second, where there is one, is the window's size.
    Window(WindowDimension),
    /// Room for all that is scattered into it: as many places as there are updates.
    Room,
}

impl Dimensions {
    /// Follows all dimensions of a valid module. Close to linear.
    pub fn follow(module: &Module) -> Dimensions {
        let mut dimensions = Dimensions::apart(module);
        rules::apply(module, &mut dimensions);
        dimensions
    }

    /// Every dimension with a factor of its own.
    fn apart(module: &Module) -> Dimensions {
        let positions = Positions::new(module);
        let mut factors = Factors::default();
        let (mut first, mut factor) = (vec![0], Vec::new());
        for (id, instruction) in module.instructions.iter() {
            let parts = positions.count_of(id);
            let mut seen = 0;
            module.shape_of(instruction.shape).for_each_subshape(|_, part| {
                if seen == parts {
                    return;
                }
                seen += 1;
                let extents = part.as_array().map_or(&[][..], |array| &array.dimensions);
                factor.extend(extents.iter().map(|&extent| factors.new_factor(extent)));
                first.push(factor.len() as u32);
            });
        }
        Dimensions { positions, first, factor, factors, relations: Vec::new(), held: Vec::new() }
    }

    /// The numbering of positions that these facts are about.
    pub fn positions(&self) -> &Positions {
        &self.positions
    }

    /// The dimensions of a position, none where there is no array.
    pub fn of(&self, position: PositionId) -> std::ops::Range<DimensionId> {
        let i = position.as_u32() as usize;
        self.first[i]..self.first[i + 1]
    }

    /// The dimensions of an instruction's result, where that is an array.
    pub fn of_array(&self, instruction: InstructionId) -> std::ops::Range<DimensionId> {
        self.of(self.positions.root(instruction))
    }

    /// The factors of a dimension's extent.
    pub fn factors_of(&self, dimension: DimensionId) -> FactorList {
        self.factor[dimension as usize].map_or_else(FactorList::new, |factor| self.factors.whole(factor))
    }

    /// The extent of a factor.
    pub fn extent(&self, factor: FactorId) -> i64 {
        self.factors.extent(factor)
    }

    /// An upper bound of the numbers of factors, for tables.
    pub fn factor_count(&self) -> usize {
        self.factors.len()
    }

    /// Extents that follow from others.
    pub fn relations(&self) -> &[Relation] {
        &self.relations
    }

    /// Dimensions of which some instruction needs exactly the extents that they have, or of which it is not known.
    pub fn held(&self) -> impl Iterator<Item = (DimensionId, InstructionId)> + '_ {
        self.held.iter().copied()
    }

    /// The factors of a part of a parameter of the entry, dimension by dimension.
    pub fn of_parameter(&self, module: &Module, number: usize, part: usize) -> Vec<FactorList> {
        let parameter = module.entry_computation().parameters[number];
        let position = self.positions.of(parameter).nth(part);
        position.map_or_else(Vec::new, |position| self.of(position).map(|d| self.factors_of(d)).collect())
    }

    /// Every array of the module with the dimensions that it has.
    pub fn arrays<'a>(
        &'a self,
        module: &'a Module,
    ) -> impl Iterator<Item = (PositionId, &'a ArrayShape)> + 'a {
        let listed = module.computations.values().flat_map(|computation| &computation.instructions);
        listed.flat_map(move |&id| {
            let shape = module.shape(id);
            self.positions
                .of(id)
                .zip(parts(shape))
                .filter_map(|(position, part)| Some((position, part.as_array()?)))
        })
    }

    /// Which factors come from outside, from a parameter of the entry or from constants: all others are the program's own.
    pub fn given(&self, module: &Module) -> Vec<bool> {
        let mut given = vec![false; self.factor_count()];
        let entry = module.entry_computation();
        let constants = module.computations.values().flat_map(|computation| &computation.instructions);
        let constants = constants.filter(|&&id| matches!(module.instructions[id].op, Op::Constant(_)));
        for &id in entry.parameters.iter().chain(constants) {
            for dimension in self.positions.of(id).flat_map(|position| self.of(position)) {
                self.factors_of(dimension).iter().for_each(|&factor| given[factor.as_u32() as usize] = true);
            }
        }
        given
    }
}

/// All parts of a shape in preorder.
fn parts(shape: &Shape) -> Vec<&Shape> {
    let mut parts = Vec::new();
    shape.for_each_subshape(|_, part| parts.push(part));
    parts
}
