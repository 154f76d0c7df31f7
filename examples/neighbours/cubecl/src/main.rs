//! Steps that other examples recorded, replayed in cubecl's memory manager, and packed.
//!
//!     cargo run --release -- FOLDER/*.csv
//!
//! cubecl's manager runs here as it does for its CPU tests: with storage in main memory, and pages of 128 MiB at most.

use std::collections::BTreeMap;
use std::sync::Arc;

use cubecl_ir::MemoryDeviceProperties;
use cubecl_runtime::logging::ServerLogger;
use cubecl_runtime::memory_management::{MemoryConfiguration, MemoryManagement, MemoryManagementOptions};
use cubecl_runtime::storage::BytesStorage;
use memplan_pack::table::Table;
use memplan_pack::{Options, Problem, minimize};

fn main() {
    for path in std::env::args().skip(1) {
        let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let problem = Table::parse(&text).unwrap_or_else(|error| panic!("{path}:{error}")).problem;
        let packing = minimize(&problem, &Options::default()).expect("recorded steps are problems");
        let sliced = reserved(&problem, MemoryConfiguration::SubSlices);
        let exclusive = reserved(&problem, MemoryConfiguration::ExclusivePages);
        println!("{path}: {} allocations", problem.items.len());
        println!("cubecl, slices of pages  {sliced:>11} bytes");
        println!("cubecl, exclusive pages  {exclusive:>11} bytes");
        let (ours, bound) = (packing.height, packing.certificate.lower_bound);
        let shares = (ours as f64 / sliced as f64, ours as f64 / exclusive as f64);
        println!(
            "memplan                  {ours:>11} bytes, {:.3} and {:.3} of that, bound {bound}",
            shares.0, shares.1
        );
    }
}

/// The bytes that the manager has reserved after a step.
fn reserved(problem: &Problem, configuration: MemoryConfiguration) -> u64 {
    let properties = MemoryDeviceProperties { max_page_size: 128 << 20, alignment: 256 };
    let mut manager = MemoryManagement::from_configuration(
        BytesStorage::default(),
        &properties,
        configuration,
        Arc::new(ServerLogger::default()),
        MemoryManagementOptions::new("step"),
    );
    // What ends at a time makes room for what begins there.
    let mut events: BTreeMap<(u64, bool), Vec<usize>> = BTreeMap::new();
    for (index, item) in problem.items.iter().enumerate() {
        events.entry((item.lower, true)).or_default().push(index);
        events.entry((item.upper, false)).or_default().push(index);
    }
    let mut handles = BTreeMap::new();
    for ((_, begins), items) in events {
        for index in items {
            if begins {
                let handle = manager.reserve(problem.items[index].size).expect("the page is large enough");
                handles.insert(index, handle);
            } else {
                handles.remove(&index);
            }
        }
    }
    manager.memory_usage().bytes_reserved
}
