//! Forms of a rewrite that are done in part, as far as a limit of bytes or time asks for it.

use memplan_ir::Module;
use memplan_passes as passes;

use super::{Attempt, Candidate, Rewrite, RewriteError, Search, choice, smallest};
use crate::Estimated;

/// All of a form, in the units of [`Rewrite::parts`].
pub(super) const WHOLE: u32 = passes::OffloadRows::WHOLE;

/// How often a part of a form is corrected.
const MOST_FITTED: usize = 3;

impl Search<'_> {
    /// Parts of the forms of a rewrite that were tried on a program, such that they fit the limits.
    pub(super) fn in_part(
        &self,
        before: &Estimated,
        attempt: &Attempt,
        rewrite: &Rewrite,
        priced: &[(usize, Candidate, Estimated)],
        from: usize,
    ) -> Result<Vec<(Candidate, Estimated)>, RewriteError> {
        let situation = self.situation();
        let mut found = Vec::new();
        for (form, whole) in self.divided(before, attempt, priced, from) {
            for part in &rewrite.parts {
                let part = |n| self.candidates(attempt, rewrite, &[part(&situation, form, n)], 1);
                found.extend(self.fitted(before, attempt, whole, part)?);
            }
        }
        Ok(found)
    }

    /// The forms that are done in part: of those tried on a program, that of fewest bytes, and that which saves most bytes for
    /// its time, if a part of it could fit. With the price of each.
    fn divided(
        &self,
        before: &Estimated,
        attempt: &Attempt,
        priced: &[(usize, Candidate, Estimated)],
        from: usize,
    ) -> Vec<(usize, Estimated)> {
        let now = &attempt.estimated;
        let part = |after: &Estimated| choice::share_that_fits(before, now, after, WHOLE, self.options);
        let saved_for_time = |after: &Estimated| {
            let saved = now.price.total.0 as f64 - after.price.total.0 as f64;
            saved / (after.price.seconds - now.price.seconds).max(f64::MIN_POSITIVE)
        };
        let of_program =
            priced.iter().filter(|(of, _, after)| *of == from && part(after).is_some_and(is_part));
        let cheapest = of_program.max_by(|(.., a), (.., b)| saved_for_time(a).total_cmp(&saved_for_time(b)));
        let forms = smallest(priced, from).into_iter().chain(cheapest);
        let mut forms: Vec<(usize, Estimated)> =
            forms.map(|(_, candidate, estimated)| (candidate.form, *estimated)).collect();
        forms.dedup_by_key(|(form, _)| *form);
        forms
    }

    /// Some parts of a form of a rewrite: as much of it as a limit of bytes asks for, or a limit of time allows, if cost and
    /// savings grow evenly; each part corrects the one before it.
    fn fitted(
        &self,
        before: &Estimated,
        attempt: &Attempt,
        whole: Estimated,
        part: impl Fn(u32) -> Result<Vec<Candidate>, RewriteError>,
    ) -> Result<Vec<(Candidate, Estimated)>, RewriteError> {
        let mut fitted = Vec::new();
        let mut tried = (WHOLE, whole);
        for _ in 0..MOST_FITTED {
            let (n, estimated) = tried;
            let share = choice::share_that_fits(before, &attempt.estimated, &estimated, n, self.options);
            let Some(n) = share.filter(|&next| next != n && is_part(next)) else { break };
            let Some(candidate) = part(n)?.pop() else { break };
            let estimated = self.price(Module::clone(&candidate.module))?;
            fitted.push((candidate, estimated));
            tried = (n, estimated);
        }
        Ok(fitted)
    }
}

/// Whether so many parts are some, but not all.
fn is_part(n: u32) -> bool {
    (1..WHOLE).contains(&n)
}
