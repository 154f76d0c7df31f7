//! The candidates of `compile`, as data: every setting that the search may try.

use crate::compile::CompileOptions;
use crate::memo::{Memo, SettingId};
use crate::objective::Objective;
use crate::priced_module::{Done, PricedModule, Request, Step};
use crate::{FirstGuess, Price, Stages, Variant};
use memplan_ir::Module;
use memplan_passes::{Fusion, Pass, Pipeline};

/// The purpose of trying a candidate. Later purposes are optional.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// The usual way.
    Usual,
    /// It may be faster.
    Faster,
    /// It may need fewer bytes, for more time.
    Smaller,
}

impl Purpose {
    /// The purposes that these options need.
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
    /// How that variant differs from the usual way.
    pub(crate) description: &'static str,
    pub(crate) guess: FirstGuess,
    /// The pass that fuses; `None` if nothing is fused.
    pub(crate) fusion: Option<&'static str>,
    pub(crate) setting: SettingId,
    /// The price of the fully planned program.
    pub(crate) price: Option<Price>,
}

/// A point that every candidate reaches, after the first stages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Until {
    /// A program without an order.
    LaidOut,
    /// A program in the order of the first guess.
    Ordered,
    /// A program that keeps fewer values.
    Recomputed,
    /// A program of kernels.
    Fused,
    /// A program that can be planned.
    Legal,
}

impl Until {
    /// The number of steps to this point.
    pub(crate) fn n_steps(self, stages: &Stages) -> usize {
        // One more step represents the input program.
        1 + stages.front.len() + self as usize
    }
}

/// Every candidate: under each first guess the usual way, then as many variants of it as the effort allows for a
/// program of this size; each with every way to fuse.
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

/// Each way to fuse, possibly including no fusion.
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
    let as_it_came = Pipeline::new("before", "the input program", []);
    let front = [as_it_came].into_iter().chain(stages.front.iter().cloned()).map(Step::Stage);
    let back = [
        Step::Order(guess),
        Step::Stage(stages.recompute.clone()),
        Step::Fuse(fuse),
        Step::Stage(stages.legalize.clone()),
    ];
    front.chain(back).collect()
}
