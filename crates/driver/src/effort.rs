//! How long `compile` searches.

use memplan_passes::OneIn;

use crate::compile::CompileOptions;
use crate::first_guess::FirstGuess;

/// How long to search. Answers are those of the effort on every machine, since it counts steps and not time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::Display, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Effort {
    /// One order, one way, a short search.
    Quick,
    /// As long as people wait.
    #[default]
    Default,
    /// Every variant is planned in full, and searches are longer.
    Thorough,
}

impl Effort {
    /// Every effort.
    pub const ALL: [Effort; 3] = [Effort::Quick, Effort::Default, Effort::Thorough];

    /// The numbers of it in options that are otherwise the same.
    #[must_use]
    pub fn of(self, options: CompileOptions) -> CompileOptions {
        let mut options = options;
        match self {
            Effort::Quick => {
                options.guesses = vec![FirstGuess::OnePass];
                options.schedule.budget = OneIn(16).of(options.schedule.budget);
                options.max_varied = 0;
            }
            Effort::Default => {}
            Effort::Thorough => {
                options.schedule.budget = options.schedule.budget.saturating_mul(8);
                options.max_varied = options.max_varied.saturating_mul(8);
                options.finalists = usize::MAX;
                options.points = usize::MAX;
            }
        }
        options
    }
}
