//! Finds the batch dimension among the dimensions of a program's arguments.

mod arguments;
mod looked_up;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use cranelift_entity::EntityRef;
use memplan_ir::{InstructionId, Module, Op, Schedule};
use rustc_hash::{FxHashMap, FxHashSet};

use self::arguments::{Argument, Kind, arguments};
use self::looked_up::{LookedUp, RowOf, looked_up};
use super::{Dimensions, FactorId, FactorList};
use crate::{Facts, ValueClasses};

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

    /// The likeliest batch dimension. Candidates are dimensions of integer arguments (tokens, labels), or else of all data.
    /// No candidate is a dimension that the model has, that loops go along, or along which an argument looks up rows of
    /// another (the nodes and edges of a graph), nor any dimension of an argument that these lead. Dimensions that are the
    /// slowest of an argument are preferred, then those of the most bytes. Where there are no candidates, they are those of
    /// integers that come back (tokens), or else the slowest dimension of most bytes of what comes back (caches), and of
    /// weights if nothing is data.
    ///
    /// `None` where no argument has a dimension that could be it, and for graphs, whose nodes are one example.
    pub fn batch(&self, module: &Module) -> Option<Batch> {
        let search = Search::new(self, module);
        if search.looked_up.is_graph {
            return None;
        }
        let factor = search.of_data().or_else(|| search.of_others())?;
        let (parameter, part, dimension) = search.place_of(factor)?;
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

    /// Factors of dimensions that only weights have: windows of convolutions, rows that a gather finds.
    fn of_weights(&self, module: &Module) -> FxHashSet<FactorId> {
        let mut found = FxHashSet::default();
        for &id in module.computations.values().flat_map(|computation| &computation.instructions) {
            let instruction = &module.instructions[id];
            let (array, along) = match &instruction.op {
                Op::Convolution(convolution) => {
                    (instruction.operands[1], &convolution.dimensions.kernel_spatial)
                }
                Op::Gather(gather) => (instruction.operands[0], &gather.start_index_map),
                _ => continue,
            };
            let of_array = self.of_array(array).enumerate();
            let along = of_array.filter(|(d, _)| along.contains(&(*d as i64)));
            found.extend(along.flat_map(|(_, dimension)| self.factors_of(dimension)));
        }
        found
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

/// What is known of a program's arguments.
struct Search {
    arguments: Vec<Argument>,
    /// Factors that the model has.
    model: FxHashSet<FactorId>,
    /// Factors of dimensions that loops go along.
    stepped: FxHashSet<FactorId>,
    looked_up: LookedUp,
    /// Factors of windows of convolutions, and of rows of tables.
    of_weights: FxHashSet<FactorId>,
    /// Bytes of all arrays that have a factor.
    bytes: Vec<u64>,
}

impl Search {
    fn new(dimensions: &Dimensions, module: &Module) -> Search {
        let facts = Facts::new(module, &Schedule::in_textual_order(module)).ok();
        let classes = facts.map(|facts| (ValueClasses::new(module, &facts), facts));
        let mut arguments = arguments(dimensions, module, classes.as_ref());
        // A weight has no row for each example.
        let of_data = arguments.iter().filter(|argument| argument.kind == Kind::Data);
        let leading: FxHashSet<FactorId> = of_data.flat_map(Argument::first).collect();
        for argument in arguments.iter_mut().filter(|argument| argument.kind == Kind::Weights) {
            if argument.first().any(|factor| leading.contains(&factor)) {
                argument.kind = Kind::Data;
            }
        }
        let of = |wanted: &dyn Fn(&Argument) -> bool| -> FxHashSet<FactorId> {
            arguments.iter().filter(|argument| wanted(argument)).flat_map(Argument::factors).collect()
        };
        let model = of(&|a| matches!(a.kind, Kind::Model | Kind::Weights));
        let data = of(&|a| a.kind == Kind::Data);
        let mut leading: FxHashMap<FactorId, usize> = FxHashMap::default();
        for factor in arguments.iter().filter(|a| a.kind == Kind::Data).flat_map(Argument::first) {
            *leading.entry(factor).or_default() += 1;
        }
        let row_of = |factor: FactorId| match leading.get(&factor) {
            _ if model.contains(&factor) => RowOf::Model,
            Some(2..) => RowOf::Data,
            _ if data.contains(&factor) => RowOf::Table,
            _ => RowOf::Computed,
        };
        Search {
            looked_up: classes
                .as_ref()
                .map(|known| looked_up(dimensions, module, known, row_of))
                .unwrap_or_default(),
            stepped: dimensions.stepped(module),
            of_weights: dimensions.of_weights(module),
            bytes: dimensions.bytes_by_factor(module),
            arguments,
            model,
        }
    }

    /// The batch among the dimensions of data.
    fn of_data(&self) -> Option<FactorId> {
        let of = |wanted: &dyn Fn(&Argument) -> bool| -> Vec<(FactorId, bool)> {
            let data = self.arguments.iter().filter(|a| wanted(a) && !self.is_table(a));
            let of_argument = |argument: &Argument| {
                let leading = self.leading(argument);
                let once = argument.once().into_iter();
                once.map(|factor| (factor, leading.contains(&factor))).collect::<Vec<_>>()
            };
            let is_free = |(factor, _): &(FactorId, bool)| {
                let others = [&self.model, &self.stepped, &self.looked_up.factors];
                others.iter().all(|other| !other.contains(factor))
            };
            data.flat_map(of_argument).filter(is_free).collect()
        };
        let found = [
            of(&|a| a.kind == Kind::Data && a.is_integral),
            of(&|a| a.kind == Kind::Data),
            of(&|a| a.kind == Kind::State && a.is_integral),
        ];
        let found = found.into_iter().find(|found| !found.is_empty())?;
        let by_rank =
            |(factor, leads): &(FactorId, bool)| (*leads, self.bytes[factor.index()], Reverse(*factor));
        found.into_iter().max_by_key(by_rank).map(|(factor, _)| factor)
    }

    /// The batch among the leading dimensions of arguments that are no data. Dimensions of features lead one array of
    /// weights, and end another.
    fn of_others(&self) -> Option<FactorId> {
        let ends = |argument: &Argument| {
            let leading = self.leading(argument);
            argument.factors().filter(|factor| !leading.contains(factor)).collect::<Vec<_>>()
        };
        let features: FxHashSet<FactorId> = self.arguments.iter().flat_map(ends).collect();
        let most = |wanted: &[Kind]| {
            let others = self.arguments.iter().filter(|a| wanted.contains(&a.kind) && !self.is_table(a));
            let mut led: BTreeMap<FactorId, u64> = BTreeMap::new();
            for argument in others {
                let is_weight =
                    |factor: &FactorId| argument.kind == Kind::Weights && self.of_weights.contains(factor);
                let leading = self.leading(argument).first().copied();
                if let Some(factor) =
                    leading.filter(|factor| !features.contains(factor) && !is_weight(factor))
                {
                    *led.entry(factor).or_default() += argument.bytes;
                }
            }
            led.into_iter().max_by_key(|&(factor, bytes)| (bytes, Reverse(factor))).map(|(factor, _)| factor)
        };
        let has_data = self.arguments.iter().any(|a| a.kind == Kind::Data && a.factors().next().is_some());
        let all = if has_data { None } else { most(&[Kind::State, Kind::Weights]) };
        all.or_else(|| most(&[Kind::State]))
    }

    /// The factors of the slowest dimension of an argument that no loop goes along.
    fn leading(&self, argument: &Argument) -> FactorList {
        let parallel = |factors: &FactorList| -> FactorList {
            factors.iter().copied().filter(|factor| !self.stepped.contains(factor)).collect()
        };
        argument.dimensions.iter().map(parallel).find(|factors| !factors.is_empty()).unwrap_or_default()
    }

    /// Whether an argument is rows that others look up, or names such rows.
    fn is_table(&self, argument: &Argument) -> bool {
        let mut leading = self.leading(argument).into_iter();
        self.looked_up.by.contains(&argument.at.0)
            || leading.any(|factor| self.looked_up.factors.contains(&factor))
    }

    /// Where the first argument has a factor: data, or else any.
    fn place_of(&self, factor: FactorId) -> Option<(usize, usize, usize)> {
        let with = |argument: &Argument| {
            let dimension = argument.dimensions.iter().position(|factors| factors.contains(&factor))?;
            Some((argument.at.0, argument.at.1, dimension))
        };
        let is_data = |argument: &&Argument| argument.kind == Kind::Data;
        self.arguments.iter().filter(is_data).chain(&self.arguments).find_map(with)
    }
}
