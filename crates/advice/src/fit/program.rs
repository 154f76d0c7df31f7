//! A program under change: the module, and what is known of it that no module says.

use memplan_analysis::{Batch, Dimensions, Facts, Phases, ValueClass, ValueClasses};
use memplan_driver::{EstimateError, Price, price};
use memplan_ir::{ArrayShape, InstructionId, Module, Schedule};
use memplan_memory::Bytes;
use memplan_passes as passes;
use memplan_passes::{Context, PassError, RunOptions};

use super::{FitError, Setting};

/// A program that levers are tried on.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) module: Module,
    pub(super) dimensions: Dimensions,
    pub(super) batch: Option<Batch>,
    /// The class of each parameter of the entry.
    pub(super) classes: Vec<ValueClass>,
    pub(super) phases: Phases,
    /// How often the module runs for one step.
    pub(super) runs: f64,
    /// Bytes beside those of the module.
    pub(super) extra: Bytes,
    /// Seconds beside those of the module: transfers over links.
    pub(super) extra_seconds: f64,
}

impl Program {
    /// The program as it is, with dimensions that can be followed.
    pub(super) fn new(module: &Module, setting: &Setting<'_>) -> Result<Program, FitError> {
        let mut module = module.clone();
        module.is_scheduled = false;
        let context = Context { target: setting.target };
        passes::run(&mut module, &[&passes::FOLLOWABLE], &context, RunOptions::default())?;
        module.compact();
        let mut program = Program::of(module)?;
        if let Some((parameter, dimension)) = setting.options.batch {
            let named = program.dimensions.batch_at(&program.module, parameter, 0, dimension);
            program.batch = Some(named.ok_or(FitError::NoBatch(parameter, dimension))?);
        }
        Ok(program)
    }

    fn of(module: Module) -> Result<Program, PassError> {
        let facts = Facts::new(&module, &Schedule::in_textual_order(&module))
            .map_err(|source| PassError::CallGraph { pass: "fit", source })?;
        let classes = ValueClasses::new(&module, &facts);
        let class = |&id: &InstructionId| {
            facts.flow.value_of(id).map_or(ValueClass::Input, |value| classes.of(value))
        };
        let of_parameters = module.entry_computation().parameters.iter().map(class).collect();
        let dimensions = Dimensions::follow(&module);
        let batch = dimensions.batch(&module);
        Ok(Program {
            batch,
            dimensions,
            classes: of_parameters,
            phases: classes.phases,
            module,
            runs: 1.0,
            extra: Bytes::ZERO,
            extra_seconds: 0.0,
        })
    }

    /// The same program with another module, whose parameters mean the same.
    pub(super) fn with_module(&self, module: Module) -> Result<Program, String> {
        let batch = self.batch.as_ref().map(|batch| batch.at);
        let mut next = Program::of(module).map_err(|error| error.to_string())?;
        next.batch = batch.and_then(|(parameter, part, dimension)| {
            next.dimensions.batch_at(&next.module, parameter, part, dimension)
        });
        next.classes.clone_from(&self.classes);
        (next.runs, next.extra, next.extra_seconds) = (self.runs, self.extra, self.extra_seconds);
        Ok(next)
    }

    /// What the compiler is expected to need.
    pub(super) fn price(&self, setting: &Setting<'_>) -> Result<Price, EstimateError> {
        let of_module = price(&self.module, setting.compiler, setting.target)?;
        Ok(Price {
            total: of_module.total.saturating_add(self.extra),
            seconds: of_module.seconds * self.runs + self.extra_seconds,
            operations: of_module.operations * self.runs,
        })
    }

    /// The arrays among the parameters of the entry that are of a class, with their numbers.
    pub(super) fn parameters(&self, class: ValueClass) -> impl Iterator<Item = (usize, &ArrayShape)> {
        let entry = self.module.entry_computation();
        let of_class = self.classes.iter().enumerate().filter(move |(_, own)| **own == class);
        of_class.filter_map(|(number, _)| {
            let array = self.module.shape(entry.parameters[number]).as_array()?;
            (array.rank() > 0).then_some((number, array))
        })
    }

    /// Bytes of the parameters of a class.
    pub(super) fn bytes(&self, class: ValueClass, setting: &Setting<'_>) -> Bytes {
        let sizes = self.parameters(class).map(|(_, array)| setting.target.size_of(&array.clone().into()));
        sizes.fold(Bytes::ZERO, Bytes::saturating_add)
    }

    /// The extent of the batch.
    pub(super) fn examples(&self) -> Option<i64> {
        self.batch.as_ref().map(|batch| batch.extent(&self.dimensions))
    }

    /// The names of arguments as the program's author calls them, from some numbers of parameters.
    pub(super) fn arguments(&self, numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
        let entry = self.module.entry_computation();
        let mut names: Vec<String> = Vec::new();
        for number in numbers {
            let id = entry.parameters[number];
            let path = memplan_analysis::operation(&self.module, id);
            let name = path.split(['[', '.']).next().filter(|name| !name.is_empty());
            let name = name.map_or_else(|| self.module.instructions[id].name.to_string(), str::to_string);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}
