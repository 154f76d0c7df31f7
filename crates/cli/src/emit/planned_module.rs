//! A planned module, and its parts that emitters use.

use std::cell::OnceCell;

use memplan::advice::note_peaks;
use memplan::codegen::layout::{ProgramLayout, layout};
use memplan::codegen::view::View;
use memplan::ir::Module;
use memplan::memory::{PlanFile, Resident, Target};
use memplan::plan::{Planned, ProgramCost};

use super::view::view;
use crate::ipu_report::{Chips, summary};

/// A planned module to write.
pub(crate) struct PlannedModule<'a> {
    pub(crate) module: &'a Module,
    pub(crate) target: &'a Target,
    pub(crate) planned: &'a Planned,
    /// How many devices run it, if it is more than one.
    pub(crate) devices: Option<u64>,
    /// The tiles, of a machine that has some.
    pub(crate) tiles: Option<&'a Chips>,
    /// The programs of the folder that the module was read from.
    pub(crate) resident: Option<&'a Resident>,
    /// The program before compilation.
    pub(crate) before: Option<Before<'a>>,
    layout: OnceCell<ProgramLayout>,
    view: OnceCell<View>,
    cost: OnceCell<ProgramCost>,
}

/// An input program, with a plan for the same machine.
pub(crate) struct Before<'a> {
    pub(crate) module: &'a Module,
    pub(crate) planned: &'a Planned,
}

impl<'a> PlannedModule<'a> {
    pub(crate) fn new(module: &'a Module, target: &'a Target, planned: &'a Planned) -> PlannedModule<'a> {
        PlannedModule {
            module,
            target,
            planned,
            devices: None,
            tiles: None,
            resident: None,
            before: None,
            layout: OnceCell::new(),
            view: OnceCell::new(),
            cost: OnceCell::new(),
        }
    }

    /// The plan file.
    pub(crate) fn plan_json(&self) -> String {
        let mut file = PlanFile::new(self.module, &self.planned.schedule, &self.planned.plan);
        file.devices = self.devices;
        file.tiles = self.tiles.map(|chips| summary(self.module, chips));
        file.resident = self.resident.cloned();
        self.cost().note(self.module, &self.planned.facts, &mut file);
        note_peaks(self.module, self.planned, &mut file);
        json(&file)
    }

    pub(super) fn layout(&self) -> &ProgramLayout {
        let Planned { facts, plan, .. } = self.planned;
        self.layout.get_or_init(|| layout(self.module, facts, self.target, plan))
    }

    pub(super) fn view(&self) -> &View {
        self.view.get_or_init(|| view(self.module, self.target, self.planned))
    }

    pub(super) fn cost(&self) -> &ProgramCost {
        self.cost.get_or_init(|| {
            ProgramCost::new(self.module, &self.planned.facts, &self.planned.plan, self.target)
        })
    }
}

pub(crate) fn json(document: &impl serde::Serialize) -> String {
    serde_json::to_string_pretty(document).expect("documents have only string keys") + "\n"
}
