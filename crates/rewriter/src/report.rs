//! Reports of passes: their decisions, as data.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// The decisions of one run of a pass, in a type of the pass's own. Instructions and computations are named as they were
/// when the pass had run.
///
/// ```
/// use memplan_rewriter::Report;
///
/// #[derive(Debug, PartialEq)]
/// struct Merged { pairs: usize }
///
/// let report = Report::new(Merged { pairs: 3 });
/// // Whoever knows the type reads it; everybody else hands it on.
/// assert_eq!(report.downcast_ref::<Merged>(), Some(&Merged { pairs: 3 }));
/// assert!(report.downcast_ref::<String>().is_none());
/// assert_eq!(report, report.clone());
/// ```
#[derive(Clone)]
pub struct Report(Arc<dyn Decisions>);

impl Report {
    /// A report of these decisions.
    pub fn new(decisions: impl Any + fmt::Debug + PartialEq + Send + Sync) -> Report {
        Report(Arc::new(decisions))
    }

    /// The decisions, if they are of this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let decisions: &dyn Any = &*self.0;
        decisions.downcast_ref()
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialEq for Report {
    fn eq(&self, other: &Report) -> bool {
        self.0.equals(&*other.0)
    }
}

/// The operations on decisions of any type.
trait Decisions: Any + fmt::Debug + Send + Sync {
    fn equals(&self, other: &dyn Any) -> bool;
}

impl<T: Any + fmt::Debug + PartialEq + Send + Sync> Decisions for T {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref() == Some(self)
    }
}
