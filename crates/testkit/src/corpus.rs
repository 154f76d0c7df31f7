//! The test programs: those of the repository, and a larger corpus where present.
//!
//! The larger corpus is beside the checkout, or in the folder named by the environment variable `MEMPLAN_SHARED`. With
//! `CI` set, a test that finds no program fails; otherwise it prints `skipped` and passes.

use std::fs::File;
use std::path::{Path, PathBuf};

/// A real program: JAX's module, and its versions from XLA's compilers for CPU, GPU and TPU.
#[derive(Clone, Debug)]
pub struct CorpusProgram {
    /// The name of its folder.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// Whether it is a program of the repository, all of which are small.
    pub is_ours: bool,
}

/// The forms of a program: from JAX, and from each of XLA's compilers.
pub const FORMS: [&str; 4] = ["before", "cpu", "gpu", "tpu"];

impl CorpusProgram {
    /// The HLO text of one of [`FORMS`].
    pub fn text_path(&self, form: &str) -> PathBuf {
        self.folder.join(form).with_extension("hlo.txt")
    }

    /// The contents of [`text_path`](Self::text_path).
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn text(&self, form: &str) -> String {
        let path = self.text_path(form);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Whether it is small enough for the slower tests: all of the repository are, and others if they are marked.
    pub fn is_small(&self) -> bool {
        self.is_ours || self.name.contains("tiny")
    }
}

/// All programs, the repository's first, each part by name.
///
/// # Panics
/// When there is none and `CI` is set.
pub fn corpus() -> Vec<CorpusProgram> {
    let (ours, shared) = (folders(Some(repository("tests/corpus"))), folders(shared("corpus")));
    let program = |folder: PathBuf, is_ours| CorpusProgram { name: folder_name(&folder), folder, is_ours };
    let ours = ours.into_iter().map(|folder| program(folder, true));
    found(ours.chain(shared.into_iter().map(|folder| program(folder, false))).collect(), "program")
}

/// A program with inputs and the outputs that JAX computed of them, on a CPU.
#[derive(Clone, Debug)]
pub struct NumericsCase {
    /// The name of its folder.
    pub name: String,
    /// The module's text, whose parameters are `p0`, `p1`, ... of the inputs; its results are `o0`, `o1`, ... of the outputs.
    pub text: String,
    folder: PathBuf,
}

impl NumericsCase {
    /// An npz archive.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn inputs(&self) -> File {
        self.open("inputs.npz")
    }

    /// An npz archive.
    ///
    /// # Panics
    /// When it cannot be read.
    pub fn outputs(&self) -> File {
        self.open("outputs.npz")
    }

    fn open(&self, name: &str) -> File {
        File::open(self.folder.join(name)).unwrap_or_else(|error| panic!("{} {name}: {error}", self.name))
    }
}

/// All programs with numbers, the repository's first, each part by name.
///
/// # Panics
/// When there is none and `CI` is set, and when a module cannot be read.
pub fn numerics() -> Vec<NumericsCase> {
    let case = |folder: PathBuf, module: &str| {
        let text = std::fs::read_to_string(folder.join(module));
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        NumericsCase { name: folder_name(&folder), text, folder }
    };
    let mut ours = folders(Some(repository("tests/corpus")));
    ours.retain(|folder| folder.join("inputs.npz").is_file());
    let ours = ours.into_iter().map(|folder| case(folder, "before.hlo.txt"));
    let shared = folders(shared("numerics")).into_iter();
    found(ours.chain(shared.map(|folder| case(folder, "module.hlo.txt"))).collect(), "program with numbers")
}

/// A file or folder beside the larger corpus, where it is there: what tests read beside something of the repository.
pub fn shared(path: &str) -> Option<PathBuf> {
    let beside = || repository("../shared");
    let path = std::env::var_os("MEMPLAN_SHARED").map_or_else(beside, PathBuf::from).join(path);
    path.exists().then_some(path)
}

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn folders(of: Option<PathBuf>) -> Vec<PathBuf> {
    let entries = of.into_iter().flat_map(|path| path.read_dir()).flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

fn folder_name(folder: &Path) -> String {
    folder.file_name().expect("a folder that was listed has a name").to_string_lossy().into_owned()
}

/// A test of nothing must not pass if nobody reads its output.
fn found<T>(found: Vec<T>, what: &str) -> Vec<T> {
    if found.is_empty() {
        assert!(std::env::var_os("CI").is_none(), "there is no {what}, and CI is set");
        eprintln!("skipped: no {what}");
    }
    found
}
