//! The tables of computations, launches and transfers, and of the addresses that they use.

use std::fmt::{self, Display, Write};

use rustc_hash::FxHashMap;

use super::names::string;
use super::{Header, number};
use crate::layout::{Address, Argument, CallRole, LaunchKind};

/// The lines of a table.
#[derive(Default)]
struct Rows {
    text: String,
    count: usize,
}

/// Launches from the first to before the end.
#[derive(Clone, Copy)]
struct Span {
    first: u32,
    end: u32,
}

impl Header<'_> {
    pub(super) fn launches(&mut self) -> fmt::Result {
        let mut addresses = Rows::default();
        let launches = self.launch_rows(&mut addresses)?;
        let transfers = self.transfer_rows(&mut addresses)?;
        let computations = self.computation_rows()?;
        self.table(["address", "ADDRESS", "ADDRESSES"], "What they read and write.", &addresses)?;
        self.table(
            ["computation", "COMPUTATION", "COMPUTATIONS"],
            "What runs, the entry first.",
            &computations,
        )?;
        self.table(["launch", "LAUNCH", "LAUNCHES"], "What there is to do, in order.", &launches)?;
        self.table(
            ["transfer", "TRANSFER", "TRANSFERS"],
            "Transfers, by the launch that starts them.",
            &transfers,
        )
    }

    /// A table behind its number of entries; only the number where that is 0, since C has no empty arrays.
    fn table(&mut self, [kind, one, many]: [&str; 3], title: &str, rows: &Rows) -> fmt::Result {
        let prefix = &self.prefix;
        writeln!(self.out, "\n/* {title} */\n#define {prefix}_{many} {}", rows.count)?;
        match &*rows.text {
            "" => Ok(()),
            text => writeln!(
                self.out,
                "\nstatic const memplan_{kind} {prefix}_{one}_TABLE[{prefix}_{many}] = {{\n{text}}};"
            ),
        }
    }

    fn launch_rows(&self, addresses: &mut Rows) -> Result<Rows, fmt::Error> {
        let numbers = self.computation_numbers();
        let mut rows = Rows::default();
        for (computation, launch) in self.layout.launches_in_order() {
            let of = |arguments: &[Argument]| arguments.iter().map(|a| a.address).collect::<Vec<_>>();
            let of_scratch: Vec<_> = launch.scratch.iter().copied().map(Some).collect();
            let [operands, results, scratch] = addresses.addresses(
                &format_args!("launch {}", launch.index),
                [&of(&launch.operands), &of(&launch.results), &of_scratch],
            )?;
            let end = addresses.count;
            let trips = match (launch.kind, launch.trip_count) {
                (LaunchKind::While, None) => "MEMPLAN_UNKNOWN".into(),
                (_, trips) => number(trips.unwrap_or(1)),
            };
            rows.row(format_args!(
                "{}, {}, {}, {}, {}, {operands}, {results}, {scratch}, {end}, {trips}",
                string(&launch.name),
                string(&launch.opcode),
                string(launch.function.as_deref().unwrap_or_default()),
                launch_kind(launch.kind),
                numbers[computation.name.as_str()],
            ))?;
        }
        Ok(rows)
    }

    fn transfer_rows(&self, addresses: &mut Rows) -> Result<Rows, fmt::Error> {
        let mut rows = Rows::default();
        for transfer in &self.layout.transfers {
            let of = |addresses: &[Address]| addresses.iter().copied().map(Some).collect::<Vec<_>>();
            let [sources, destinations, end] = addresses.addresses(
                &format_args!("transfer {}", rows.count),
                [&of(&transfer.sources), &of(&transfer.destinations), &[]],
            )?;
            rows.row(format_args!(
                "{}, {}, {}, {}, {}, {}, {}, {}, {sources}, {destinations}, {end}",
                string(&transfer.name),
                string(&transfer.operation),
                transfer.start,
                transfer.done.map_or("MEMPLAN_NONE".into(), |done| done.to_string()),
                transfer.from.0,
                transfer.to.0,
                number(transfer.bytes.0),
                number(transfer.runs),
            ))?;
        }
        Ok(rows)
    }

    fn computation_rows(&self) -> Result<Rows, fmt::Error> {
        let spans = self.spans();
        let numbers = self.computation_numbers();
        // The caller of each, with the call's role and number.
        let mut calls = vec![None; spans.len()];
        for (_, launch) in self.layout.launches_in_order() {
            for (i, call) in launch.calls.iter().enumerate() {
                calls[numbers[call.computation.as_str()]] = Some((launch.index, call.role, i));
            }
        }
        let mut rows = Rows::default();
        for ((computation, call), Span { first, end }) in
            self.layout.computations.iter().zip(calls).zip(spans)
        {
            let name = string(&computation.name);
            let called = call.map_or("MEMPLAN_ENTRY, MEMPLAN_NONE, 0".into(), |(launch, role, i)| {
                format!("{}, {launch}, {i}", call_role(role))
            });
            rows.row(format_args!("{name}, {called}, {first}, {end}"))?;
        }
        Ok(rows)
    }

    /// Computations by name, which is theirs alone.
    fn computation_numbers(&self) -> FxHashMap<&str, usize> {
        self.layout.computations.iter().enumerate().map(|(i, c)| (c.name.as_str(), i)).collect()
    }

    /// The launches of each computation, including those of the computations that it runs. Outer computations come
    /// first.
    fn spans(&self) -> Vec<Span> {
        let computations = &self.layout.computations;
        let numbers = self.computation_numbers();
        let mut spans: Vec<Option<Span>> = vec![None; computations.len()];
        let join = |span: &mut Option<Span>, first: u32, end: u32| {
            let old = span.unwrap_or(Span { first, end });
            *span = Some(Span { first: old.first.min(first), end: old.end.max(end) });
        };
        for (i, computation) in computations.iter().enumerate().rev() {
            for launch in &computation.launches {
                join(&mut spans[i], launch.index, launch.index + 1);
                for call in &launch.calls {
                    if let Some(Span { first, end }) = spans[numbers[call.computation.as_str()]] {
                        join(&mut spans[i], first, end);
                    }
                }
            }
        }
        spans.into_iter().map(|span| span.unwrap_or(Span { first: 0, end: 0 })).collect()
    }
}

impl Rows {
    fn row(&mut self, fields: fmt::Arguments<'_>) -> fmt::Result {
        self.count += 1;
        writeln!(self.text, "    {{{fields}}},")
    }

    /// A line of addresses: reads, writes, scratch. Returns the beginning of each part.
    fn addresses(
        &mut self,
        title: &dyn Display,
        parts: [&[Option<Address>]; 3],
    ) -> Result<[usize; 3], fmt::Error> {
        let mut places = [0; 3];
        let mut line = String::new();
        for ((part, place), label) in parts.into_iter().zip(&mut places).zip(["reads", "writes", "uses"]) {
            *place = self.count;
            self.count += part.len();
            if !part.is_empty() {
                write!(line, " /* {label} */")?;
            }
            for address in part {
                match address {
                    Some(Address { allocation, offset, size }) => {
                        write!(line, " {{{allocation}, {}, {}}},", number(offset.0), number(size.0))?;
                    }
                    None => line.push_str(" {MEMPLAN_NONE, 0, 0},"),
                }
            }
        }
        match &*line {
            "" => {}
            line => writeln!(self.text, "    /* {title} */{line}")?,
        }
        Ok(places)
    }
}

fn launch_kind(kind: LaunchKind) -> &'static str {
    match kind {
        LaunchKind::Kernel => "MEMPLAN_KERNEL",
        LaunchKind::Start => "MEMPLAN_START",
        LaunchKind::Done => "MEMPLAN_DONE",
        LaunchKind::While => "MEMPLAN_WHILE",
        LaunchKind::Conditional => "MEMPLAN_CONDITIONAL",
        LaunchKind::Call => "MEMPLAN_CALL",
        LaunchKind::Table => "MEMPLAN_TABLE",
    }
}

fn call_role(role: CallRole) -> &'static str {
    match role {
        CallRole::Condition => "MEMPLAN_CONDITION",
        CallRole::Body => "MEMPLAN_BODY",
        CallRole::Branch => "MEMPLAN_BRANCH",
        CallRole::Callee => "MEMPLAN_CALLEE",
    }
}
