//! The properties that fuzzing checks in this crate; tests check them with fewer inputs.

use memplan_ir::{Module, verify};

use crate::Error;

/// Reads arbitrary bytes as text of StableHLO. Either there is a module, which may be invalid, but if it is valid can be
/// written as HLO and read back; or there is an error within the text.
///
/// # Panics
/// When that is not so.
pub fn check_text(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes);
    match crate::parse(&source) {
        Ok(module) => check_module(&module),
        Err(Error { message, span }) => {
            assert_ne!(message, "");
            let is_within = span.clone().is_none_or(|span| source.get(span).is_some());
            assert!(is_within, "{span:?} lies within the text");
        }
    }
}

/// The same of arbitrary bytes as bytecode, or as an artifact of `jax.export`.
///
/// # Panics
/// When that is not so.
pub fn check_bytecode(bytes: &[u8]) {
    match crate::read(bytes) {
        Ok(module) => check_module(&module),
        Err(error) => assert_ne!(error.message, ""),
    }
}

fn check_module(module: &Module) {
    if verify(module).is_ok() {
        let text = memplan_hlo::print(module);
        if let Err(error) = memplan_hlo::parse(&text) {
            panic!("own text is refused:\n{}", memplan_hlo::render(&error, "printed", &text));
        }
    }
}
