//! Results that are already known.

use std::sync::{Arc, Mutex};

/// Results by key, each computed once: a thread that asks for a result that another is computing waits for it. There
/// are some dozens, so they need no order.
pub struct Known<K, T>(Mutex<Vec<(K, Slot<T>)>>);

type Slot<T> = Arc<Mutex<Option<T>>>;

impl<K, T> Default for Known<K, T> {
    fn default() -> Self {
        Known(Mutex::default())
    }
}

impl<K: PartialEq, T: Clone> Known<K, T> {
    /// The result, computed now if it is unknown. Errors are not kept.
    ///
    /// # Errors
    /// The error of the computation.
    ///
    /// # Panics
    /// An earlier computation panicked.
    pub fn of<E>(&self, key: K, find: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        const WHOLE: &str = "nobody panics with a lock held";
        let slot = {
            let mut all = self.0.lock().expect(WHOLE);
            let known = all.iter().find(|(known, _)| *known == key).map(|(_, slot)| slot.clone());
            known.unwrap_or_else(|| {
                let slot = Slot::default();
                all.push((key, slot.clone()));
                slot
            })
        };
        let mut known = slot.lock().expect(WHOLE);
        match &*known {
            Some(result) => Ok(result.clone()),
            None => Ok(known.insert(find()?).clone()),
        }
    }
}
