//! Errors in HLO text, and how they are shown.

use std::ops::Range;

use annotate_snippets::{Annotation, AnnotationKind, Level, Renderer, Snippet};
use memplan_ir::{Arity, Opcode};

/// Something wrong with HLO text, and where.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{kind}")]
pub struct ParseError {
    /// The kind of error.
    #[source]
    pub kind: ParseErrorKind,
    /// The bytes of the source that are wrong. Within the source, on character boundaries; may be empty.
    pub span: Range<usize>,
    /// Another place that explains this one.
    pub related: Option<Box<Related>>,
}

/// Another place that explains an error.
#[derive(Clone, Debug, PartialEq)]
pub struct Related {
    /// The bytes of the source.
    pub span: Range<usize>,
    /// The message.
    pub message: String,
}

/// The errors in HLO text.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
#[non_exhaustive]
pub enum ParseErrorKind {
    #[error("expected {expected}, found {found}")]
    Unexpected { expected: String, found: String },
    #[error("this comment does not end")]
    UnterminatedComment,
    #[error("this string does not end")]
    UnterminatedString,
    #[error("the opening brace is never closed")]
    UnterminatedJson,
    #[error("character {character:?} has no meaning here")]
    InvalidCharacter { character: char },
    #[error("malformed escape sequence in a string")]
    InvalidEscape,
    #[error("the string is not valid UTF-8 once unescaped")]
    StringNotUtf8,
    #[error("maximum recursion depth of {limit} exceeded")]
    TooDeep { limit: u32 },
    #[error("number {text} does not fit {what}")]
    NumberOutOfRange { text: String, what: &'static str },
    #[error("extra content after {what}")]
    ExtraContent { what: &'static str },

    #[error("expects only one ENTRY")]
    SeveralEntries,
    #[error("a module needs at least one computation")]
    NoComputation,
    #[error("computation {name} has no instructions")]
    EmptyComputation { name: String },
    #[error("one computation should have only one ROOT")]
    SeveralRoots,
    #[error("instruction does not exist: {name}")]
    UnknownInstruction { name: String },
    #[error("computation does not exist: {name}")]
    UnknownComputation { name: String },
    #[error("instruction already exists: {name}")]
    DuplicateInstruction { name: String },
    #[error("computation already exists: {name}")]
    DuplicateComputation { name: String },
    #[error("computation {name} misses parameter {number}")]
    MissingParameter { name: String, number: usize },
    #[error("parameter number {number} is taken")]
    DuplicateParameter { number: u32 },
    #[error("shape of computation {name}, {shape}, is not compatible with that of its root, {root}")]
    RootShape { name: String, shape: String, root: String },
    #[error("the operand is declared as {declared}, but {name} has shape {actual}")]
    OperandShape { name: String, declared: String, actual: String },
    #[error("an operand without a shape cannot become a parameter of a single-instruction module")]
    OperandNeedsShape,

    #[error("unknown opcode: {name}")]
    UnknownOpcode { name: String },
    #[error("{opcode} expects {expected} operands, but has {found}")]
    OperandCount { opcode: Opcode, expected: Arity, found: usize },
    #[error("{opcode} cannot have shape {shape}: expected {expected}")]
    ResultShape { opcode: Opcode, shape: String, expected: &'static str },
    #[error("cannot infer shape for opcode: {opcode}")]
    ShapeRequired { opcode: Opcode },
    #[error("the shapes that are left out are out of proportion to the text")]
    TooMuchInferred,
    #[error("cannot infer the shape: {reason}")]
    Inference { reason: String },
    #[error("continues {expected}, but what was started is {found}")]
    WrappedOpcode { expected: Opcode, found: Opcode },
    #[error("{opcode} continues what an async-start or async-update began, but its operand is neither")]
    NotAsync { opcode: Opcode },
    #[error(
        "conditional with {branches} branches expects as many operands behind the first, but has {found}"
    )]
    BranchCount { branches: usize, found: usize },
    #[error("no element {index} in {shape}")]
    NoTupleElement { index: u64, shape: String },

    #[error("unexpected attribute {name:?}; {opcode} allows: {allowed}")]
    UnknownAttribute { name: String, opcode: Opcode, allowed: String },
    #[error("unexpected attribute {name:?} of the module")]
    UnknownModuleAttribute { name: String },
    #[error("attribute {name} already exists")]
    DuplicateAttribute { name: String },
    #[error("attribute {name} is expected but not seen")]
    MissingAttribute { name: &'static str },
    #[error("expects {expected} entries, but has {found}")]
    Count { expected: usize, found: usize },

    #[error("unknown element type {name}")]
    UnknownElementType { name: String },
    #[error("dimensions size is {rank}, but minor to major size is {order}")]
    LayoutRank { rank: usize, order: usize },
    #[error("minor-to-major order is not a permutation of the dimensions")]
    LayoutOrder,
    #[error("value {value} is out of range for literal's primitive type {element_type}")]
    LiteralRange { value: String, element_type: &'static str },
    #[error("a literal of type {element_type} cannot be {found}")]
    LiteralType { element_type: &'static str, found: String },
    #[error("expects nested array in rank {rank}, but sees larger")]
    LiteralTooDeep { rank: usize },
    #[error("expects nested array in rank {rank}, but sees {found}")]
    LiteralRank { rank: usize, found: usize },
    #[error("expects {expected} elements in dimension {dimension}, but sees {found}")]
    LiteralCount { expected: i64, dimension: usize, found: String },
    #[error("a constant of shape {shape} has no literal")]
    LiteralShape { shape: String },
    #[error("invalid sharding: {reason}")]
    Sharding { reason: &'static str },
    #[error("invalid dimension labels: {reason}")]
    DimensionLabels { reason: &'static str },
    #[error("invalid window: {reason}")]
    Window { reason: &'static str },
}

impl ParseError {
    /// Line and column of the error, both counted from 1; columns are characters.
    pub fn line_and_column(&self, source: &str) -> (usize, usize) {
        let before = &source[..self.span.start.min(source.len())];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }
}

/// The error as a person wants to see it: file, line, column, the source line with a caret.
///
/// `source` must be the text that was parsed. Very long lines are cut around the place.
///
/// # Panics
/// When `source` is a text that does not reach as far as the error.
pub fn render(error: &ParseError, file_name: &str, source: &str) -> String {
    let message = error.kind.to_string();
    let mark =
        |span: &Range<usize>, excerpt: &Excerpt<'_>| AnnotationKind::Primary.span(excerpt.within(span));
    let snippets = match &error.related {
        None => {
            let excerpt = Excerpt::around(source, &error.span);
            vec![excerpt.snippet(file_name).annotation(mark(&error.span, &excerpt))]
        }
        Some(related) => {
            let explain = |excerpt: &Excerpt<'_>| {
                AnnotationKind::Context.span(excerpt.within(&related.span)).label(&related.message)
            };
            let both = error.span.start.min(related.span.start)..error.span.end.max(related.span.end);
            let excerpt = Excerpt::around(source, &both);
            if excerpt.text.matches('\n').count() <= MOST_LINES {
                let annotations = [mark(&error.span, &excerpt), explain(&excerpt)];
                vec![excerpt.snippet(file_name).annotations(annotations)]
            } else {
                let (here, there) =
                    (Excerpt::around(source, &error.span), Excerpt::around(source, &related.span));
                vec![
                    here.snippet(file_name).annotation(mark(&error.span, &here)),
                    there.snippet(file_name).annotation(explain(&there)),
                ]
            }
        }
    };
    Renderer::plain().render(&[Level::ERROR.primary_title(&message).elements(snippets)])
}

/// Any message about a place in a text, shown as [`render`] shows errors.
pub fn render_message(message: &str, span: Range<usize>, file_name: &str, source: &str) -> String {
    render_with_help(message, None, span, file_name, source)
}

/// A message about a place in a text, and below what to do.
pub fn render_with_help(
    message: &str,
    help: Option<&str>,
    span: Range<usize>,
    file_name: &str,
    source: &str,
) -> String {
    let excerpt = Excerpt::around(source, &span);
    let snippet = excerpt.snippet(file_name).annotation(AnnotationKind::Primary.span(excerpt.within(&span)));
    let mut report = Level::ERROR.primary_title(message).element(snippet);
    if let Some(help) = help {
        report = report.element(Level::HELP.message(help));
    }
    Renderer::plain().render(&[report])
}

/// Two places that are further apart are shown one by one.
const MOST_LINES: usize = 1000;

/// Lines around an error to give to the renderer.
const LINES_AROUND: usize = 2;

/// The part of a source that is shown. The renderer keeps notes on every line that it gets, so it gets few.
struct Excerpt<'a> {
    text: &'a str,
    /// Its beginning in the source.
    offset: usize,
    /// Number of its first line, from 1.
    line: usize,
}

impl<'a> Excerpt<'a> {
    fn around(source: &'a str, span: &Range<usize>) -> Excerpt<'a> {
        let (start, end) = (span.start.min(source.len()), span.end.min(source.len()));
        let before = source[..start].rmatch_indices('\n').nth(LINES_AROUND);
        let offset = before.map_or(0, |(newline, _)| newline + 1);
        let after = source[end..].match_indices('\n').nth(LINES_AROUND);
        let text = &source[offset..after.map_or(source.len(), |(newline, _)| end + newline + 1)];
        Excerpt { text, offset, line: source[..offset].matches('\n').count() + 1 }
    }

    fn snippet(&self, file_name: &'a str) -> Snippet<'a, Annotation<'a>> {
        Snippet::source(self.text).line_start(self.line).path(file_name)
    }

    /// A span of the source as one of the excerpt.
    fn within(&self, span: &Range<usize>) -> Range<usize> {
        span.start - self.offset..span.end - self.offset
    }
}
