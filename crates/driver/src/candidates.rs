//! The candidates of `compile`, as data: every setting that may be tried.

use crate::compile::CompileOptions;
use crate::memo::{Memo, SettingId};
use crate::objective::Objective;
use crate::priced_module::{Done, PricedModule, Request, Step};
use crate::{FirstGuess, Price, Stages, Variant};
use memplan_ir::Module;
use memplan_passes::{Fusion, Pass, Pipeline};

/// What a candidate is tried for. More is asked of later ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// It is the usual way.
    Usual,
    /// It may be faster.
    Faster,
    /// It may need fewer bytes, for more time.
    Smaller,
}

impl Purpose {
    /// What is tried in any case.
    pub(crate) fn needed(options: &CompileOptions) -> Purpose {
        match (options.objective, options.memory_limit) {
            (Objective::Memory, _) => Purpose::Usual,
            (_, None) => Purpose::Faster,
            (_, Some(_)) => Purpose::Smaller,
        }
    }
}

/// A setting that leads to a program that can be planned.
pub(crate) struct Candidate {
    pub(crate) purpose: Purpose,
    /// The name of the variant of the stages.
    pub(crate) variant: &'static str,
    /// What that does differently, for people.
    pub(crate) description: &'static str,
    pub(crate) guess: FirstGuess,
    /// The pass that fuses; `None` where nothing is fused.
    pub(crate) fusion: Option<&'static str>,
    pub(crate) setting: SettingId,
    /// What the program came to when it was planned in full.
    pub(crate) price: Option<Price>,
}

/// Where the steps of every candidate have led, after those of the front.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// To a program that is still to be put into an order.
    LaidOut,
    /// To one in the order of the first guess.
    Ordered,
    /// To one that keeps less for later.
    Recomputed,
    /// To kernels.
    Fused,
    /// To a program that can be planned.
    Legal,
}

impl Until {
    /// How many steps that is.
    pub(crate) fn n_steps(self, stages: &Stages) -> usize {
        // One more tells of the program as it came.
        1 + stages.front.len() + self as usize
    }
}

/// Every candidate: under each first guess the usual way, then variants of it, as many as there is effort for with a program
/// of the size of a module; each fused in each way.
pub(crate) fn candidates(
    module: &Module,
    request: Request<'_>,
    memo: &mut Memo<Step, PricedModule, Done>,
    first: SettingId,
) -> Vec<Candidate> {
    let Request { target, options } = request;
    let most = options.max_varied / module.instructions.len().max(1);
    let usual = [Variant::usual()];
    let of = |purpose, variants: &[Variant], most: usize| {
        let varied = |variant: &Variant| {
            let &Variant { name, description, .. } = variant;
            (purpose, name, description, variant.stages(&options.stages, target))
        };
        variants.iter().take(most).map(varied).collect::<Vec<_>>()
    };
    let variants = [
        of(Purpose::Usual, &usual, 1),
        of(Purpose::Faster, &options.faster, most),
        of(Purpose::Smaller, &options.smaller, most),
    ];
    let guesses = if options.guesses.is_empty() { &[FirstGuess::Text] } else { options.guesses.as_slice() };
    let mut all = Vec::new();
    for &guess in guesses {
        for &(purpose, variant, description, ref stages) in variants.iter().flatten() {
            for fusion in ways_to_fuse(stages) {
                let setting = memo.branch(first, steps(stages, guess, fusion, options.explain_fusion));
                all.push(Candidate {
                    purpose,
                    variant,
                    description,
                    guess,
                    fusion: fusion.map(|fusion| fusion.name()),
                    setting,
                    price: None,
                });
            }
        }
    }
    all
}

/// Each way to fuse, of which one may be not to.
fn ways_to_fuse(stages: &Stages) -> Vec<Option<Fusion>> {
    match stages.fusions.is_empty() {
        true => vec![None],
        false => stages.fusions.iter().copied().map(Some).collect(),
    }
}

fn steps(stages: &Stages, guess: FirstGuess, fusion: Option<Fusion>, explain: bool) -> Vec<Step> {
    let before = &stages.before_fusion;
    let fusion = fusion.map(|fusion| Fusion { explain: fusion.explain || explain, ..fusion });
    let passes = [before.clone().into()].into_iter().chain(fusion.map(Into::into));
    let fuse = Pipeline::new(before.name, before.description, passes);
    let as_it_came = Pipeline::new("before", "the program as it came", []);
    let front = [as_it_came].into_iter().chain(stages.front.iter().cloned()).map(Step::Stage);
    let back = [
        Step::Order(guess),
        Step::Stage(stages.recompute.clone()),
        Step::Fuse(fuse),
        Step::Stage(stages.legalize.clone()),
    ];
    front.chain(back).collect()
}
