//! Names that nothing else has.

use rustc_hash::FxHashSet;

use crate::Module;

/// Names that are taken, and fresh ones beside them. Making one takes constant time, as long as numbers behind names
/// are not used up on purpose.
#[derive(Clone, Debug, Default)]
pub struct Names {
    taken: FxHashSet<Box<str>>,
    next: u32,
}

impl Names {
    /// Every name of an instruction or a computation of a module is taken. Linear in the module.
    pub fn new(module: &Module) -> Names {
        let computations = module.computations.values();
        let instructions = computations.clone().flat_map(|computation| &computation.instructions);
        let taken = computations
            .map(|computation| computation.name.clone())
            .chain(instructions.map(|&id| module.instructions[id].name.clone()))
            .collect();
        Names { taken, next: 0 }
    }

    /// Takes `stem.n`, with a number beyond those that were given before.
    pub fn fresh(&mut self, stem: &str) -> Box<str> {
        loop {
            self.next += 1;
            let name = format!("{stem}.{}", self.next).into_boxed_str();
            if self.taken.insert(name.clone()) {
                return name;
            }
        }
    }

    /// Takes `name`, or `name.n` where that is taken.
    pub fn unique(&mut self, name: &str) -> Box<str> {
        let mut unique: Box<str> = name.into();
        let mut n = self.taken.len();
        while !self.taken.insert(unique.clone()) {
            unique = format!("{name}.{n}").into();
            n += 1;
        }
        unique
    }

    /// Takes a name, and says whether it was free.
    pub fn take(&mut self, name: &str) -> bool {
        self.taken.insert(name.into())
    }

    /// Makes a name free again.
    pub fn give_back(&mut self, name: &str) {
        self.taken.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_like_fresh_ones_are_passed_over() {
        let mut names = Names::default();
        assert!(names.take("copy.1") && !names.take("copy.1"));
        assert_eq!([names.fresh("copy"), names.fresh("copy")], ["copy.2".into(), "copy.3".into()]);
        assert_eq!([names.unique("a"), names.unique("a")], ["a".into(), "a.4".into()]);
        names.give_back("a");
        assert_eq!(names.unique("a"), "a".into());
    }
}
