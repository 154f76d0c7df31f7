//! Functions of the embedder for custom calls.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use memplan_ir::{CustomCall, Literal};

/// From what a custom call says of itself and the values of its operands to its result, or why there is none.
type Function = dyn Fn(&CustomCall, &[Literal]) -> Result<Literal, String> + Send + Sync;

/// The meanings of custom calls, by target. The calls that JAX emits for pure mathematics need no entry; an entry
/// overrides a built-in meaning.
///
/// A function works on literals, outside the memory of a plan: it manages memory besides operands and result itself.
#[derive(Clone, Default)]
pub struct CustomCalls(BTreeMap<Box<str>, Arc<Function>>);

impl CustomCalls {
    /// Adds a function, or replaces the one the target had. Its result must have the shape of the call. It is called
    /// once per execution, and must be pure for [`run_in_arena`](crate::run_in_arena) to be comparable with
    /// [`evaluate`](crate::evaluate).
    pub fn register(
        &mut self,
        target: &str,
        function: impl Fn(&CustomCall, &[Literal]) -> Result<Literal, String> + Send + Sync + 'static,
    ) {
        self.0.insert(target.into(), Arc::new(function));
    }

    pub(crate) fn find(&self, target: &str) -> Option<Arc<Function>> {
        self.0.get(target).cloned()
    }
}

impl fmt::Debug for CustomCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}
