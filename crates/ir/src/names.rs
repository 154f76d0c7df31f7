//! Unique names.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashSet};

use crate::Module;

/// Names that are taken, and fresh ones beside them. Making one takes constant time, as long as numbers behind names
/// are not used up on purpose.
#[derive(Clone, Debug)]
pub struct Names {
    /// Hashes of the names: a name with the hash of another counts as taken, so names stay unique.
    taken: FxHashSet<u64>,
    /// The number of the next fresh name.
    next: u64,
}

/// Nothing is taken.
impl Default for Names {
    fn default() -> Names {
        Names { taken: FxHashSet::default(), next: 1 }
    }
}

impl Names {
    /// Every name of an instruction or a computation of a module is taken. Linear in the module.
    pub fn new(module: &Module) -> Names {
        let computations = module.computations.values();
        let instructions = computations.clone().flat_map(|computation| &computation.instructions);
        let mut names = Names::default();
        names.taken.reserve(module.computations.len() + module.instructions.len());
        names.taken.extend(computations.map(|computation| hash(&computation.name)));
        names.taken.extend(instructions.map(|&id| hash(&module.instructions[id].name)));
        names
    }

    /// For a module of which only [`Names::fresh`] names more: the numbers that it puts behind stems are larger than those
    /// behind any name of the module. Linear in the module; takes no memory.
    pub fn beyond(module: &Module) -> Names {
        let instructions = module.instructions.values().map(|instruction| &instruction.name);
        let names = instructions.chain(module.computations.values().map(|computation| &computation.name));
        let numbers = names.filter_map(|name| {
            let n_digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
            let (stem, number) = name.split_at(name.len() - n_digits);
            // Counting up never gets to a longer one.
            if !stem.ends_with('.') || n_digits > 18 { None } else { number.parse::<u64>().ok() }
        });
        Names { taken: FxHashSet::default(), next: numbers.max().map_or(0, |largest| largest + 1) }
    }

    /// Returns `stem.n`, with a number above all earlier ones.
    pub fn fresh(&mut self, stem: &str) -> Box<str> {
        loop {
            let name = format!("{stem}.{}", self.next).into_boxed_str();
            self.next += 1;
            if self.take(&name) {
                return name;
            }
        }
    }

    /// Takes `name`, or `name.n` where that is taken.
    pub fn unique(&mut self, name: &str) -> Box<str> {
        let mut unique: Box<str> = name.into();
        let mut n = self.taken.len();
        while !self.take(&unique) {
            unique = format!("{name}.{n}").into();
            n += 1;
        }
        unique
    }

    /// Takes a name, and says whether it was free.
    pub fn take(&mut self, name: &str) -> bool {
        self.taken.insert(hash(name))
    }

    /// Makes a name free again.
    pub fn give_back(&mut self, name: &str) {
        self.taken.remove(&hash(name));
    }
}

fn hash(name: &str) -> u64 {
    FxBuildHasher.hash_one(name)
}
