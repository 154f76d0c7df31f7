//! How other people's allocators would be written on this crate: what each is asked, in its own terms, answered by a packing.
//!
//! `cargo run -p memplan-pack --example neighbours`; docs/neighbours.md says how these projects allocate today, and what their
//! own problems take with either.

#![expect(clippy::print_stdout, reason = "a program, not a library")]

use memplan_pack::Error;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tract::show()?;
    tinygrad::show()?;
    luminal::show()?;
    eager::show()
}

/// tract's GPU backends resolve a memory schema: lifetimes in steps and sizes in, offsets and the size of the arena out.
mod tract {
    use super::Error;
    use memplan_pack::{Item, Options, Problem, minimize};

    struct NodeMemReq {
        lifetime: std::ops::Range<usize>,
        mem_size: usize,
    }

    struct MemSchema {
        offsets: Vec<usize>,
        memory_size: usize,
    }

    fn build(nodes: &[NodeMemReq], alignment: usize) -> Result<MemSchema, Error> {
        let mut problem = Problem::new();
        for NodeMemReq { lifetime, mem_size } in nodes {
            let live = lifetime.start as u64..lifetime.end as u64;
            problem.push(Item::new(*mem_size as u64, live).aligned(alignment as u64));
        }
        let packing = minimize(&problem, &Options::default())?;
        let offsets = packing.offsets.iter().map(|&offset| offset as usize).collect();
        Ok(MemSchema { offsets, memory_size: packing.height as usize })
    }

    pub(super) fn show() -> Result<(), Error> {
        let nodes = [(0..2, 4096), (1..3, 1024), (2..4, 3072), (3..5, 2048), (4..6, 3072)];
        let nodes = nodes.map(|(lifetime, mem_size)| NodeMemReq { lifetime, mem_size });
        let schema = build(&nodes, 32)?;
        println!("tract: {:?} in {} bytes", schema.offsets, schema.memory_size);
        Ok(())
    }
}

/// tinygrad replaces the buffers of a list of kernels by views of one arena for each device, and keeps copies apart.
mod tinygrad {
    use super::Error;
    use memplan_pack::{Item, Options, Problem, minimize};
    use std::collections::BTreeMap;

    /// A device, and whether what is there is copied.
    type Lane = (&'static str, bool);

    struct Buffer {
        lane: Lane,
        bytes: u64,
        /// Somebody outside has it.
        is_held: bool,
    }

    #[derive(Default)]
    struct Plan {
        /// How large each lane's arena is.
        arenas: BTreeMap<Lane, u64>,
        /// Where each buffer that is not held is in the arena of its lane.
        offsets: BTreeMap<usize, u64>,
    }

    fn memory_plan(kernels: &[&[usize]], buffers: &[Buffer]) -> Result<Plan, Error> {
        let mut lanes: BTreeMap<Lane, (Problem, Vec<usize>)> = BTreeMap::new();
        for (id, buffer) in buffers.iter().enumerate().filter(|(_, buffer)| !buffer.is_held) {
            let mut uses =
                (0_u64..).zip(kernels).filter(|(_, uses)| uses.contains(&id)).map(|(time, _)| time);
            let Some(first) = uses.next() else { continue };
            let last = uses.last().unwrap_or(first);
            let (problem, ids) = lanes.entry(buffer.lane).or_default();
            problem.push(Item::new(buffer.bytes, first..last + 1).aligned(256));
            ids.push(id);
        }
        let mut plan = Plan::default();
        for (lane, (problem, ids)) in lanes {
            let packing = minimize(&problem, &Options::default())?;
            plan.arenas.insert(lane, packing.height);
            plan.offsets.extend(ids.into_iter().zip(packing.offsets));
        }
        Ok(plan)
    }

    pub(super) fn show() -> Result<(), Error> {
        let buffer = |bytes, is_held| Buffer { lane: ("GPU", false), bytes, is_held };
        let buffers = [buffer(1 << 20, true), buffer(4096, false), buffer(2048, false), buffer(4096, false)];
        let kernels: [&[usize]; 3] = [&[1, 0], &[2, 1], &[3, 2]];
        let Plan { arenas, offsets } = memory_plan(&kernels, &buffers)?;
        println!("tinygrad: {offsets:?} in {arenas:?}");
        Ok(())
    }
}

/// luminal gives the nodes of a sorted graph buffers for their outputs, which live until the last reader, and for their
/// intermediates, which live while the node runs. What the caller retrieves is never deleted.
mod luminal {
    use super::Error;
    use memplan_pack::{Item, Options, Problem, minimize};

    struct Node {
        sources: Vec<usize>,
        output_bytes: u64,
        intermediate_bytes: Vec<u64>,
        no_delete: bool,
    }

    /// Offsets in the one buffer that all are in.
    struct Places {
        output: u64,
        intermediates: Vec<u64>,
    }

    /// The places of each node, and the bytes of the buffer.
    fn storage_buffers(sorted: &[Node]) -> Result<(Vec<Places>, u64), Error> {
        let end = sorted.len() as u64;
        let last_reader = |node: usize| {
            let reads = |time: &usize| sorted[*time].sources.contains(&node);
            if sorted[node].no_delete {
                end
            } else {
                (node..sorted.len()).rfind(reads).unwrap_or(node) as u64 + 1
            }
        };
        let mut problem = Problem::new();
        for (node, Node { output_bytes, intermediate_bytes, .. }) in sorted.iter().enumerate() {
            let now = node as u64;
            problem.push(Item::new(*output_bytes, now..last_reader(node)).aligned(256));
            for &bytes in intermediate_bytes {
                problem.push(Item::new(bytes, now..now + 1).aligned(256));
            }
        }
        let packing = minimize(&problem, &Options::default())?;
        let mut offsets = packing.offsets.into_iter();
        let of_node = |node: &Node| {
            let output = offsets.next().expect("every node has an output");
            Places { output, intermediates: offsets.by_ref().take(node.intermediate_bytes.len()).collect() }
        };
        Ok((sorted.iter().map(of_node).collect(), packing.height))
    }

    pub(super) fn show() -> Result<(), Error> {
        let node = |sources: &[usize], output_bytes, intermediate_bytes: &[u64], no_delete| Node {
            sources: sources.to_vec(),
            output_bytes,
            intermediate_bytes: intermediate_bytes.to_vec(),
            no_delete,
        };
        let sorted = [
            node(&[], 4096, &[], false),
            node(&[0], 2048, &[1024], false),
            node(&[0, 1], 2048, &[], false),
            node(&[2], 4096, &[512], true),
        ];
        let (places, bytes) = storage_buffers(&sorted)?;
        let outputs: Vec<u64> = places.iter().map(|places| places.output).collect();
        let intermediates: Vec<&[u64]> = places.iter().map(|places| &*places.intermediates).collect();
        println!("luminal: outputs {outputs:?}, intermediates {intermediates:?} in {bytes} bytes");
        Ok(())
    }
}

/// candle's devices and cubecl's memory manager hand out buffers that come back when their last handle is dropped. There is no
/// graph: the first step is recorded, and all others get the offsets that were found for it.
mod eager {
    use memplan_pack::{Options, Recording, Replay};
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Device(Rc<RefCell<Mode>>);

    enum Mode {
        /// The pool of today hands out memory, and the calls are noted.
        Record(Recording),
        /// All memory is one block.
        Replay(Replay),
    }

    /// A buffer; its clones share it.
    type Handle = Rc<Buffer>;

    struct Buffer {
        device: Rc<RefCell<Mode>>,
        number: usize,
        /// Its place in the block; `None` while a step is recorded.
        offset: Option<u64>,
    }

    impl Device {
        fn new(mode: Mode) -> Device {
            Device(Rc::new(RefCell::new(mode)))
        }

        /// Without a place: the step differs from the recorded one, so that the pool of today has to go on with it.
        fn reserve(&self, bytes: u64) -> Option<Handle> {
            let (number, offset) = match &mut *self.0.borrow_mut() {
                Mode::Record(recording) => (recording.allocate(bytes), None),
                Mode::Replay(replay) => {
                    let placed = replay.allocate(bytes).ok()?;
                    (placed.number, Some(placed.offset))
                }
            };
            Some(Rc::new(Buffer { device: self.0.clone(), number, offset }))
        }
    }

    impl Drop for Buffer {
        fn drop(&mut self) {
            let freed = match &mut *self.device.borrow_mut() {
                Mode::Record(recording) => recording.free(self.number),
                Mode::Replay(replay) => replay.free(self.number),
            };
            freed.expect("the step frees as it did when it was recorded");
        }
    }

    /// Two layers, each with a temporary of its own. Returns where everything was.
    fn step(device: &Device, batch: u64) -> Option<Vec<Option<u64>>> {
        let mut x = device.reserve(1024 * batch)?;
        let mut places = vec![x.offset];
        for _ in 0..2 {
            let wide = device.reserve(4096 * batch)?;
            let narrow = device.reserve(1024 * batch)?;
            places.extend([wide.offset, narrow.offset]);
            x = narrow;
        }
        drop(x);
        Some(places)
    }

    pub(super) fn show() -> Result<(), Box<dyn std::error::Error>> {
        let recorder = Device::new(Mode::Record(Recording::new(256)));
        step(&recorder, 8).ok_or("recording refuses nothing")?;
        let Mode::Record(recording) = &*recorder.0.borrow() else { return Err("it recorded".into()) };
        let packed = recording.clone().pack(&Options::default())?;

        let same = Device::new(Mode::Replay(packed.replay()));
        let places = step(&same, 8).ok_or("the step is the same")?;
        println!("candle, cubecl: {places:?} in {} bytes", packed.bytes());
        let other = Device::new(Mode::Replay(packed.replay()));
        println!("candle, cubecl: another batch has a place: {}", step(&other, 9).is_some());
        Ok(())
    }
}
