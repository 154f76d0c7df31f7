//! What `compile` does before it plans, as data: copied, changed and run by whoever wants another compiler.

use std::borrow::Cow;

use memplan_passes::{
    DONATION, FUSION, FUSION_OF_UPDATES, Fusion, HOST_OFFLOAD, LAYOUT_ASSIGNMENT, LEGALIZE, LOOP_RESIDUALS,
    LOOP_STATE_IN_PLACE, OPTIMIZATION_BARRIER_EXPANDER, Pass, Pipeline, REMAT, SCATTER_TO_SELECT, SIMPLIFY,
    TAKE_APART,
};

/// The passes of `compile`, stage by stage. Names of stages are those of the report.
#[derive(Clone)]
pub struct Stages {
    /// What comes first, once.
    pub front: Vec<Pipeline>,
    /// What keeps less for later, under each first guess of the order.
    pub recompute: Pipeline,
    /// What runs before a program is fused: nothing is merged from there on, so nothing is to be kept apart.
    pub before_fusion: Pipeline,
    /// The ways to fuse, of which the one that needs fewest bytes is kept. With updates fused, fewer bytes are moved,
    /// but more may be alive.
    pub fusions: Vec<Fusion>,
    /// What makes the program legal to plan.
    pub legalize: Pipeline,
}

impl Default for Stages {
    fn default() -> Stages {
        Stages {
            front: vec![
                once("simplify", "remove what is not needed", &[&TAKE_APART, &SIMPLIFY]),
                once(
                    "recompute rows",
                    "compute rows again that one loop keeps for another, and write rows where others were read",
                    &[&LOOP_RESIDUALS, &LOOP_STATE_IN_PLACE, &SIMPLIFY],
                ),
                once(
                    "lay out",
                    "decide where arrays are and how they lie",
                    &[&HOST_OFFLOAD, &LAYOUT_ASSIGNMENT, &DONATION],
                ),
            ],
            // What is worth recomputing depends on padded sizes; what is new then is laid out again.
            recompute: once(
                "recompute",
                "compute again what is cheap, rather than keep it",
                &[&SCATTER_TO_SELECT, &SIMPLIFY, &REMAT, &LAYOUT_ASSIGNMENT],
            ),
            before_fusion: once("fuse", "drop barriers", &[&OPTIMIZATION_BARRIER_EXPANDER]),
            fusions: vec![FUSION, FUSION_OF_UPDATES],
            legalize: Pipeline { name: "insert copies", ..LEGALIZE },
        }
    }
}

impl Stages {
    /// Every stage in order, with the names of its passes.
    pub fn list(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let names = |pipeline: &Pipeline| pipeline.passes.iter().map(|pass| pass.name()).collect::<Vec<_>>();
        let mut all: Vec<_> = self.front.iter().map(|stage| (stage.name, names(stage))).collect();
        all.push((self.recompute.name, names(&self.recompute)));
        let mut fuse = names(&self.before_fusion);
        fuse.extend(self.fusions.iter().map(|fusion| fusion.name()));
        all.push((self.before_fusion.name, fuse));
        all.push((self.legalize.name, names(&self.legalize)));
        all
    }
}

fn once(name: &'static str, description: &'static str, passes: &'static [&'static dyn Pass]) -> Pipeline {
    Pipeline { name, description, passes: Cow::Borrowed(passes), rounds: 1 }
}
