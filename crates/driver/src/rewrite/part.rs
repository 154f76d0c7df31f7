//! Forms of a rewrite that are done in part, as far as a limit of bytes or time asks for it.

use memplan_ir::Module;
use memplan_passes as passes;

use super::{Attempt, Candidate, Rewrite, RewriteError, Search, choice, smallest};
use crate::Estimated;

/// All of a form, in the units of [`Rewrite::parts`].
pub(super) const WHOLE: u32 = passes::OffloadRows::WHOLE;

/// The most parts of a form that are tried.
const MOST_FITTED: usize = 4;

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
                let part = |n| self.candidates(attempt, rewrite, &[(form, &part(&situation, form, n))], 1);
                found.extend(self.fitted(before, attempt, whole, part)?);
            }
        }
        Ok(found)
    }

    /// The forms that are done in part: of those tried on a program, that of fewest bytes, and that which saves most bytes for
    /// its time, if a part of it may be as much as a limit allows or asks for. With the price of each.
    fn divided(
        &self,
        before: &Estimated,
        attempt: &Attempt,
        priced: &[(usize, Candidate, Estimated)],
        from: usize,
    ) -> Vec<(usize, Estimated)> {
        let now = &attempt.estimated;
        let exceeds = |of: &Estimated| choice::excess(before, now, of, self.options) > 0.0;
        let saved_for_time = |after: &Estimated| {
            let saved = now.price.total.0 as f64 - after.price.total.0 as f64;
            saved / (after.price.seconds - now.price.seconds).max(f64::MIN_POSITIVE)
        };
        let of_program = priced.iter().filter(|(of, _, after)| *of == from && exceeds(after) != exceeds(now));
        let cheapest = of_program.max_by(|(.., a), (.., b)| saved_for_time(a).total_cmp(&saved_for_time(b)));
        let forms = smallest(priced, from).into_iter().chain(cheapest);
        let mut forms: Vec<(usize, Estimated)> =
            forms.map(|(_, candidate, estimated)| (candidate.form, *estimated)).collect();
        forms.dedup_by_key(|(form, _)| *form);
        forms
    }

    /// Some parts of a form of a rewrite, around the one that just keeps a limit: between one that keeps it and one that does
    /// not, where bytes and time would reach it if they grew evenly.
    fn fitted(
        &self,
        before: &Estimated,
        attempt: &Attempt,
        whole: Estimated,
        part: impl Fn(u32) -> Result<Vec<Candidate>, RewriteError>,
    ) -> Result<Vec<(Candidate, Estimated)>, RewriteError> {
        let now = attempt.estimated;
        let excess = |of: &Estimated| choice::excess(before, &now, of, self.options);
        let mut ends = [(0, now), (WHOLE, whole)];
        let (mut fitted, mut is_even, mut moved) = (Vec::new(), true, None);
        while fitted.len() < MOST_FITTED {
            let [(few, with_few), (many, with_many)] = ends;
            let [of_few, of_many] = [excess(&with_few), excess(&with_many)];
            if (of_few > 0.0) == (of_many > 0.0) || many - few < 2 {
                break;
            }
            let share = if is_even { of_few / (of_few - of_many) } else { 0.5 };
            let n = few + (f64::from(many - few) * share) as u32 + u32::from(of_few > 0.0);
            let n = n.clamp(few + 1, many - 1);
            let Some(candidate) = part(n)?.pop() else { break };
            let estimated = self.price(Module::clone(&candidate.module))?;
            fitted.push((candidate, estimated));
            let of_part = excess(&estimated);
            if (-CLOSE..=0.0).contains(&of_part) {
                break;
            }
            let end = usize::from((of_part > 0.0) == (of_many > 0.0));
            // Bytes and time grow in steps, and not evenly: where only one end moves, or a part has all that the one at its end has,
            // the next one is halfway.
            is_even = estimated.price != ends[end].1.price && moved != Some(end);
            moved = Some(end);
            ends[end] = (n, estimated);
        }
        Ok(fitted)
    }
}

/// A part that keeps a limit by no more than this share is as good as any.
const CLOSE: f64 = 0.005;
