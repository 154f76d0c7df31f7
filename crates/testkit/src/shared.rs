//! Where the corpus is.

use std::path::PathBuf;

/// A folder of the shared files (`corpus`, `numerics`, ...), which lie beside the checkout or where `MEMPLAN_SHARED`
/// says. `None`, and a line on standard error, where there is none: such a test has nothing to say.
pub fn shared(folder: &str) -> Option<PathBuf> {
    let default = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared"));
    let root = std::env::var_os("MEMPLAN_SHARED").map_or_else(default, PathBuf::from);
    let path = root.join(folder);
    if path.is_dir() {
        return Some(path);
    }
    eprintln!("skipped: no corpus");
    None
}
