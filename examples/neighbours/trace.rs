//! What a library that computes on the CPU allocates in one step: a global allocator that takes notes, and what they say.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::Mutex;

use memplan_pack::{Options, PackedStep, Recording};

/// The system's allocator, which notes blocks of [`LEAST`] bytes or more while a step is recorded. Tensors are that large, and
/// what libraries keep beside them is not.
pub struct Notes;

const LEAST: usize = 4096;

/// An address, and the bytes that are allocated there, or 0 where they are given back. `None` while nothing is recorded.
static EVENTS: Mutex<Option<Vec<(usize, usize)>>> = Mutex::new(None);

fn note(address: usize, bytes: usize) {
    // Notes are never longer than what was reserved for them, so that taking one allocates nothing.
    if let Ok(mut events) = EVENTS.lock()
        && let Some(events) = &mut *events
        && events.len() < events.capacity()
    {
        events.push((address, bytes));
    }
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Notes {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those of the system's allocator.
        let block = unsafe { System.alloc(layout) };
        if layout.size() >= LEAST {
            note(block as usize, layout.size());
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if layout.size() >= LEAST {
            note(block as usize, 0);
        }
        // SAFETY: as above.
        unsafe { System.dealloc(block, layout) }
    }
}

/// What a step does, in the words of [`Recording`].
pub enum Call {
    Allocate { bytes: u64 },
    Free { number: usize },
}

/// Records what a step allocates, and what it gives back of that.
pub fn record(step: impl FnOnce()) -> Vec<Call> {
    *EVENTS.lock().unwrap() = Some(Vec::with_capacity(1 << 20));
    step();
    let events = EVENTS.lock().unwrap().take().unwrap();
    assert!(events.len() < events.capacity(), "the step is too long to be noted");
    let (mut live, mut n_allocations) = (HashMap::new(), 0);
    let mut calls = Vec::new();
    for (address, bytes) in events {
        if bytes > 0 {
            live.insert(address, n_allocations);
            n_allocations += 1;
            calls.push(Call::Allocate { bytes: bytes as u64 });
        } else if let Some(number) = live.remove(&address) {
            // What was there before the step, as weights are, is no part of it.
            calls.push(Call::Free { number });
        }
    }
    calls
}

/// What replaces an allocator: the step as a [`Recording`], packed.
pub fn pack(calls: &[Call]) -> PackedStep {
    let mut recording = Recording::new(256);
    for call in calls {
        match *call {
            Call::Allocate { bytes } => drop(recording.allocate(bytes)),
            Call::Free { number } => recording.free(number).expect("it is live"),
        }
    }
    recording.pack(&Options::default()).expect("the step fits in 64 bits")
}

/// The bytes that a pool holds after a step, which gives blocks of its own out again where they fit, and never splits them.
/// `block` says how large a block is made for a size; a free one is given out if `fits(block, size)`, the smallest first.
pub fn pool(calls: &[Call], block: impl Fn(u64) -> u64, fits: impl Fn(u64, u64) -> bool) -> u64 {
    let (mut free, mut held, mut total): (Vec<u64>, Vec<u64>, u64) = (Vec::new(), Vec::new(), 0);
    for call in calls {
        match *call {
            Call::Allocate { bytes } => {
                let found = (0..free.len()).filter(|&it| fits(free[it], bytes)).min_by_key(|&it| free[it]);
                let size = found.map_or_else(|| block(bytes), |it| free.swap_remove(it));
                total += if found.is_none() { size } else { 0 };
                held.push(size);
            }
            Call::Free { number } => free.push(held[number]),
        }
    }
    total
}

/// The step as a table that `memplan pack` and the example beside cubecl read.
pub fn write_csv(calls: &[Call], path: &str) -> std::io::Result<()> {
    let mut rows: Vec<(usize, usize, u64)> = Vec::new();
    for (time, call) in calls.iter().enumerate() {
        match *call {
            Call::Allocate { bytes } => rows.push((time, calls.len(), bytes)),
            Call::Free { number } => rows[number].1 = time,
        }
    }
    let mut text = String::from("id,lower,upper,size,alignment\n");
    for (id, (lower, upper, size)) in rows.iter().enumerate() {
        text += &format!("{id},{lower},{upper},{size},256\n");
    }
    std::fs::write(path, text)
}
