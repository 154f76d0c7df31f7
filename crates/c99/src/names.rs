//! Names of C, made of the program's.

use rustc_hash::FxHashSet;

/// Words that cannot be names, and names of the file itself.
const RESERVED: &str = "auto bool break case char const continue default do double else enum extern false float for \
    goto if inline int long register restrict return short signed sizeof static struct switch true typedef union \
    unsigned void volatile while asm main memcpy memmove argument result arena index \
    f32 f64 s8 s16 s32 s64 u8 u16 u32 u64 ptrdiff_t size_t NAN INFINITY AT FROM exp log pow sin cos tan sinh cosh tanh \
    asin acos atan atan2 asinh acosh atanh ceil floor round rint sqrt cbrt erf expm1 log1p fabs fmod y0 y1 yn j0 j1 jn \
    gamma signgam isnan isinf isfinite remainder clamp unwanted unwanted_at arena_memory call_arguments call_results \
    NULL ASSERT ALIGNED MAY_ALIAS CHAR_BIT check_status";

/// What the names of the file's own functions end in.
const TYPES: &str = "s8 s16 s32 s64 u8 u16 u32 u64 f16 bf16 f32 f64 pred";

/// The names that are taken.
#[derive(Clone, Default)]
pub(crate) struct Identifiers {
    taken: FxHashSet<String>,
}

impl Identifiers {
    /// A name like this one that nothing else has.
    pub(crate) fn unique(&mut self, name: &str) -> String {
        let base = identifier(name);
        let mut name = base.clone();
        let mut n = 2;
        while !self.taken.insert(name.clone()) {
            name = format!("{base}_v{n}");
            n += 1;
        }
        name
    }

    /// A name for a function. Those of C's library, which compilers know, are single words.
    pub(crate) fn function(&mut self, name: &str, role: &str) -> String {
        match identifier(name).trim_end_matches('_').contains('_') {
            true => self.unique(name),
            false => self.unique(&format!("{name}_{role}")),
        }
    }

    /// The name of a loop's variable, so many loops deep.
    pub(crate) fn counter(&mut self, depth: usize) -> String {
        let letter = (b'i' + ((depth - 1) % 6) as u8) as char;
        let round = (depth - 1) / 6;
        self.unique(&if round == 0 { letter.to_string() } else { format!("{letter}{round}") })
    }
}

/// A name as C can have it.
pub(crate) fn identifier(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name: String = name.chars().map(plain).collect();
    let is_word = |name: &str| RESERVED.split_whitespace().any(|word| word == name);
    let is_reserved = is_word(&name) || name.strip_suffix('f').is_some_and(is_word);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit() || c == '_') {
        name.insert(0, 'v');
    }
    let is_of_a_type =
        name.rsplit_once('_').is_some_and(|(_, last)| TYPES.split(' ').any(|word| word == last));
    let is_of_a_library = ["str", "mem", "arm_", "cmsis_"].iter().any(|begin| name.starts_with(begin));
    if is_reserved || is_of_a_type || is_of_a_library {
        name.push('_');
    }
    name
}
