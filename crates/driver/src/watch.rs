//! Callbacks for stages while a program is compiled.

use std::fmt;
use std::sync::Arc;

use crate::report::Stage;

/// A callback for each stage of `compile` when it is done, and again when its price is known. Programs that are tried
/// in parallel report their stages in any order, each from its own thread.
///
/// ```
/// use memplan_driver::{CompileOptions, Watch};
///
/// let watch = Watch::new(|stage| eprintln!("{} {:?}", stage.name, stage.total));
/// let options = CompileOptions { watch: Some(watch), ..CompileOptions::default() };
/// ```
#[derive(Clone)]
pub struct Watch(Arc<dyn Fn(&Stage) + Send + Sync>);

impl Watch {
    /// Calls a function for each stage.
    pub fn new(tell: impl Fn(&Stage) + Send + Sync + 'static) -> Watch {
        Watch(Arc::new(tell))
    }

    pub(crate) fn tell(&self, stage: &Stage) {
        (self.0)(stage);
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}
