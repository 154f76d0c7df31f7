//! A layout as a header for C99 and C++11: all that an embedder without Rust needs.
//!
//! Everything is a macro or a `static const` table, so the header can be included anywhere and unused parts cost
//! nothing. Names begin with the module's name, in capitals:
//!
//! ```c
//! #define STEP_ALLOCATIONS 3                      // entries of STEP_ALLOCATION_TABLE
//! #define STEP_ALLOCATION_TEMP 2                  // its number there
//! #define STEP_ALLOCATION_TEMP_SIZE UINT64_C(4096)
//! #define STEP_BUFFER_FUSION_3_ALLOCATION 2       // fusion.3 lives in it
//! #define STEP_BUFFER_FUSION_3_OFFSET UINT64_C(512)
//! ```
//!
//! Further tables list computations, their launches in order with the addresses that they read and write, and transfers
//! with the launches that start them and wait for them. The header asserts at compile time that the buffers are inside
//! their allocations, and that `size_t` can hold the sizes. Strings are UTF-8.
//!
//! If all memories of the machine are below 4 GiB, the tables have numbers of 32 bits; otherwise
//! `#define MEMPLAN_SIZE uint32_t` before the header halves them, if all sizes fit.

mod launches;
mod names;

use std::fmt::{self, Write};

use memplan_ir::ShapeIndex;
use memplan_memory::KindName;

use crate::layout::{Address, Buffer, Port, ProgramLayout};
use names::{Names, comment, prefix, string};

/// The header of a layout. Linear in the layout.
pub fn c_header(layout: &ProgramLayout) -> String {
    let mut header = Header { layout, prefix: prefix(&layout.module), out: String::new() };
    header.write().expect("a string takes everything");
    header.out
}

/// The common part of all headers, defined once however many are included.
const TYPES: &str = include_str!("types.h");

struct Header<'a> {
    layout: &'a ProgramLayout,
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
        self.launches()?;
        write!(self.out, "\n#endif\n")
    }

    fn begin(&mut self) -> fmt::Result {
        let ProgramLayout { module, target, fingerprint, constants_file, totals, .. } = self.layout;
        let prefix = &self.prefix;
        let (module, target) = (comment(module), comment(target));
        writeln!(self.out, "/* Memory of {module} on {target}. Written by memplan; do not edit. */")?;
        writeln!(self.out, "#ifndef MEMPLAN_{prefix}_H\n#define MEMPLAN_{prefix}_H\n")?;
        writeln!(self.out, "#include <stdint.h>\n")?;
        if self.has_small_memories() {
            writeln!(self.out, "#ifndef MEMPLAN_SIZE\n#define MEMPLAN_SIZE uint32_t\n#endif\n")?;
        }
        writeln!(self.out, "{TYPES}")?;
        writeln!(self.out, "#define {prefix}_FINGERPRINT UINT64_C(0x{fingerprint})")?;
        writeln!(self.out, "#define {prefix}_TOTAL_SIZE UINT64_C({})", totals.total.0)?;
        writeln!(self.out, "#define {prefix}_CONSTANTS_FILE_SIZE UINT64_C({})", constants_file.0)?;
        let most = self.largest();
        writeln!(
            self.out,
            "\nMEMPLAN_ASSERT(UINT64_C({most}) <= (memplan_size)-1, {prefix}_numbers_fit_their_tables);"
        )
    }

    /// Whether 32 bits address every memory and count everything.
    fn has_small_memories(&self) -> bool {
        let limit = u64::from(u32::MAX);
        let is_small = |bytes: Option<memplan_memory::Bytes>| bytes.is_some_and(|bytes| bytes.0 <= limit);
        self.largest() < limit && self.layout.spaces.iter().all(|space| is_small(space.capacity))
    }

    /// The largest number of the tables.
    fn largest(&self) -> u64 {
        let layout = self.layout;
        let sizes = layout.allocations.iter().map(|a| a.size.0.max(a.alignment.bytes()));
        let transfers = layout.transfers.iter().map(|t| t.bytes.0.max(t.runs));
        let launches = layout.computations.iter().flat_map(|computation| &computation.launches);
        let trips = launches.filter_map(|launch| launch.trip_count);
        sizes.chain(transfers).chain(trips).chain([layout.constants_file.0]).max().unwrap_or(0)
    }

    fn spaces(&mut self) -> fmt::Result {
        let (layout, prefix) = (self.layout, &self.prefix);
        writeln!(
            self.out,
            "\n/* Memory spaces: their numbers, all allocations in them, the arena among those; what they are mapped in. */"
        )?;
        let mut names = Names::default();
        for space in &layout.spaces {
            let name = names
                .unique(&space.name, &["", "_SIZE", "_ARENA_SIZE", "_ALIGNMENT", "_GRANULE", "_READ_ONLY"]);
            writeln!(self.out, "#define {prefix}_SPACE_{name} {}", space.id.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_SIZE UINT64_C({})", space.used.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_ARENA_SIZE UINT64_C({})", space.temp.0)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_ALIGNMENT UINT64_C({})", space.alignment)?;
            writeln!(self.out, "#define {prefix}_SPACE_{name}_GRANULE UINT64_C({})", space.granule)?;
            if space.read_only {
                writeln!(self.out, "#define {prefix}_SPACE_{name}_READ_ONLY 1")?;
            }
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
            let file_offset =
                allocation.file_offset.map_or("MEMPLAN_NOT_IN_FILE".into(), |offset| number(offset.0));
            writeln!(
                self.out,
                "    {{{}, {}, {}, {}, {}, {file_offset}}},",
                string(&allocation.name),
                kind(allocation.kind),
                allocation.space.0,
                number(allocation.size.0),
                number(allocation.alignment.bytes()),
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
                |a| format!("{}, {}, {}", a.allocation, number(a.offset.0), number(a.size.0)),
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
        // The end of each allocation's buffers: its last buffer, by a name that has been defined.
        let mut ends: Vec<Option<(&Buffer, String)>> = vec![None; layout.allocations.len()];
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
            let end = &mut ends[buffer.address.allocation as usize];
            if end.as_ref().is_none_or(|(last, _)| last.address.end() < buffer.address.end()) {
                *end = Some((buffer, name));
            }
        }
        writeln!(self.out)?;
        for (i, (_, name)) in ends.iter().enumerate().filter_map(|(i, end)| Some((i, end.as_ref()?))) {
            let (define, size) = (format!("{prefix}_BUFFER_{name}"), layout.allocations[i].size.0);
            writeln!(
                self.out,
                "MEMPLAN_ASSERT({define}_OFFSET + {define}_SIZE <= UINT64_C({size}), {prefix}_allocation_{i}_is_large_enough);"
            )?;
        }
        Ok(())
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

/// A number of 64 bits, where one is initialized.
fn number(value: u64) -> String {
    if value <= u64::from(u32::MAX) { value.to_string() } else { format!("UINT64_C({value})") }
}
