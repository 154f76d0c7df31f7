//! What `compile` does before it plans, as data: copied, changed and run by whoever wants another compiler.

use memplan_passes::AnyPass::{self, Static};
use memplan_passes::{
    DCE, DONATION, FUSION, FUSION_OF_UPDATES, Fusion, HOST_OFFLOAD, KEEP_WITHIN_LOOPS, LAYOUT_ASSIGNMENT,
    LEGALIZE, LOOP_RESIDUALS, LOOP_STATE_IN_PLACE, OPTIMIZATION_BARRIER_EXPANDER, Pass, Pipeline, REMAT,
    SCATTER_TO_SELECT, SIMPLIFY, TAKE_APART, UNINITIALIZED_RESULTS,
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
    /// What comes first, once.
    pub front: Vec<Pipeline>,
    /// What keeps less for later, under each first guess of the order.
    pub recompute: Pipeline,
    /// What runs before a program is fused: nothing is merged from there on, so nothing is to be kept apart.
    pub before_fusion: Pipeline,
    /// The ways to fuse, of which the one that needs fewest bytes is kept. With updates fused, fewer bytes are moved,
    /// but more may be alive. Without any, nothing is fused.
    pub fusions: Vec<Fusion>,
    /// What makes the program legal to plan.
    pub legalize: Pipeline,
}

impl Default for Stages {
    fn default() -> Stages {
        Stages {
            front: vec![
                Pipeline::new(
                    "simplify",
                    "remove what is not needed",
                    [Static(&TAKE_APART), Static(&SIMPLIFY)],
                ),
                Pipeline::new(
                    "recompute rows",
                    "keep nothing that stays the same or is summed, compute rows again that one loop keeps for another, \
                     and write rows where others were read",
                    [
                        Static(&KEEP_WITHIN_LOOPS),
                        Static(&LOOP_RESIDUALS),
                        Static(&LOOP_STATE_IN_PLACE),
                        Static(&SIMPLIFY),
                    ],
                ),
                Pipeline::new(
                    "lay out",
                    "decide where arrays are and how they lie",
                    [Static(&HOST_OFFLOAD), Static(&LAYOUT_ASSIGNMENT), Static(&DONATION)],
                ),
            ],
            // What is worth recomputing depends on padded sizes; what is new then is laid out again.
            recompute: Pipeline::new(
                "recompute",
                "compute again what is cheap, rather than keep it",
                [Static(&SCATTER_TO_SELECT), Static(&SIMPLIFY), Static(&REMAT), Static(&LAYOUT_ASSIGNMENT)],
            ),
            before_fusion: Pipeline::new(
                "fuse",
                "drop barriers, and what fills arrays in vain",
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

    /// Everything up to a fused program as one pass: in the order of the text, and fused in one way, where `compile` tries
    /// several. What comes out is ready for [`Stages::legalize`].
    pub fn up_to_fusion(&self, fusion: Option<Fusion>) -> Pipeline {
        let stages = self.front.iter().chain([&self.recompute, &self.before_fusion]).cloned();
        let passes = stages.map(AnyPass::from).chain(fusion.map(AnyPass::from));
        Pipeline::new("up-to-fusion", "the stages of `compile` up to a fused program", passes)
    }
}
