//! Features that make a module a useful test.

use memplan_ir::{Module, Opcode};

/// How often a module has what memory planning is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Features {
    pub loops: usize,
    pub conditionals: usize,
    pub calls: usize,
    pub in_place_updates: usize,
    pub asynchronous: usize,
    pub tuples: usize,
    pub aliases: usize,
    pub donors: usize,
}

impl Features {
    /// Whether there is control flow, sharing of memory, or something in flight.
    pub fn is_interesting(&self) -> bool {
        let Features { loops, conditionals, in_place_updates, asynchronous, aliases, donors, .. } = *self;
        loops + conditionals + in_place_updates + asynchronous + aliases + donors > 0
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Features) -> Features {
        Features {
            loops: self.loops + other.loops,
            conditionals: self.conditionals + other.conditionals,
            calls: self.calls + other.calls,
            in_place_updates: self.in_place_updates + other.in_place_updates,
            asynchronous: self.asynchronous + other.asynchronous,
            tuples: self.tuples + other.tuples,
            aliases: self.aliases + other.aliases,
            donors: self.donors + other.donors,
        }
    }
}

/// Counts the features of a module.
pub fn features(module: &Module) -> Features {
    let mut features = Features {
        aliases: module.config.input_output_alias.len(),
        donors: module.config.buffer_donors.len(),
        ..Features::default()
    };
    for &id in module.computations.values().flat_map(|c| &c.instructions) {
        let count = match module.instructions[id].opcode() {
            Opcode::While => &mut features.loops,
            Opcode::Conditional => &mut features.conditionals,
            Opcode::Call => &mut features.calls,
            Opcode::DynamicUpdateSlice | Opcode::Scatter => &mut features.in_place_updates,
            Opcode::CopyStart | Opcode::AsyncStart => &mut features.asynchronous,
            Opcode::Tuple => &mut features.tuples,
            _ => continue,
        };
        *count += 1;
    }
    features
}
