//! The extents of all dimensions after one factor changes.

use std::sync::Arc;

use cranelift_entity::{EntityRef, EntitySet, SecondaryMap};
use memplan_analysis::{DimensionId, Dimensions, FactorId, Relation, RelationKind};
use memplan_ir::{InstructionId, Module, Shape, SliceDimension, WindowDimension};

use super::ResizeError;

/// Extents before and after.
pub(super) struct Extents<'a> {
    dimensions: &'a Dimensions,
    /// The new extents of factors that change.
    new: SecondaryMap<FactorId, Option<i64>>,
    /// Instructions whose shape changes.
    changed: EntitySet<InstructionId>,
    /// Instructions whose room for updates changed with them.
    pub(super) assumed: Vec<InstructionId>,
}

impl<'a> Extents<'a> {
    /// Follows a factor that gets another extent through everything that depends on it.
    pub(super) fn after(
        module: &Module,
        dimensions: &'a Dimensions,
        factor: FactorId,
        extent: i64,
    ) -> Result<Extents<'a>, ResizeError> {
        let new = SecondaryMap::new();
        let mut extents = Extents { dimensions, new, changed: EntitySet::new(), assumed: Vec::new() };
        let readers = readers(dimensions);
        let given = dimensions.given(module);
        extents.new[factor] = Some(extent);
        let mut changed = vec![factor];
        while let Some(factor) = changed.pop() {
            for &relation in &readers[factor] {
                changed.extend(extents.apply(module, &given, &dimensions.relations()[relation])?);
            }
        }
        extents.check(module)?;
        for (position, _) in dimensions.arrays(module) {
            if dimensions.of(position).any(|dimension| extents.is_new(dimension)) {
                extents.changed.insert(dimensions.positions().instruction(position));
            }
        }
        Ok(extents)
    }

    /// The extent of a dimension before.
    fn old(&self, dimension: DimensionId) -> i64 {
        self.dimensions.factors_of(dimension).iter().map(|&factor| self.dimensions.extent(factor)).product()
    }

    /// The extent of a dimension of more than one element.
    pub(super) fn of(&self, dimension: DimensionId) -> i64 {
        let new = |&factor: &FactorId| self.new[factor].unwrap_or_else(|| self.dimensions.extent(factor));
        self.dimensions.factors_of(dimension).iter().map(new).fold(1, i64::saturating_mul)
    }

    pub(super) fn is_new(&self, dimension: DimensionId) -> bool {
        self.dimensions.factors_of(dimension).iter().any(|&factor| self.new[factor].is_some())
    }

    pub(super) fn changes(&self, id: InstructionId) -> bool {
        self.changed.contains(id)
    }

    /// The dimension of an array that an instruction makes.
    pub(super) fn at(&self, id: InstructionId, dimension: usize) -> DimensionId {
        self.dimensions.of_array(id).start + dimension as u32
    }

    /// The shape of an instruction with its new extents.
    pub(super) fn shape_of(&self, module: &Module, id: InstructionId) -> Shape {
        let mut positions = self.dimensions.positions().of(id);
        self.with_extents(module.shape(id), &mut || {
            positions.next().map(|position| self.dimensions.of(position))
        })
    }

    /// Recursion is as deep as the shape; the parsers bound that depth.
    fn with_extents(
        &self,
        shape: &Shape,
        next: &mut dyn FnMut() -> Option<std::ops::Range<DimensionId>>,
    ) -> Shape {
        let own = next().unwrap_or_default();
        match shape {
            Shape::Tuple(elements) => Shape::Tuple(
                elements.iter().map(|element| self.with_extents(element, next)).collect::<Arc<[_]>>(),
            ),
            _ => {
                let mut shape = shape.clone();
                let extents = shape.as_array_mut().map(|array| array.dimensions.iter_mut());
                for (extent, dimension) in extents.into_iter().flatten().zip(own) {
                    if self.is_new(dimension) {
                        *extent = self.of(dimension);
                    }
                }
                shape
            }
        }
    }

    /// Applies a relation to find the factor that changes with it.
    fn apply(
        &mut self,
        module: &Module,
        given: &[bool],
        relation: &Relation,
    ) -> Result<Option<FactorId>, ResizeError> {
        if !relation.from.iter().any(|&from| self.is_new(from)) {
            return Ok(None);
        }
        let conflict = || conflict(module, relation.instruction, self.old(relation.to));
        let factors = self.dimensions.factors_of(relation.to);
        let wanted = match relation.kind {
            RelationKind::Room => match self.room(given, relation) {
                Some(wanted) => wanted,
                None => return Ok(None),
            },
            _ => self.related(relation).filter(|&wanted| wanted > 0).ok_or_else(conflict)?,
        };
        if wanted == self.of(relation.to) {
            return Ok(None);
        }
        let open: Vec<FactorId> =
            factors.iter().copied().filter(|&factor| self.new[factor].is_none()).collect();
        // The remaining factors of the extent: a single one can take the change.
        let [factor] = open[..] else { return Err(conflict()) };
        let others = self.of(relation.to) / self.dimensions.extent(factor);
        if wanted % others != 0 {
            return Err(conflict());
        }
        self.new[factor] = Some(wanted / others);
        if relation.kind == RelationKind::Room {
            self.assumed.push(relation.instruction);
        }
        Ok(Some(factor))
    }

    /// The extent that a relation asks for.
    fn related(&self, relation: &Relation) -> Option<i64> {
        let from = self.of(relation.from[0]);
        match relation.kind {
            RelationKind::Slice(slice) => {
                let slice = cut(slice, self.old(relation.from[0]), from);
                let length = slice.limit.checked_sub(slice.start)?;
                Some(length / slice.stride + i64::from(length % slice.stride > 0))
            }
            RelationKind::Pad(padding) => padding.padded(from),
            RelationKind::Concatenation => {
                relation.from.iter().try_fold(0i64, |sum, &from| sum.checked_add(self.extent(from)))
            }
            RelationKind::Window(window) => {
                let size = relation.from.get(1).filter(|&&size| self.is_new(size)).map(|&size| self.of(size));
                WindowDimension { size: size.unwrap_or(window.size), ..window }.placements(from)
            }
            RelationKind::Room => None,
        }
    }

    /// Room for more updates, or for fewer, where the program makes it of its own accord: where nobody gives it the extent.
    fn room(&self, given: &[bool], relation: &Relation) -> Option<i64> {
        let factors = self.dimensions.factors_of(relation.to);
        if factors.iter().any(|factor| given[factor.index()] || self.new[*factor].is_some()) {
            return None;
        }
        let product = |extent: &dyn Fn(DimensionId) -> i64| {
            relation.from.iter().map(|&from| i128::from(extent(from))).product::<i128>()
        };
        let room = i128::from(self.old(relation.to)) * product(&|from| self.of(from));
        let updates = product(&|from| self.old(from));
        (room % updates == 0).then(|| i64::try_from(room / updates).ok()).flatten()
    }

    /// Extents that no operation can have.
    fn check(&self, module: &Module) -> Result<(), ResizeError> {
        let mut held = self.dimensions.held();
        match held.find(|&(dimension, _)| self.is_new(dimension)) {
            None => Ok(()),
            Some((dimension, id)) => {
                let instruction = &module.instructions[id];
                let extent = self.old(dimension);
                Err(ResizeError::Held {
                    instruction: instruction.name.clone(),
                    operation: instruction.opcode(),
                    extent,
                })
            }
        }
    }

    /// The extent of any dimension, also of one without factors.
    fn extent(&self, dimension: DimensionId) -> i64 {
        self.of(dimension)
    }
}

/// The relations that read each factor.
fn readers(dimensions: &Dimensions) -> SecondaryMap<FactorId, Vec<usize>> {
    let mut readers: SecondaryMap<FactorId, Vec<usize>> = SecondaryMap::new();
    for (i, relation) in dimensions.relations().iter().enumerate() {
        for factor in relation.from.iter().flat_map(|&from| dimensions.factors_of(from)) {
            if readers[factor].last() != Some(&i) {
                readers[factor].push(i);
            }
        }
    }
    readers
}

fn conflict(module: &Module, id: InstructionId, extent: i64) -> ResizeError {
    let instruction = &module.instructions[id];
    ResizeError::Conflict { instruction: instruction.name.clone(), operation: instruction.opcode(), extent }
}

/// Cuts a slice out of an array that is longer or shorter than it was: halves and quarters stay such, everything else keeps
/// its distance to the nearer end.
pub(super) fn cut(slice: SliceDimension, old: i64, new: i64) -> SliceDimension {
    let part = gcd(gcd(slice.start, slice.limit), old);
    if part > 1 && old / part <= 4 && part * new % old == 0 && slice.stride == 1 {
        let scale = |at: i64| at / part * (part * new / old);
        return SliceDimension { start: scale(slice.start), limit: scale(slice.limit), ..slice };
    }
    let keep = |at: i64| if at <= old / 2 { at } else { at - old + new };
    SliceDimension { start: keep(slice.start), limit: keep(slice.limit), ..slice }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}
