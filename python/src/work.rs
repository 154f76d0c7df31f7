//! Work that may take long: without the interpreter's lock, on a thread of its own, so that Ctrl-C is heard.

use std::sync::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::errors::Error;

/// How often to look for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);

/// Work that takes less than this shows nothing.
const SILENT: Duration = Duration::from_secs(1);

/// As much stack as a program's main thread has.
const STACK: usize = 8 << 20;

/// Does work and gives its result. On Ctrl-C the caller gets `KeyboardInterrupt` at once; the work itself, which changes
/// nothing that anyone sees, ends by itself.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    what: &str,
    job: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    let (send, receive) = channel();
    let start = Instant::now();
    let work = move || {
        // Nobody listens any more after Ctrl-C.
        let _ = send.send(job());
    };
    thread::Builder::new().name(format!("memplan {what}")).stack_size(STACK).spawn(work)?;
    let receive = Mutex::new(receive);
    let wait = || receive.lock().expect("nobody panics while waiting").recv_timeout(TICK);
    let mut progress = None;
    let result = loop {
        match py.detach(wait) {
            Ok(result) => break Ok(result),
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Error::new_err("memplan panicked, which is a bug in memplan"));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(interrupt) = py.check_signals() {
            break Err(interrupt);
        }
        if progress.is_none() && start.elapsed() > SILENT {
            progress = Some(py.import("memplan._progress")?.call_method1("Progress", (what,))?);
        }
        if let Some(progress) = &progress {
            progress.call_method1("tick", (start.elapsed().as_secs_f64(),))?;
        }
    };
    if let Some(progress) = progress {
        progress.call_method0("done")?;
    }
    result
}
