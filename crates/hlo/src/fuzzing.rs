//! What fuzzing asks of this crate; tests ask the same of fewer inputs.

use crate::{parse, print, render};

/// Reads arbitrary bytes as HLO text. Either they are a module, whose text reads back to the same text, or the error
/// can be shown.
///
/// # Panics
/// When that is not so.
pub fn check_text(bytes: &[u8]) {
    let source = String::from_utf8_lossy(bytes);
    match parse(&source) {
        Ok(module) => {
            let once = print(&module);
            let again = match parse(&once) {
                Ok(module) => print(&module),
                Err(error) => panic!("own text is refused:\n{}", render(&error, "printed", &once)),
            };
            assert_eq!(once, again, "printing is a fixed point");
        }
        Err(error) => {
            assert!(source.get(error.span.clone()).is_some(), "{error:?} lies within the text");
            let shown = render(&error, "input", &source);
            assert!(shown.starts_with("error"), "{shown}");
        }
    }
}
