//! A layout as a header for C99 and C++11: what an embedder needs to lay a program out without Rust.
//!
//! Everything is a macro or a `static const` table, so the header can be included anywhere and costs nothing where it
//! is not used. Names begin with that of the module, in capitals:
//!
//! ```c
//! #define STEP_ALLOCATIONS 3                      // entries of STEP_ALLOCATION_TABLE
//! #define STEP_ALLOCATION_TEMP 2                  // its number there
//! #define STEP_ALLOCATION_TEMP_SIZE UINT64_C(4096)
//! #define STEP_BUFFER_FUSION_3_ALLOCATION 2       // fusion.3 lives in it
//! #define STEP_BUFFER_FUSION_3_OFFSET UINT64_C(512)
//! ```
//!
//! The header asserts at compile time that each buffer is inside its allocation, and that `size_t` can hold the sizes.

use std::fmt::{self, Write};

use memplan_ir::ShapeIndex;
use memplan_memory::KindName;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::layout::{Address, Layout, Port};

/// The header of a layout. Linear in the layout.
pub fn c_header(layout: &Layout) -> String {
    let mut header = Header { layout, prefix: prefix(&layout.module), out: String::new() };
    header.write().expect("a string takes everything");
    header.out
}

/// What all headers share, once however many are included.
const TYPES: &str = r#"#ifndef MEMPLAN_TYPES
#define MEMPLAN_TYPES

/* What an allocation is for. */
enum memplan_kind { MEMPLAN_ARGUMENT, MEMPLAN_OUTPUT, MEMPLAN_CONSTANT, MEMPLAN_TEMP };

/* The number of no allocation, and the offset of what is not in the file of constants. */
#define MEMPLAN_NONE UINT32_MAX
#define MEMPLAN_NOT_IN_FILE UINT64_MAX

/* A region of one memory space, to be had before the first run. */
typedef struct memplan_allocation {
    const char *name;
    enum memplan_kind kind;
    uint32_t space;
    uint64_t size;
    uint64_t alignment;
    uint64_t file_offset; /* of constants: where `--emit constants=FILE` has the bytes */
} memplan_allocation;

/* A part of a parameter or of the result. */
typedef struct memplan_port {
    const char *name;
    const char *shape;
    uint32_t parameter; /* MEMPLAN_NONE for results */
    const char *index;  /* path into the parameter or the result */
    uint32_t allocation;
    uint64_t offset;
    uint64_t size;
    int donated; /* whether the program may write over it */
} memplan_port;

#if defined(__cplusplus)
#define MEMPLAN_ASSERT(condition, name) static_assert(condition, #name)
#elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L
#define MEMPLAN_ASSERT(condition, name) _Static_assert(condition, #name)
#else
#define MEMPLAN_ASSERT(condition, name) typedef char name[(condition) ? 1 : -1]
#endif

#endif
"#;

struct Header<'a> {
    layout: &'a Layout,
    prefix: String,
    out: String,
}

impl Header<'_> {
    fn write(&mut self) -> fmt::Result {
        self.begin()?;
        self.spaces()?;
        self.allocations()?;
        self.ports("PARAMETER", "Parts of the parameters, by number and position.", &self.layout.parameters)?;
        self.ports("RESULT", "Parts of the result, by position.", &self.layout.results)?;
        self.buffers()?;
        write!(self.out, "\n#endif\n")
    }

    fn begin(&mut self) -> fmt::Result {
        let Layout { module, target, fingerprint, launches, constants_file, totals, .. } = self.layout;
        let prefix = &self.prefix;
        let (module, target) = (comment(module), comment(target));
        writeln!(self.out, "/* Memory of {module} on {target}. Written by memplan; do not edit. */")?;
        writeln!(self.out, "#ifndef MEMPLAN_{prefix}_H\n#define MEMPLAN_{prefix}_H\n")?;
        writeln!(self.out, "#include <stdint.h>\n\n{TYPES}")?;
        writeln!(self.out, "#define {prefix}_FINGERPRINT UINT64_C(0x{fingerprint})")?;
        writeln!(self.out, "#define {prefix}_LAUNCHES {launches}")?;
        writeln!(self.out, "#define {prefix}_TOTAL_SIZE UINT64_C({})", totals.total.0)?;
        writeln!(self.out, "#define {prefix}_CONSTANTS_FILE_SIZE UINT64_C({})", constants_file.0)
    }

    fn spaces(&mut self) -> fmt::Result {
        let (layout, prefix) = (self.layout, &self.prefix);
        writeln!(
            self.out,
            "\n/* Memory spaces: their numbers, all allocations in them, the arena among those. */"
        )?;
        let mut names = Names::default();
        for space in &layout.spaces {
            let name = names.unique(&space.name, &["", "_SIZE", "_ARENA_SIZE", "_ALIGNMENT"]);
            writeln!(self.out, "#define {prefix}_SPACE_{name} {}", space.id.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_SIZE UINT64_C({})", space.used.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_ARENA_SIZE UINT64_C({})", space.temp.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_ALIGNMENT UINT64_C({})", space.alignment)?;
        }
        Ok(())
    }

    fn allocations(&mut self) -> fmt::Result {
        let (layout, prefix) = (self.layout, &self.prefix);
        writeln!(
            self.out,
            "\n/* Allocations. */\n#define {prefix}_ALLOCATIONS {}",
            layout.allocations.len()
        )?;
        let mut names = Names::default();
        names.taken.insert("TABLE".into());
        for allocation in &layout.allocations {
            // There is one arena in each space.
            let name = match allocation.kind {
                KindName::Temp => self.arena_name(allocation.space),
                _ => allocation.name.clone(),
            };
            let name = names.unique(&name, &["", "_SIZE", "_ALIGNMENT"]);
            let define = format!("#define {prefix}_ALLOCATION_{name}");
            writeln!(self.out, "{define} {}", allocation.index)?;
            writeln!(self.out, "{define}_SIZE UINT64_C({})", allocation.size.0)?;
            writeln!(self.out, "{define}_ALIGNMENT UINT64_C({})", allocation.alignment)?;
        }
        if layout.allocations.is_empty() {
            return Ok(());
        }
        writeln!(
            self.out,
            "\nstatic const memplan_allocation {prefix}_ALLOCATION_TABLE[{prefix}_ALLOCATIONS] = {{"
        )?;
        for allocation in &layout.allocations {
            let file_offset = allocation
                .file_offset
                .map_or("MEMPLAN_NOT_IN_FILE".into(), |offset| format!("UINT64_C({})", offset.0));
            writeln!(
                self.out,
                "    {{{}, {}, {}, UINT64_C({}), UINT64_C({}), {file_offset}}},",
                string(&allocation.name),
                kind(allocation.kind),
                allocation.space.0,
                allocation.size.0,
                allocation.alignment,
            )?;
        }
        writeln!(self.out, "}};\n")?;
        for allocation in &layout.allocations {
            let Some(size) = Some(allocation.size.0).filter(|&size| size > u64::from(u16::MAX)) else {
                continue;
            };
            writeln!(
                self.out,
                "MEMPLAN_ASSERT(UINT64_C({size}) <= SIZE_MAX, {prefix}_allocation_{}_is_addressable);",
                allocation.index
            )?;
        }
        Ok(())
    }

    /// `TEMP` in main memory, `TEMP_VMEM` elsewhere.
    fn arena_name(&self, id: memplan_memory::MemorySpaceId) -> String {
        let space = self.layout.spaces.iter().find(|space| space.id == id);
        match space {
            Some(space) if id != memplan_memory::MemorySpaceId::MAIN => format!("temp {}", space.name),
            _ => "temp".into(),
        }
    }

    fn ports(&mut self, what: &str, title: &str, ports: &[Port]) -> fmt::Result {
        let prefix = &self.prefix;
        writeln!(self.out, "\n/* {title} */\n#define {prefix}_{what}S {}", ports.len())?;
        for port in ports {
            let Some(address) = port.address else { continue };
            let mut name = what.to_string();
            for step in port.parameter.iter().chain(&port.index) {
                write!(name, "_{step}")?;
            }
            self.define_address(&name, &address)?;
        }
        if ports.is_empty() {
            return Ok(());
        }
        let prefix = &self.prefix;
        writeln!(self.out, "\nstatic const memplan_port {prefix}_{what}_TABLE[{prefix}_{what}S] = {{")?;
        for port in ports {
            let address = port.address.map_or_else(
                || "MEMPLAN_NONE, 0, 0".into(),
                |a| format!("{}, UINT64_C({}), UINT64_C({})", a.allocation, a.offset.0, a.size.0),
            );
            writeln!(
                self.out,
                "    {{{}, {}, {}, {}, {address}, {}}},",
                string(&port.name),
                string(&port.shape),
                port.parameter.map_or("MEMPLAN_NONE".into(), |number| number.to_string()),
                string(&ShapeIndex::from(port.index.iter().copied()).to_string()),
                u8::from(port.donated),
            )?;
        }
        writeln!(self.out, "}};")
    }

    fn buffers(&mut self) -> fmt::Result {
        let (layout, prefix) = (self.layout, self.prefix.clone());
        writeln!(
            self.out,
            "\n/* Where each value lives, and at which launches: from the first, to before the last. */"
        )?;
        let mut names = Names::default();
        let mut asserts = String::new();
        for buffer in &layout.buffers {
            let full_name = buffer.full_name();
            let name = names.unique(&full_name, &["_ALLOCATION", "_OFFSET", "_SIZE"]);
            let (from, to) = (buffer.live.from, buffer.live.to);
            let (shape, computation) = (comment(&buffer.shape), comment(&buffer.computation));
            writeln!(
                self.out,
                "/* {} {shape} in {computation}, launches {from} to {to} */",
                comment(&full_name)
            )?;
            self.define_address(&format!("BUFFER_{name}"), &buffer.address)?;
            let size = layout.allocations[buffer.address.allocation as usize].size.0;
            let define = format!("{prefix}_BUFFER_{name}");
            writeln!(
                asserts,
                "MEMPLAN_ASSERT({define}_OFFSET + {define}_SIZE <= UINT64_C({size}), {define}_is_inside);"
            )?;
        }
        write!(self.out, "\n{asserts}")
    }

    fn define_address(&mut self, name: &str, address: &Address) -> fmt::Result {
        let define = format!("#define {}_{name}", self.prefix);
        writeln!(self.out, "{define}_ALLOCATION {}", address.allocation)?;
        writeln!(self.out, "{define}_OFFSET UINT64_C({})", address.offset.0)?;
        writeln!(self.out, "{define}_SIZE UINT64_C({})", address.size.0)
    }
}

fn kind(kind: KindName) -> &'static str {
    match kind {
        KindName::Argument => "MEMPLAN_ARGUMENT",
        KindName::Output => "MEMPLAN_OUTPUT",
        KindName::Constant => "MEMPLAN_CONSTANT",
        KindName::Temp => "MEMPLAN_TEMP",
    }
}

/// Identifiers that are taken.
#[derive(Default)]
struct Names {
    /// With their suffixes.
    taken: FxHashSet<String>,
    /// The last number given to identifiers that would be equal.
    numbers: FxHashMap<String, u32>,
}

impl Names {
    /// An identifier like a name, numbered where with one of the suffixes it would be another one: the size of `x` is
    /// called what `x.size` is.
    fn unique(&mut self, name: &str, suffixes: &[&str]) -> String {
        let base = identifier(name);
        let mut unique = base.clone();
        let with =
            |unique: &str| suffixes.iter().map(|suffix| format!("{unique}{suffix}")).collect::<Vec<_>>();
        while with(&unique).iter().any(|full| self.taken.contains(full)) {
            let number = self.numbers.entry(base.clone()).or_insert(1);
            *number += 1;
            unique = format!("{base}_{number}");
        }
        self.taken.extend(with(&unique));
        unique
    }
}

/// What all names of a module begin with: never a digit, nor an underscore, which C keeps for itself.
fn prefix(module: &str) -> String {
    let name = identifier(module);
    if name.starts_with(|c: char| c.is_ascii_digit()) { format!("M_{name}") } else { name }
}

/// A name in capitals, with one underscore for every run of characters that identifiers cannot have; none at the ends.
fn identifier(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let joined = words.collect::<Vec<_>>().join("_").to_ascii_uppercase();
    if joined.is_empty() { "X".into() } else { joined }
}

/// Text that does not end the comment that it is in.
fn comment(text: &str) -> String {
    text.replace("*/", "* /").replace("/*", "/ *").replace(['\n', '\r', '\\'], " ")
}

/// A string literal. Question marks are escaped for the sake of trigraphs.
fn string(text: &str) -> String {
    let mut literal = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' | b'?' => literal.extend(['\\', char::from(byte)]),
            b' '..=b'~' => literal.push(char::from(byte)),
            _ => literal.push_str(&format!("\\{byte:03o}")),
        }
    }
    literal + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        for (name, expected) in
            [("fusion.3{0,1}", "FUSION_3_0_1"), ("__x__y", "X_Y"), ("größe", "GR_E"), ("%%", "X"), ("", "X")]
        {
            assert_eq!(identifier(name), expected, "{name}");
        }
        assert_eq!(prefix("3d_conv"), "M_3D_CONV");
    }

    #[test]
    fn equal_identifiers_are_numbered() {
        let mut names = Names::default();
        let all = ["a.b", "a_b", "a b 2", "a-b"].map(|name| names.unique(name, &["_SIZE"]));
        assert_eq!(all, ["A_B", "A_B_2", "A_B_2_2", "A_B_3"]);
    }

    #[test]
    fn suffixes_make_no_identifier_of_another_name() {
        let mut names = Names::default();
        let all = ["x", "x.size", "y.size", "y"].map(|name| names.unique(name, &["", "_SIZE"]));
        assert_eq!(all, ["X", "X_SIZE_2", "Y_SIZE", "Y_2"]);
    }

    #[test]
    fn strings_and_comments_end_where_they_should() {
        assert_eq!(string("a\"\\??\u{e9}1\n"), r#""a\"\\\?\?\303\2511\012""#);
        assert_eq!(comment("a*/b/*c\\\nd*/"), "a* /b/ *c  d* /");
        assert_eq!(comment("*/*/"), "* / * /");
    }
}
