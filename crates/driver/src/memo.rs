//! A memo from settings to the programs that they produce.
//!
//! A setting is a list of steps, each with the strengths of its options. Settings share a common prefix of steps:
//!
//! ```text
//!   as it came ── simplify ──┬── recompute rows ── lay out ──┬── recompute ── fuse
//!                            │                               └── recompute, no products ── fuse
//!                            └── recompute rows, price 2 ── lay out ── recompute, price 2 ── fuse
//! ```
//!
//! The memo takes a step when a setting first needs it, and only once for all settings with an equal program and an
//! equal next step. So settings that arrive at equal programs share all later steps, whatever their earlier steps. The
//! memo drops a program as soon as no setting needs it any more.

use std::sync::Arc;

use crate::parallel;

/// The number of a setting in a [`Memo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SettingId(usize);

/// Settings, each with its program `P` after the steps `S` taken so far, and with the result `D` of each step.
pub struct Memo<S, P, D> {
    settings: Vec<Setting<S, P, D>>,
}

struct Setting<S, P, D> {
    steps: Vec<S>,
    done: Vec<Arc<D>>,
    /// `None` after [`Memo::forget`].
    program: Option<Arc<P>>,
}

impl<S, P, D> Memo<S, P, D> {
    /// A memo with only the setting without steps.
    pub fn new(program: Arc<P>) -> (Memo<S, P, D>, SettingId) {
        let first = Setting { steps: Vec::new(), done: Vec::new(), program: Some(program) };
        (Memo { settings: vec![first] }, SettingId(0))
    }

    /// A setting that starts with the steps taken by another, followed by other steps. Takes no step, but keeps the
    /// program to continue from.
    ///
    /// # Panics
    /// The other setting is forgotten.
    pub fn branch(&mut self, from: SettingId, steps: impl IntoIterator<Item = S>) -> SettingId
    where
        S: Clone,
    {
        let from = &self.settings[from.0];
        let program = Some(from.program.clone().expect("the setting is not forgotten"));
        let taken = from.steps[..from.done.len()].iter().cloned();
        let setting = Setting { steps: taken.chain(steps).collect(), done: from.done.clone(), program };
        self.settings.push(setting);
        SettingId(self.settings.len() - 1)
    }

    /// The program of a setting after the steps taken so far.
    ///
    /// # Panics
    /// The setting is forgotten.
    pub fn program(&self, setting: SettingId) -> &Arc<P> {
        self.settings[setting.0].program.as_ref().expect("the setting is not forgotten")
    }

    /// The result of each step of a setting taken so far.
    pub fn done(&self, setting: SettingId) -> &[Arc<D>] {
        &self.settings[setting.0].done
    }

    /// Drops the program of a setting that is not needed any more.
    pub fn forget(&mut self, setting: SettingId) {
        self.settings[setting.0].program = None;
    }

    /// Takes the first `n` steps of some settings, by a function from a program and a step to the next program and a
    /// result. Takes time linear in the programs for each step, plus the time of the function.
    ///
    /// # Errors
    /// The first error of the function; the memo is unusable after it.
    pub fn reach<E: Send>(
        &mut self,
        asked: &[SettingId],
        n_steps: usize,
        threads: usize,
        take: impl Fn(Arc<P>, &S) -> Result<(P, D), E> + Sync,
    ) -> Result<(), E>
    where
        S: PartialEq + Sync,
        P: PartialEq + Send + Sync,
        D: Send,
    {
        loop {
            let groups = self.next(asked, n_steps);
            if groups.is_empty() {
                return Ok(());
            }
            // If all settings leave a program, the step owns it and may change it in place.
            let leave = |group: &Vec<usize>| {
                let programs = group.iter().map(|&i| self.settings[i].program.take());
                programs.last().flatten().expect("a setting that is asked for is not forgotten")
            };
            let programs: Vec<Arc<P>> = groups.iter().map(leave).collect();
            let steps = groups.iter().map(|group| self.settings[group[0]].next().expect("it takes a step"));
            let made = parallel::map(threads, programs.into_iter().zip(steps).collect(), |(p, s)| take(p, s));
            for (group, made) in groups.iter().zip(made) {
                let (program, done) = made?;
                let (program, done) = (self.known(program), Arc::new(done));
                for &i in group {
                    self.settings[i].program = Some(program.clone());
                    self.settings[i].done.push(done.clone());
                }
            }
        }
    }

    /// Groups the settings by their next steps: one group for each step to take.
    fn next(&self, asked: &[SettingId], n_steps: usize) -> Vec<Vec<usize>>
    where
        S: PartialEq,
    {
        let is_same = |a: usize, b: usize| {
            let (a, b) = (&self.settings[a], &self.settings[b]);
            let is_there = a.program.iter().zip(&b.program).any(|(a, b)| Arc::ptr_eq(a, b));
            is_there && a.next().is_some() && a.next() == b.next()
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &SettingId(i) in asked {
            let setting = &self.settings[i];
            let goes_on = setting.done.len() < n_steps && setting.next().is_some();
            if goes_on && !groups.iter().any(|group| is_same(group[0], i)) {
                groups.push(vec![i]);
            }
        }
        for i in 0..self.settings.len() {
            let group = groups.iter_mut().find(|group| is_same(group[0], i));
            group.into_iter().filter(|group| group[0] != i).for_each(|group| group.push(i));
        }
        groups
    }

    /// A program, or the equal one of some setting.
    fn known(&self, program: P) -> Arc<P>
    where
        P: PartialEq,
    {
        let mut programs: Vec<&Arc<P>> = self.settings.iter().flat_map(|setting| &setting.program).collect();
        programs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let known = programs.into_iter().find(|known| ***known == program).cloned();
        known.unwrap_or_else(|| Arc::new(program))
    }
}

impl<S, P, D> Setting<S, P, D> {
    /// The next step to take.
    fn next(&self) -> Option<&S> {
        self.steps.get(self.done.len())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Here, programs are numbers, and steps are added to them.
    fn reach(memo: &mut Memo<i32, i32, i32>, asked: &[SettingId], n_steps: usize) -> usize {
        let n_taken = AtomicUsize::new(0);
        let take = |program: Arc<i32>, step: &i32| match *step {
            13 => Err("bad luck"),
            step => {
                n_taken.fetch_add(1, Ordering::Relaxed);
                Ok((*program + step, step))
            }
        };
        memo.reach(asked, n_steps, 2, take).unwrap();
        n_taken.into_inner()
    }

    #[test]
    fn what_settings_have_in_common_is_done_once_and_only_when_asked_for() {
        let (mut memo, first) = Memo::new(Arc::new(0));
        let settings = [[1, 2, 3], [1, 2, 4], [1, 5, 3], [6, 5, 3]].map(|steps| memo.branch(first, steps));
        assert_eq!(reach(&mut memo, &settings[..2], 3), 4);
        assert_eq!(settings.map(|setting| **memo.program(setting)), [6, 7, 1, 0]);
        assert_eq!(memo.done(settings[1]).iter().map(|step| **step).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(reach(&mut memo, &settings, 3), 5);
        assert_eq!(reach(&mut memo, &settings, 3), 0);
        assert_eq!(settings.map(|setting| **memo.program(setting)), [6, 7, 9, 14]);
    }

    #[test]
    fn equal_programs_are_one_from_there_on() {
        let (mut memo, first) = Memo::new(Arc::new(0));
        let settings = [[1, 2, 7], [2, 1, 7], [0, 3, 7]].map(|steps| memo.branch(first, steps));
        assert_eq!(reach(&mut memo, &settings, 3), 3 + 3 + 1);
        assert!(
            settings.iter().all(|&setting| Arc::ptr_eq(memo.program(setting), memo.program(settings[0])))
        );
        assert_eq!(memo.done(settings[2]).iter().map(|step| **step).collect::<Vec<_>>(), [0, 3, 7]);
    }

    #[test]
    fn programs_that_no_setting_is_at_are_dropped() {
        let (mut memo, first) = Memo::new(Arc::new(0));
        let [a, b] = [[1, 2], [1, 3]].map(|steps| memo.branch(first, steps));
        let start = Arc::downgrade(memo.program(first));
        memo.forget(first);
        reach(&mut memo, &[a], 1);
        assert!(start.upgrade().is_none());
        let both = Arc::downgrade(memo.program(b));
        reach(&mut memo, &[a], 2);
        assert!(both.upgrade().is_some());
        memo.forget(b);
        assert!(both.upgrade().is_none());
        assert_eq!(**memo.program(a), 3);
        let further = memo.branch(a, [4]);
        reach(&mut memo, &[further], 3);
        assert_eq!((**memo.program(further), memo.done(further).len()), (7, 3));
    }
}
