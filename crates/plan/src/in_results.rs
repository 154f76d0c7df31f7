//! Temps in the memory of results and donated arguments, as XLA's buffer assignment puts them there.
//!
//! ```text
//!   address            the result's allocation exists for the whole run,
//!     ^  +---+----+----------+        but holds the result only at the end
//!     |  | t | u  |  result  |
//!     +--+---+----+----------+--> time    u is written over t, the result over u
//! ```
//!
//! XLA gives results and arguments their allocations first. Then every temp, the largest first, goes into the first of them
//! that it fits into and in which nothing else is while it is live: that of an operand, else the smallest one. Temps that
//! fit nowhere are packed later. What may be written over an operand does not interfere with it, but each of the two is
//! placed alone.

use std::cmp::Reverse;

use cranelift_entity::SecondaryMap;
use memplan_program::Program;
use memplan_units::{Alignment, Bytes, Machine};

use crate::HoleOptions;
use crate::storage::{StorageId, StorageKind, Storages, TakeOver};

/// Makes one storage of each result or argument and the temps in its memory.
pub(crate) fn place(
    mut storages: Storages,
    program: &impl Program,
    machine: &dyn Machine,
    policy: TakeOver,
    options: &HoleOptions,
) -> Storages {
    let mut hosts: Vec<Host> = Vec::new();
    let mut temps: Vec<StorageId> = Vec::new();
    for (id, storage) in storages.all.iter().filter(|(_, storage)| storage.size > Bytes::ZERO) {
        let alignment = machine.alignment(storage.space);
        let size = match storage.kind {
            StorageKind::Temp => {
                temps.push(id);
                continue;
            }
            StorageKind::Argument if storages.is_writable(storage) => storages.argument_of(storage),
            StorageKind::Output => storage.size,
            _ => continue,
        };
        let is_argument = storage.kind == StorageKind::Argument;
        let own = if is_argument { machine.argument_alignment().max(storage.alignment) } else { alignment };
        hosts.push(Host { storage: id, size, alignment: own.min(alignment) });
    }
    let turn = |storage: StorageId| {
        storages.all[storage].values.iter().map(|&value| program.turn(value)).min().unwrap_or_default()
    };
    // Of equal ones, XLA takes the newest.
    hosts.sort_by_cached_key(|host| (host.size, Reverse(turn(host.storage))));
    temps.sort_by_cached_key(|&temp| (Reverse(storages.all[temp].size), turn(temp)));
    let mut host_of: SecondaryMap<StorageId, Option<usize>> = SecondaryMap::new();
    hosts.iter().enumerate().for_each(|(i, host)| host_of[host.storage] = Some(i));
    let mut looks = 0;
    for temp in temps {
        let size = storages.all[temp].size;
        let first = hosts.partition_point(|host| host.size < size);
        let operands = operands_of(&storages, program, temp);
        let mut near: Vec<usize> = operands.filter_map(|operand| host_of[operand]).collect();
        near.retain(|&i| i >= first);
        near.sort_unstable();
        near.dedup();
        let fits = |&i: &usize| {
            looks += 1 + storages.all[hosts[i].storage].busy.len();
            let (host, temp_storage) = (&hosts[i], &storages.all[temp]);
            storages.all[host.storage].space == temp_storage.space
                && temp_storage.alignment <= host.alignment
                && storages.never_interfere(program, policy, temp, host.storage)
        };
        let found = near.into_iter().chain(first..hosts.len()).take(options.tries).find(fits);
        if let Some(i) = found {
            hosts[i].storage = storages.merge(temp, hosts[i].storage);
            host_of[hosts[i].storage] = Some(i);
        }
        if looks > options.looks {
            break;
        }
    }
    storages
}

/// Memory of a result or an argument.
struct Host {
    storage: StorageId,
    size: Bytes,
    alignment: Alignment,
}

/// The storages that are read by the step that writes a temp first.
fn operands_of(
    storages: &Storages,
    program: &impl Program,
    temp: StorageId,
) -> impl Iterator<Item = StorageId> {
    let first = storages.all[temp].busy.first();
    first.into_iter().flat_map(|first| program.reads(first.start)).map(|value| storages.of(value))
}
