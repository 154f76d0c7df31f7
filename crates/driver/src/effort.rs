//! How long `compile` searches.

use memplan_passes::OneIn;

use crate::compile::CompileOptions;
use crate::first_guess::FirstGuess;

/// How long to search. It counts steps and not time, so answers are equal on every machine.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, strum::EnumString, strum::Display, strum::IntoStaticStr,
)]
#[strum(serialize_all = "lowercase")]
pub enum Effort {
    /// One order, one way to fuse, a short search.
    Quick,
    /// As long as a user will wait.
    #[default]
    Default,
    /// Every variant is planned in full, and searches are longer.
    Thorough,
}

impl Effort {
    /// Every effort.
    pub const ALL: [Effort; 3] = [Effort::Quick, Effort::Default, Effort::Thorough];

    /// Sets the numbers of this effort, and leaves the other options.
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
