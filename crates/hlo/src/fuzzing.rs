//! The properties that fuzzing checks in this crate; tests check them with fewer inputs.

#[cfg(feature = "proto")]
use crate::proto;
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

/// Reads arbitrary bytes as a protobuf module. Either they are one, and writing and reading it again gives the same
/// bytes, or there is an error. The module is verified, which must not panic either; a valid module is printed.
///
/// # Panics
/// When that is not so.
#[cfg(feature = "proto")]
pub fn check_proto(bytes: &[u8]) {
    let imported = match proto::read(bytes) {
        Ok(imported) => imported,
        Err(error) => return assert_ne!(error.to_string(), ""),
    };
    let is_valid = memplan_ir::verify(&imported.module).is_ok();
    let Ok(once) = proto::write_module(&imported.module) else {
        assert!(!is_valid, "a valid module can be written");
        return;
    };
    if is_valid {
        let again = proto::read(&once).expect("what is written for a valid module reads back");
        assert_eq!(Ok(once), proto::write_module(&again.module), "writing is a fixed point");
        print(&again.module);
    }
}
