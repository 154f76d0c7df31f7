//! Writes results to standard output, or to files that are either complete or absent.

use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Writes a result to a file, or to standard output if the path is absent or `-`.
pub(crate) fn write_result(path: Option<&str>, contents: impl AsRef<[u8]>) -> Result<(), Failure> {
    match path {
        None | Some("-") => {
            let mut out = std::io::stdout().lock();
            match out.write_all(contents.as_ref()).and_then(|()| out.flush()) {
                // The reader of a pipe may stop early.
                Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                    Err(Failure::Input(format!("error: cannot write the result: {error}")))
                }
                _ => Ok(()),
            }
        }
        Some(path) => write_file(Path::new(path), contents.as_ref()),
    }
}

/// Writes files into a folder, creating it if needed; each file is either completely written or unchanged.
pub(crate) fn write_folder(folder: &str, files: &[(PathBuf, Vec<u8>)]) -> Result<(), Failure> {
    if folder == "-" {
        return Err(Failure::Usage("a folder cannot be written to standard output".into()));
    }
    for (name, contents) in files {
        let path = Path::new(folder).join(name);
        let parent = self::folder(&path);
        std::fs::create_dir_all(parent).map_err(|error| {
            Failure::Input(format!("error: cannot make the folder `{}`: {error}", parent.display()))
        })?;
        write_file(&path, contents)?;
    }
    Ok(())
}

/// Rejects two results for one place, where the later would replace the first or follow it.
pub(crate) fn distinct<'p>(paths: impl IntoIterator<Item = Option<&'p str>>) -> Result<(), Failure> {
    let mut seen = HashSet::new();
    for path in paths {
        let path = path.filter(|&path| path != "-");
        if !path.is_none_or(is_file) || seen.insert(path.map(resolve)) {
            continue;
        }
        return Err(Failure::Usage(match path {
            Some(path) => format!("two results would be written to `{path}`"),
            None => {
                "two results would be written to standard output; write one elsewhere with `-o FILE`".into()
            }
        }));
    }
    Ok(())
}

/// Whether a path is, or would be, a regular file: devices and pipes take any number of results.
fn is_file(path: &str) -> bool {
    Path::new(path).metadata().map_or(true, |metadata| metadata.is_file())
}

/// A path without links and detours, whether or not it exists.
fn resolve(path: &str) -> PathBuf {
    let path = Path::new(path);
    let resolved = path.canonicalize().or_else(|_| {
        Ok::<_, std::io::Error>(folder(path).canonicalize()?.join(path.file_name().unwrap_or_default()))
    });
    resolved.unwrap_or_else(|_| path.to_path_buf())
}

/// Writes files that belong together: none of them if one has no room.
pub(crate) fn write_together(files: &[(PathBuf, Vec<u8>)]) -> Result<(), Failure> {
    let (special, regular): (Vec<_>, Vec<_>) = files.iter().partition(|(path, _)| is_special(path));
    let staged: Vec<(tempfile::NamedTempFile, &PathBuf)> = regular
        .into_iter()
        .map(|(path, contents)| Ok((stage(path, contents)?, path)))
        .collect::<Result<_, Failure>>()?;
    special.into_iter().try_for_each(|(path, contents)| write_file(path, contents))?;
    staged.into_iter().try_for_each(|(file, path)| {
        file.persist(path).map(drop).map_err(|error| cannot_write(path, &error.error))
    })
}

/// Whether a path is a device or a pipe, which cannot be replaced by a rename.
fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_file())
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Input(format!("error: cannot write `{}`: {error}", path.display()))
}

/// Writes a file under a temporary name beside it and renames it, so that the file is never incomplete.
fn write_file(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    if is_special(path) {
        return std::fs::write(path, contents).map_err(|error| cannot_write(path, &error));
    }
    stage(path, contents)?.persist(path).map(drop).map_err(|error| cannot_write(path, &error.error))
}

/// The contents of a file under a temporary name beside it.
fn stage(path: &Path, contents: &[u8]) -> Result<tempfile::NamedTempFile, Failure> {
    let failed = |error: std::io::Error| cannot_write(path, &error);
    #[cfg_attr(not(unix), allow(unused_mut, reason = "permissions are set on Unix alone"))]
    let mut builder = tempfile::Builder::new();
    // Temporary files are private; a result should be as readable as the user's other files.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder(path)).map_err(failed)?;
    file.write_all(contents).map_err(failed)?;
    Ok(file)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Prints to standard error. The reader may have closed it, which is not an error of ours.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", text.trim_end());
}
