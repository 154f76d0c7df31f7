//! Case files: HLO text with a header that lists what to run, and expectations beside the lines that they describe.
//!
//! ```text
//! // target: toy
//! // passes: dce
//! HloModule two_branches
//! ENTRY main {
//!   p = f32[4] parameter(0)
//!   a = f32[4] negate(p)               // temp +0
//!   b = f32[4] exponential(p)          // temp +16
//!   s = f32[4] add(a, b)               // temp +0, in place of a
//!   ROOT r = (f32[4]) tuple(s)         // {0} temp +0
//! }
//! ```

use std::path::{Path, PathBuf};

/// A case file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixture {
    /// Its path.
    pub path: PathBuf,
    /// Its text.
    pub source: String,
    /// `// target: NAME`.
    pub target: Option<String>,
    /// `// passes: A, B`; empty without.
    pub passes: Vec<String>,
    /// `// error: TEXT`, in the header or at the end of a line: the case must fail with a message that has this in it.
    pub error: Option<String>,
    /// The expectations beside the lines, in order.
    pub expectations: Vec<Expectation>,
    /// The instructions that the text defines, as (computation, instruction).
    pub instructions: Vec<(String, String)>,
}

/// The expected place of a part of a result: `// {1} temp +16`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// Line of the file, from 1.
    pub line: usize,
    /// The computation the line is in.
    pub computation: String,
    /// The instruction defined on the line.
    pub instruction: String,
    /// Path into its result.
    pub index: Vec<u32>,
    /// Kind of the allocation: `temp`, `output`, `argument`, `constant`, or the name of a memory space for its arena.
    pub kind: String,
    /// Bytes from the start of the allocation; 0 where none are given.
    pub offset: u64,
}

/// Why a case file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FixtureError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Fixture {
    /// Reads a case file.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(path: &Path) -> Result<Fixture, FixtureError> {
        let source = std::fs::read_to_string(path)
            .map_err(|source| FixtureError::Read { path: path.to_path_buf(), source })?;
        Ok(Fixture::parse(path, source))
    }

    fn parse(path: &Path, source: String) -> Fixture {
        let header = |key: &str| {
            let prefix = format!("// {key}:");
            source.lines().find_map(|line| Some(line.split_once(&prefix)?.1.trim().to_string()))
        };
        let passes = header("passes").unwrap_or_default();
        let mut fixture = Fixture {
            path: path.to_path_buf(),
            target: header("target"),
            passes: passes.split(',').map(str::trim).filter(|p| !p.is_empty()).map(String::from).collect(),
            error: header("error"),
            expectations: Vec::new(),
            instructions: Vec::new(),
            source: String::new(),
        };
        let mut computation = String::new();
        for (number, line) in source.lines().enumerate() {
            let (code, comment) = line.split_once("//").unwrap_or((line, ""));
            if let Some(name) = opened_computation(code) {
                computation = name.to_string();
            } else if let Some(instruction) = defined_instruction(code) {
                fixture.instructions.push((computation.clone(), instruction.to_string()));
                let parts = comment.split(',').filter_map(|part| placed(part.trim()));
                fixture.expectations.extend(parts.map(|(index, kind, offset)| Expectation {
                    line: number + 1,
                    computation: computation.clone(),
                    instruction: instruction.to_string(),
                    index,
                    kind,
                    offset,
                }));
            }
        }
        Fixture { source, ..fixture }
    }
}

/// `ENTRY main {` or `body {`.
fn opened_computation(code: &str) -> Option<&str> {
    let code = code.trim().strip_suffix('{')?;
    let name = code.trim().trim_start_matches("ENTRY ").split_whitespace().next()?;
    (!code.contains('=') && !code.starts_with("HloModule")).then(|| name.trim_start_matches('%'))
}

/// `x` of `ROOT x = ...`.
fn defined_instruction(code: &str) -> Option<&str> {
    let (name, _) = code.split_once(" = ")?;
    let name = name.trim().trim_start_matches("ROOT ").trim_start_matches('%');
    (!name.is_empty() && !name.contains(char::is_whitespace)).then_some(name)
}

/// `{1} temp +16`. Anything else is prose.
fn placed(part: &str) -> Option<(Vec<u32>, String, u64)> {
    const KINDS: [&str; 6] = ["temp", "fast", "collective", "output", "argument", "constant"];
    let mut words = part.split_whitespace().peekable();
    let index = match words.peek()?.strip_prefix('{') {
        Some(index) => {
            words.next();
            let index = index.strip_suffix('}')?.split('.').filter(|i| !i.is_empty());
            index.map(|i| i.parse().ok()).collect::<Option<_>>()?
        }
        None => Vec::new(),
    };
    let kind = words.next().filter(|kind| KINDS.contains(kind))?;
    let offset = match words.peek().and_then(|word| word.strip_prefix('+')) {
        Some(offset) => offset.parse().ok()?,
        None => 0,
    };
    Some((index, kind.to_string(), offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_expectations() {
        let source = "// target: toy\n// passes: dce, cse\nHloModule m\nbody {\n  x = f32[] parameter(0) // argument\n}\n\
            ENTRY %main (p: f32[]) -> f32[] {\n  ROOT %t = (f32[], f32[]) tuple(x, x) // {0} temp +16 of two, {1.0} output, why\n}\n";
        let fixture = Fixture::parse(Path::new("m.hlo"), source.into());
        assert_eq!(fixture.target.as_deref(), Some("toy"));
        assert_eq!(fixture.passes, ["dce", "cse"]);
        assert_eq!(fixture.error, None);
        let found: Vec<_> = fixture
            .expectations
            .iter()
            .map(|e| (e.line, &*e.computation, &*e.instruction, &e.index[..], &*e.kind, e.offset))
            .collect();
        assert_eq!(
            found,
            [
                (5, "body", "x", &[][..], "argument", 0),
                (8, "main", "t", &[0][..], "temp", 16),
                (8, "main", "t", &[1, 0][..], "output", 0),
            ]
        );
    }
}
