//! The files of compilers: which are built in, and how one says what differs from another.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

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

/// What a file says, and what the one says that it is based on. Places in the text are those of the file itself.
///
/// # Errors
/// It is no TOML, or is based on no built-in compiler.
pub(crate) fn document<'a>(text: &'a str, path: &str) -> Result<DeTable<'a>, CompilerError> {
    let mut own = DeTable::parse(text).map_err(|error| error_at(path, text, &error))?.into_inner();
    let Some(base) = own.remove(BASED_ON) else { return Ok(own) };
    let span = base.span();
    let wrong = |message: String| error(path, text, span.start, message);
    let DeValue::String(name) = base.into_inner() else {
        return Err(wrong("expected the name of a built-in compiler".to_string()));
    };
    let file = format!("{name}.toml");
    let Some((base_path, base_text)) = BUILT_IN.iter().find(|(path, _)| **path == file) else {
        let known: Vec<&str> = BUILT_IN.iter().map(|(path, _)| path.trim_end_matches(".toml")).collect();
        return Err(wrong(format!("no built-in compiler is `{name}`: they are {}", known.join(", "))));
    };
    let mut document = document(base_text, base_path)?;
    merge(&mut document, own);
    Ok(document)
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
