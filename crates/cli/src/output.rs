//! Writing results: to standard output, or to files that are whole or not there.

use std::io::Write;
use std::path::Path;

use crate::failure::Failure;

/// Writes a result to a file, or to standard output without one.
pub(crate) fn write_result(path: Option<&str>, contents: &str) -> Result<(), Failure> {
    match path {
        None | Some("-") => {
            let mut out = std::io::stdout().lock();
            match out.write_all(contents.as_bytes()).and_then(|()| out.flush()) {
                // Whoever reads the pipe may stop early.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    Err(Failure::Input(format!("error: cannot write the result: {error}")))
                }
                _ => Ok(()),
            }
        }
        Some(path) => write_file(Path::new(path), contents.as_bytes()),
    }
}

/// Writes a file under a temporary name beside it and renames it, so that it is never half there.
pub(crate) fn write_file(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::Input(format!("error: cannot write `{}`: {error}", path.display()));
    // Devices and pipes cannot be renamed over.
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return std::fs::write(path, contents).map_err(failed);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    // Temporary files are private; a result is as readable as any other file the user makes.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(failed)?;
    file.write_all(contents).map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// Says something on standard error. Whoever reads it may have gone away, which is not our failure.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", text.trim_end());
}
