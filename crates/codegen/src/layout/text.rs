//! The layout as text for people.

use std::fmt::{self, Display, Formatter};

use memplan_memory::{Bytes, KindName};

use super::table::Table;
use super::{Address, Argument, Buffer, ProgramLayout, Remedy, RemedyKind, picture};

/// Spaces, allocations, buffers with a picture of each arena, launches, transfers, padding: each a table.
impl Display for ProgramLayout {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {}: {} launches\n", self.module, self.target, self.launches)?;
        write!(f, "memory spaces\n{}\n", self.spaces_table())?;
        write!(f, "allocations\n{}\n", self.allocations_table())?;
        section(f, "parameters", &self.ports_table(true))?;
        section(f, "results", &self.ports_table(false))?;
        for allocation in self.allocations.iter().filter(|allocation| allocation.kind == KindName::Temp) {
            picture::draw(f, self, allocation)?;
        }
        section(f, "buffers, by address", &self.buffers_table())?;
        section(f, "launches", &self.launches_table())?;
        section(f, "transfers", &self.transfers_table())?;
        section(f, "padding, worst first", &self.padding_table())
    }
}

/// A table with its title; nothing where there are no rows.
fn section<const N: usize>(f: &mut Formatter<'_>, title: &str, table: &Table<N>) -> fmt::Result {
    match table.is_empty() {
        true => Ok(()),
        false => write!(f, "{title}\n{table}\n"),
    }
}

impl ProgramLayout {
    fn spaces_table(&self) -> Table<6> {
        let mut table = Table::new(["space", "name", ">capacity", ">used", ">arena", ">align"]);
        for space in &self.spaces {
            let capacity = space.capacity.map(|capacity| exact(capacity.saturating_sub(space.reserved)));
            table.row([
                space.id.to_string(),
                if space.read_only { format!("{} (read only)", space.name) } else { space.name.clone() },
                capacity.unwrap_or_else(|| "-".into()),
                exact(space.used),
                exact(space.temp),
                space.alignment.to_string(),
            ]);
        }
        table
    }

    fn allocations_table(&self) -> Table<7> {
        let mut table = Table::new([">", "kind", "space", ">size", ">align", "for", "in file"]);
        for allocation in &self.allocations {
            table.row([
                allocation.index.to_string(),
                allocation.kind.to_string(),
                allocation.space.to_string(),
                exact(allocation.size),
                allocation.alignment.to_string(),
                allocation.name.clone(),
                allocation.file_offset.map_or_else(String::new, |offset| format!("+{offset:#}")),
            ]);
        }
        table
    }

    fn ports_table(&self, is_parameters: bool) -> Table<5> {
        let mut table = Table::new(["part", "name", "address", "shape", ""]);
        for port in if is_parameters { &self.parameters } else { &self.results } {
            let number = port.parameter.map_or_else(String::new, |number| number.to_string());
            let index = match port.index.is_empty() {
                true if is_parameters => String::new(),
                _ => index_text(&port.index),
            };
            table.row([
                format!("{number}{index}"),
                port.name.clone(),
                port.address.map_or_else(|| "-".into(), |address| place(&address)),
                port.shape.clone(),
                if port.donated { "donated".into() } else { String::new() },
            ]);
        }
        table
    }

    fn buffers_table(&self) -> Table<8> {
        let mut table =
            Table::new([">", "space", ">address", ">size", ">padding", ">live", "shape", "value"]);
        let mut sorted: Vec<&Buffer> = self.buffers.iter().collect();
        sorted.sort_by_key(|b| (b.address.allocation, b.address.offset, b.live.from, b.index));
        for buffer in sorted {
            let marks = [
                (buffer.donated, "donated"),
                (buffer.parameter.is_some() && !buffer.donated, "parameter"),
                (buffer.constant, "constant"),
                (buffer.result, "result"),
            ];
            let marks = marks.iter().filter(|(is_so, _)| *is_so).map(|(_, mark)| format!("  ({mark})"));
            table.row([
                buffer.index.to_string(),
                buffer.space.to_string(),
                place(&buffer.address),
                exact(buffer.address.size),
                match buffer.address.size.saturating_sub(buffer.unpadded) {
                    Bytes(0) => String::new(),
                    padding => exact(padding),
                },
                format!("{}..{}", buffer.live.from, buffer.live.to),
                buffer.shape.clone(),
                buffer.full_name() + &marks.collect::<String>(),
            ]);
        }
        table
    }

    fn launches_table(&self) -> Table<6> {
        let mut table = Table::new([">", "launch", "operation", "scratch", "writes", "reads"]);
        for (computation, launch) in self.launches_in_order() {
            // Deeper than this, the numbers say it.
            let indent = "  ".repeat(computation.depth.min(8) as usize);
            let mut operation = launch.opcode.clone();
            if let Some(function) = &launch.function {
                operation.push_str(&format!(" {function}"));
            }
            let calls: Vec<&str> = launch.calls.iter().map(|call| call.computation.as_str()).collect();
            if !calls.is_empty() {
                operation.push_str(&format!(" {}", calls.join(", ")));
            }
            if let Some(trips) = launch.trip_count {
                operation.push_str(&format!(" x {trips}"));
            }
            table.row([
                launch.index.to_string(),
                format!("{indent}{}", launch.name),
                operation,
                launch.scratch.iter().map(range).collect::<Vec<_>>().join(" "),
                if launch.calls.is_empty() { arguments(&launch.results) } else { String::new() },
                arguments(&launch.operands),
            ]);
        }
        table
    }

    fn transfers_table(&self) -> Table<7> {
        let mut table = Table::new([">start", ">done", "transfer", "from", "to", ">bytes", ">runs"]);
        for transfer in &self.transfers {
            let mut operation = format!("{} {}", transfer.operation, transfer.name);
            if transfer.cross_program_prefetch.is_some() {
                operation.push_str(" (stays for the next run)");
            }
            let list = |addresses: &[Address]| addresses.iter().map(place).collect::<Vec<_>>().join(" ");
            table.row([
                transfer.start.to_string(),
                transfer.done.map_or_else(|| "-".into(), |done| done.to_string()),
                operation,
                format!("{} {}", transfer.from, list(&transfer.sources)),
                format!("{} {}", transfer.to, list(&transfer.destinations)),
                exact(transfer.bytes),
                transfer.runs.to_string(),
            ]);
        }
        table
    }

    fn padding_table(&self) -> Table<5> {
        let mut table = Table::new([">lost", ">of", ">buffers", "shape", "better"]);
        for padding in &self.padding {
            let remedies = padding.remedies.iter().map(Remedy::to_string);
            table.row([
                exact(padding.lost),
                exact(padding.size),
                padding.buffers.len().to_string(),
                padding.shape.clone(),
                remedies.collect::<Vec<_>>().join("; "),
            ]);
        }
        table
    }
}

/// The change, the new shape, and its bytes.
impl Display for Remedy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            RemedyKind::Order => "in another order",
            RemedyKind::Flatten => "flat",
            RemedyKind::RoundDown => "a little smaller",
            RemedyKind::RoundUp => "more in the same bytes",
        };
        write!(f, "{what}: {} in {:#}", self.shape, self.size)
    }
}

/// The addresses that a launch reads or writes, each once.
fn arguments(arguments: &[Argument]) -> String {
    let mut texts: Vec<String> = Vec::new();
    for argument in arguments {
        match (&argument.address, &argument.immediate) {
            (Some(address), _) => texts.push(range(address)),
            (None, Some(immediate)) => texts.push(immediate.clone()),
            (None, None) => {}
        }
    }
    texts.dedup();
    texts.join(" ")
}

/// `3+512`: allocation and offset.
fn place(address: &Address) -> String {
    format!("{}+{}", address.allocation, address.offset.0)
}

/// `3+512:64`: allocation, offset and size.
fn range(address: &Address) -> String {
    format!("{}+{}:{}", address.allocation, address.offset.0, address.size.0)
}

fn index_text(index: &[u32]) -> String {
    memplan_ir::ShapeIndex::from(index.iter().copied()).to_string()
}

fn exact(bytes: Bytes) -> String {
    format!("{bytes:#}")
}
