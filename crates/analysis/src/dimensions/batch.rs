//! Finds the batch dimension among the dimensions of a program's arguments.

use super::{Dimensions, FactorId, FactorList};
use cranelift_entity::EntityRef;
use memplan_ir::{ArrayShape, ElementType, InstructionId, Module, Op, Shape};
use rustc_hash::{FxHashMap, FxHashSet};

/// The factor that a program's examples are counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// The factor.
    pub factor: FactorId,
    /// The first argument that has it: number of the parameter, number of the part in preorder of its shape, and dimension.
    pub at: (usize, usize, usize),
    /// Everything that the extent of that dimension is a product of.
    pub dimension: FactorList,
}

impl Batch {
    /// The extent of the whole dimension.
    pub fn extent(&self, dimensions: &Dimensions) -> i64 {
        self.dimension.iter().map(|&factor| dimensions.extent(factor)).product()
    }
}

/// The batch dimension of a program, in every argument that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchOfArguments {
    /// The number of examples.
    pub extent: i64,
    /// Numbers of parameters of the entry that are arrays, and the dimension in each whose slowest factor is the batch.
    pub parameters: Vec<(usize, usize)>,
}

/// An array among the arguments.
struct Argument<'a> {
    parameter: usize,
    part: usize,
    array: &'a ArrayShape,
    factors: Vec<FactorId>,
    /// Those of its slowest dimension.
    leads: FactorList,
    /// It comes back as a result of the same type and extents, which is no other argument's: weights, moments, caches.
    is_state: bool,
}

impl Dimensions {
    /// The factor that the dimension of a parameter of the entry is counted by; where there are several, the slowest.
    pub fn batch_at(
        &self,
        module: &Module,
        parameter: usize,
        part: usize,
        dimension: usize,
    ) -> Option<Batch> {
        let id = *module.entry_computation().parameters.get(parameter)?;
        let position = self.positions.of(id).nth(part)?;
        let factors = self.factors_of(self.of(position).nth(dimension)?);
        Some(Batch { factor: *factors.first()?, at: (parameter, part, dimension), dimension: factors })
    }

    /// The likeliest batch dimension. Candidates are dimensions of integer arguments (tokens, labels), or else of all
    /// arguments that are not state, or else of all arguments, as long as no floating-point state has them and no loop goes along
    /// them. Dimensions that are the slowest of an argument are preferred, then those of the most bytes.
    ///
    /// `None` where no argument has a dimension that could be it.
    pub fn batch(&self, module: &Module) -> Option<Batch> {
        let arguments = self.arguments(module);
        let of = |wanted: &dyn Fn(&Argument<'_>) -> bool| -> Vec<FactorId> {
            arguments.iter().filter(|argument| wanted(argument)).flat_map(Argument::once).collect()
        };
        let integers = of(&|a| a.array.element_type.is_integral());
        let data = of(&|a| !a.is_state);
        let found = [integers, data, of(&|_| true)].into_iter().find(|factors| !factors.is_empty())?;
        let of_state = of(&|a| a.is_state && !a.array.element_type.is_integral());
        let own: Vec<FactorId> = found.iter().copied().filter(|factor| !of_state.contains(factor)).collect();
        let candidates = if own.is_empty() { found } else { own };
        let stepped = self.stepped(module);
        let parallel: Vec<FactorId> =
            candidates.iter().copied().filter(|factor| !stepped.contains(factor)).collect();
        let candidates = if parallel.is_empty() { candidates } else { parallel };
        let leading =
            of(&|_| true).into_iter().filter(|factor| arguments.iter().any(|a| a.leads.contains(factor)));
        let leading: Vec<FactorId> = leading.filter(|factor| candidates.contains(factor)).collect();
        let candidates = if leading.is_empty() { candidates } else { leading };
        let bytes = self.bytes_by_factor(module);
        let factor = candidates
            .into_iter()
            .max_by_key(|factor| (bytes[factor.index()], std::cmp::Reverse(*factor)))?;
        let (parameter, part, dimension) =
            arguments.iter().find_map(|argument| argument.place_of(self, module, factor))?;
        Some(Batch { factor, ..self.batch_at(module, parameter, part, dimension)? })
    }

    /// The likeliest batch dimension, in every argument where it is the slowest factor of a dimension: there, parts of the
    /// batch are contiguous in that dimension.
    ///
    /// `None` where no argument has a dimension that could be it.
    pub fn of_batch(&self, module: &Module) -> Option<BatchOfArguments> {
        let batch = self.batch(module)?;
        let entry = module.entry_computation();
        let arrays =
            entry.parameters.iter().enumerate().filter(|(_, id)| module.shape(**id).as_array().is_some());
        let along = |(number, _): (usize, &InstructionId)| {
            let factors = self.of_parameter(module, number, 0);
            let dimension = factors.iter().position(|factors| factors.first() == Some(&batch.factor))?;
            Some((number, dimension))
        };
        Some(BatchOfArguments { extent: batch.extent(self), parameters: arrays.filter_map(along).collect() })
    }

    fn arguments<'a>(&self, module: &'a Module) -> Vec<Argument<'a>> {
        let entry = module.entry_computation();
        let aliases = module.config.input_output_alias.iter();
        let donated: FxHashSet<InstructionId> = aliases
            .filter(|alias| alias.parameter_index.0.is_empty())
            .filter_map(|alias| entry.parameters.get(alias.parameter as usize).copied())
            .collect();
        let mut results: FxHashMap<Type<'_>, usize> = FxHashMap::default();
        for (_, array) in leaves(module, entry.root) {
            *results.entry(type_of(array)).or_default() += 1;
        }
        let mut comes_back = |array| {
            let left = results.get_mut(&type_of(array)).filter(|left| **left > 0);
            left.map(|left| *left -= 1).is_some()
        };
        for array in donated.iter().filter_map(|&id| module.shape(id).as_array()) {
            comes_back(array);
        }
        let mut arguments = Vec::new();
        for (parameter, &id) in entry.parameters.iter().enumerate() {
            for (part, array) in leaves(module, id) {
                let own = self.of_parameter(module, parameter, part);
                let leads = own.first().cloned().unwrap_or_default();
                let factors = own.into_iter().flatten().collect();
                arguments.push(Argument {
                    parameter,
                    part,
                    array,
                    factors,
                    leads,
                    is_state: array.rank() > 0 && (donated.contains(&id) || comes_back(array)),
                });
            }
        }
        arguments
    }

    /// Factors of dimensions that loops go along, one element at a time: steps in time, not examples.
    fn stepped(&self, module: &Module) -> FxHashSet<FactorId> {
        let in_loops = module.computations.iter().filter(|(id, _)| *id != module.entry);
        let mut stepped = FxHashSet::default();
        for &id in in_loops.flat_map(|(_, computation)| &computation.instructions) {
            let instruction = &module.instructions[id];
            let part = match &instruction.op {
                Op::DynamicSlice { slice_sizes } => slice_sizes,
                Op::DynamicUpdateSlice => match module.shape(instruction.operands[1]).as_array() {
                    Some(update) => &update.dimensions,
                    None => continue,
                },
                _ => continue,
            };
            let dimensions = self.of_array(instruction.operands[0]).zip(part);
            let along = dimensions.filter(|(_, size)| **size == 1);
            stepped.extend(along.flat_map(|(dimension, _)| self.factors_of(dimension)));
        }
        stepped
    }

    /// Bytes of all arrays that have a factor among their extents.
    fn bytes_by_factor(&self, module: &Module) -> Vec<u64> {
        let mut bytes = vec![0u64; self.factor_count()];
        for (position, array) in self.arrays(module) {
            let size = array.dense_bytes().unwrap_or(0);
            for factor in self.of(position).flat_map(|dimension| self.factors_of(dimension)) {
                bytes[factor.index()] = bytes[factor.index()].saturating_add(size);
            }
        }
        bytes
    }
}

impl Argument<'_> {
    /// Factors that occur once: a factor that occurs twice counts no examples.
    fn once(&self) -> Vec<FactorId> {
        let count = |factor: &FactorId| self.factors.iter().filter(|other| *other == factor).count();
        self.factors.iter().copied().filter(|factor| count(factor) == 1).collect()
    }

    fn place_of(
        &self,
        dimensions: &Dimensions,
        module: &Module,
        factor: FactorId,
    ) -> Option<(usize, usize, usize)> {
        let own = dimensions.of_parameter(module, self.parameter, self.part);
        let dimension = own.iter().position(|factors| factors.contains(&factor))?;
        Some((self.parameter, self.part, dimension))
    }
}

/// Element type and extents.
type Type<'a> = (ElementType, &'a [i64]);

fn type_of(array: &ArrayShape) -> Type<'_> {
    (array.element_type, &array.dimensions)
}

/// The arrays of a value, each with its number among the parts of the shape.
fn leaves(module: &Module, id: InstructionId) -> Vec<(usize, &ArrayShape)> {
    let parts = super::parts(module.shape(id)).into_iter().enumerate();
    parts.filter_map(|(part, shape): (usize, &Shape)| Some((part, shape.as_array()?))).collect()
}
