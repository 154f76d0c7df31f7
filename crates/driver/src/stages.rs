//! The stages of `compile` before planning, as data. To make another compiler, copy, change and run them.

use memplan_passes::AnyPass::{self, Static};
use memplan_passes::{
    DCE, DONATION, FUSION, FUSION_OF_UPDATES, Fusion, HOST_OFFLOAD, INNER_PRODUCTS, KEEP_WITHIN_LOOPS,
    LAYOUT_ASSIGNMENT, LEGALIZE, LOOP_RESIDUALS, LOOP_STATE_IN_PLACE, OPTIMIZATION_BARRIER_EXPANDER, Pass,
    Pipeline, REMAT, SCATTER_TO_SELECT, SIMPLIFY, SUMS_IN_PLACE, TAKE_APART, UNINITIALIZED_RESULTS,
};

/// The passes of `compile`, stage by stage. Names of stages are those of the report.
///
/// ```
/// use memplan_driver::{CompileOptions, compile};
/// use memplan_memory::Target;
/// use memplan_passes::{FUSION, OPTIMIZATION_BARRIER_EXPANDER, Pipeline, Products, Remat};
///
/// let mut options = CompileOptions::default();
/// let stages = &mut options.stages;
/// // Recompute without matrix products, and never what saves less than a tenth of the peak.
/// let remat = Remat { products: Products::Kept, min_gain: 0.1, ..Remat::default() };
/// stages.recompute = stages.recompute.with("remat", remat);
/// // Give results memory of their own.
/// stages.front = stages.front.iter().map(|stage| stage.without("donation")).collect();
/// // Fuse in one way only.
/// stages.fusions = vec![FUSION];
/// // A stage of one's own.
/// stages.front.push(Pipeline::new("barriers", "drop them early", [OPTIMIZATION_BARRIER_EXPANDER.into()]));
/// for (stage, passes) in stages.list() {
///     println!("{stage}: {}", passes.join(", "));
/// }
///
/// let mut module = memplan_hlo::parse(
///     "HloModule scale
///      ENTRY main { p = f32[1024] parameter(0)  s = f32[1024] add(p, p)  ROOT r = f32[1024] multiply(s, s) }",
/// )?;
/// let compiled = compile(&mut module, &Target::find("cpu")?, &options)?;
/// assert!(compiled.stages.iter().any(|stage| stage.name == "barriers"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Stages {
    /// The first stages, run once.
    pub front: Vec<Pipeline>,
    /// Stages that keep fewer values, run under each first guess of the order.
    pub recompute: Pipeline,
    /// Passes right before fusion: nothing merges values afterwards, so nothing needs to keep them apart.
    pub before_fusion: Pipeline,
    /// The ways to fuse; the one that needs fewest bytes is kept. Fusing updates moves fewer bytes, but may keep more
    /// alive. If empty, nothing is fused.
    pub fusions: Vec<Fusion>,
    /// Passes that make the program legal to plan.
    pub legalize: Pipeline,
}

impl Default for Stages {
    fn default() -> Stages {
        Stages {
            front: vec![
                Pipeline::new(
                    "simplify",
                    "remove unneeded operations",
                    [Static(&TAKE_APART), Static(&SIMPLIFY), Static(&INNER_PRODUCTS)],
                ),
                Pipeline::new(
                    "recompute rows",
                    "stack no value that is constant or only summed, recompute rows that one loop keeps for another, \
                     and write rows where others were read",
                    [
                        Static(&KEEP_WITHIN_LOOPS),
                        Static(&LOOP_RESIDUALS),
                        Static(&LOOP_STATE_IN_PLACE),
                        Static(&SUMS_IN_PLACE),
                        Static(&SIMPLIFY),
                    ],
                ),
                Pipeline::new(
                    "lay out",
                    "choose memory spaces and layouts",
                    [Static(&HOST_OFFLOAD), Static(&LAYOUT_ASSIGNMENT), Static(&DONATION)],
                ),
            ],
            // Recomputation depends on padded sizes; its new values are laid out again.
            recompute: Pipeline::new(
                "recompute",
                "recompute cheap values instead of keeping them",
                [Static(&SCATTER_TO_SELECT), Static(&SIMPLIFY), Static(&REMAT), Static(&LAYOUT_ASSIGNMENT)],
            ),
            before_fusion: Pipeline::new(
                "fuse",
                "drop barriers and needless initialization of arrays",
                [Static(&OPTIMIZATION_BARRIER_EXPANDER), Static(&UNINITIALIZED_RESULTS), Static(&DCE)],
            ),
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

    /// Everything up to a fused program as one pass: in the order of the text, and with one way to fuse, while
    /// `compile` tries several. [`Stages::legalize`] makes the result legal to plan.
    pub fn up_to_fusion(&self, fusion: Option<Fusion>) -> Pipeline {
        let stages = self.front.iter().chain([&self.recompute, &self.before_fusion]).cloned();
        let passes = stages.map(AnyPass::from).chain(fusion.map(AnyPass::from));
        Pipeline::new("up-to-fusion", "the stages of `compile` up to a fused program", passes)
    }
}
