//! What was found out already: many levers, and sets of them, come to the same module.

use std::hash::Hash;
use std::sync::{Arc, Mutex};

use memplan_ir::{Module, ProgramShape, fingerprint};
use rustc_hash::FxHashMap;

/// What tells the modules apart that levers make of one: all but notes, which levers leave as they are, and with the
/// memories that arguments and results are in.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ModuleKey {
    fingerprint: u64,
    interface: Option<ProgramShape>,
}

impl ModuleKey {
    pub(super) fn new(module: &Module) -> ModuleKey {
        ModuleKey {
            fingerprint: fingerprint(module),
            interface: module.config.entry_computation_layout.clone(),
        }
    }
}

/// Results by what they are of, each found once: who asks for one that another thread is about to find waits for it.
pub(super) struct Known<K, T>(Mutex<FxHashMap<K, Slot<T>>>);

type Slot<T> = Arc<Mutex<Option<T>>>;

impl<K, T> Default for Known<K, T> {
    fn default() -> Self {
        Known(Mutex::default())
    }
}

impl<K: Hash + Eq, T: Clone> Known<K, T> {
    /// The result, found now where it is not known. Errors are not kept.
    pub(super) fn of<E>(&self, key: K, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        const WHOLE: &str = "nobody panics with a lock held";
        let slot = self.0.lock().expect(WHOLE).entry(key).or_default().clone();
        let mut known = slot.lock().expect(WHOLE);
        match &*known {
            Some(result) => Ok(result.clone()),
            None => Ok(known.insert(find()?).clone()),
        }
    }
}
