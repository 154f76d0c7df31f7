//! Progress on a terminal; prints nothing if standard error is piped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use memplan::driver::Watch;

/// Whether the user wants no progress.
static QUIET: AtomicBool = AtomicBool::new(false);

pub(crate) fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

/// A spinner with a message and the time since it started. The caller clears it.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_prefix(what);
    if QUIET.load(Ordering::Relaxed) {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar.set_style(
        ProgressStyle::with_template("{spinner} {prefix} {elapsed} {msg}")
            .expect("the template is well-formed"),
    );
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Shows the last completed stage of `compile`, and its bytes.
pub(crate) fn stages(bar: &ProgressBar) -> Watch {
    let bar = bar.clone();
    Watch::new(move |stage| {
        let total = stage.total.map_or_else(String::new, |total| format!(": {total}"));
        bar.set_message(format!("{}{total}", stage.name));
    })
}
