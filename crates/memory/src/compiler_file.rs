//! The files of compilers: which are built in, and how one says what differs from another.

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use crate::CompilerError;
use crate::target_spans::line_and_column;

/// The compilers, each a TOML file in this crate; of each, the newest version first.
pub(crate) const BUILT_IN: &[(&str, &str)] = &[
    ("xla-gpu@0.12.toml", include_str!("../compilers/xla-gpu@0.12.toml")),
    ("xla-gpu@0.10.toml", include_str!("../compilers/xla-gpu@0.10.toml")),
    ("xla-cpu@0.12.toml", include_str!("../compilers/xla-cpu@0.12.toml")),
    ("xla-cpu@0.10.toml", include_str!("../compilers/xla-cpu@0.10.toml")),
    ("xla-tpu@0.12.toml", include_str!("../compilers/xla-tpu@0.12.toml")),
];

/// The key of a file that says what differs from a built-in compiler.
const BASED_ON: &str = "based_on";

/// The key of the passes that the built-in compiler runs, and this one does not.
const WITHOUT: &str = "without";

/// The key of the passes that this compiler runs in addition, each before one of the built-in compiler.
const BEFORE: &str = "before";

/// The names of the built-in compilers with their versions, the newest version of each first.
pub(crate) fn versions() -> impl Iterator<Item = &'static str> {
    BUILT_IN.iter().map(|(path, _)| path.trim_end_matches(".toml"))
}

/// The path and the text of a built-in compiler: of the newest version if the name has none.
pub(crate) fn built_in(name: &str) -> Option<(&'static str, &'static str)> {
    let is_named = |known: &str| known == name || without_version(known) == name;
    versions().position(is_named).map(|i| BUILT_IN[i])
}

/// `xla-gpu` of `xla-gpu@0.12`.
pub(crate) fn without_version(name: &str) -> &str {
    name.split_once('@').map_or(name, |(name, _)| name)
}

/// Parses a file and, if it is `based_on` a built-in compiler, that one's file; merges both. Spans are those of the file
/// itself.
///
/// # Errors
/// The text is not TOML, there is no such built-in compiler, or it does not run a pass that the file leaves out, or adds
/// one to.
pub(crate) fn document<'a>(text: &'a str, path: &str) -> Result<DeTable<'a>, CompilerError> {
    let mut own = DeTable::parse(text).map_err(|error| error_at(path, text, &error))?.into_inner();
    let Some(base) = own.remove(BASED_ON) else { return Ok(own) };
    let wrong =
        |place: &Spanned<DeValue<'_>>, message: String| error(path, text, place.span().start, message);
    let DeValue::String(name) = base.get_ref() else {
        return Err(wrong(&base, "expected the name of a built-in compiler".to_string()));
    };
    let Some((base_path, base_text)) = built_in(name) else {
        let known: Vec<&str> = versions().collect();
        return Err(wrong(&base, format!("no built-in compiler is `{name}`: they are {}", known.join(", "))));
    };
    let mut document = document(base_text, base_path)?;
    if let Some(without) = own.remove(WITHOUT) {
        let DeValue::Array(names) = without.get_ref() else {
            return Err(wrong(&without, "expected a list of passes".to_string()));
        };
        for name in names {
            if !leave_out(&mut document, name.get_ref()) {
                return Err(wrong(name, "expected a pass that the built-in compiler runs".to_string()));
            }
        }
    }
    if let Some(before) = own.remove(BEFORE) {
        let DeValue::Table(added) = before.get_ref() else {
            return Err(wrong(&before, "expected a table of passes".to_string()));
        };
        for (next, pass) in added {
            if !put_before(&mut document, next.get_ref(), pass) {
                return Err(wrong(pass, format!("the built-in compiler does not run `{}`", next.get_ref())));
            }
        }
    }
    merge(&mut document, own);
    Ok(document)
}

/// Adds a pass before one of a compiler's passes. Returns whether that was there.
fn put_before<'a>(document: &mut DeTable<'a>, next: &str, pass: &Spanned<DeValue<'a>>) -> bool {
    let Some(DeValue::Array(passes)) = document.get_mut("passes").map(Spanned::get_mut) else { return false };
    let at = passes.iter().position(|it| it.get_ref().as_str() == Some(next));
    let mut all: Vec<_> = std::mem::replace(passes, DeArray::new()).into_iter().collect();
    if let Some(at) = at {
        all.insert(at, pass.clone());
    }
    *passes = all.into_iter().collect();
    at.is_some()
}

/// Removes a pass from a compiler's passes. Returns whether it was there.
fn leave_out(document: &mut DeTable<'_>, pass: &DeValue<'_>) -> bool {
    let passes = document.get_mut("passes").map(Spanned::get_mut);
    let (Some(DeValue::Array(passes)), Some(pass)) = (passes, pass.as_str()) else { return false };
    let is_other = |it: &Spanned<DeValue<'_>>| it.get_ref().as_str() != Some(pass);
    let n_before = passes.len();
    *passes = std::mem::replace(passes, DeArray::new()).into_iter().filter(is_other).collect();
    passes.len() < n_before
}

/// Puts what the second table says in place of what the first one says, table by table.
fn merge<'a>(document: &mut DeTable<'a>, own: DeTable<'a>) {
    for (key, value) in own {
        let span = value.span();
        let value = match (document.remove(&key).map(Spanned::into_inner), value.into_inner()) {
            (Some(DeValue::Table(mut old)), DeValue::Table(new)) => {
                merge(&mut old, new);
                DeValue::Table(old)
            }
            (_, new) => new,
        };
        document.insert(key, Spanned::new(span, value));
    }
}

pub(crate) fn error_at(path: &str, text: &str, it: &toml::de::Error) -> CompilerError {
    error(path, text, it.span().map_or(0, |span| span.start), it.message().to_string())
}

pub(crate) fn error(path: &str, text: &str, offset: usize, message: String) -> CompilerError {
    let (line, column) = line_and_column(text, offset);
    CompilerError::File { path: path.to_string(), line, column, message }
}
