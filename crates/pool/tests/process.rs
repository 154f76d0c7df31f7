//! A plan in a GPU process, for each way in which the process gets its memory.

use memplan_ir::ShapeIndex;
use memplan_memory::{Allocation, AllocationKind, Bytes, MemoryPlan, MemorySpaceId, Target};
use memplan_pool::process::{AllocatorKind, MemoryFraction, Placement, Settings, place};

const MIB: u64 = 1 << 20;

/// A device of 1000 MiB.
fn target() -> Target {
    let mut target = Target::find("gpu-h100").unwrap();
    target.spaces[0].capacity = Some(Bytes(1000 * MIB));
    target
}

/// Argument, result, arena, of so many MiB; and allocations in other spaces, in bytes.
fn plan(sizes: [u64; 3], others: &[(u32, u64)]) -> MemoryPlan {
    let target = target();
    let mut plan = MemoryPlan::default();
    let argument = AllocationKind::Argument { parameter: 0, index: ShapeIndex::default() };
    let main = [argument, AllocationKind::Output, AllocationKind::Temp].into_iter().zip(sizes);
    let main = main.map(|(kind, mib)| (kind, 0, mib * MIB));
    let others = others.iter().map(|&(space, bytes)| (AllocationKind::Temp, space, bytes));
    for (kind, space, bytes) in main.chain(others) {
        let space = MemorySpaceId(space);
        plan.allocations.push(Allocation {
            kind,
            space,
            size: Bytes(bytes),
            alignment: target.alignment(space),
            live_out: false,
        });
    }
    plan
}

fn with(settings: Settings, sizes: [u64; 3]) -> Placement {
    place(&target(), &plan(sizes, &[]), &settings).unwrap()
}

fn allocator(allocator: AllocatorKind) -> Settings {
    Settings { allocator, ..Settings::default() }
}

#[test]
fn three_quarters_are_taken_at_the_start() {
    let found = with(Settings::default(), [100, 100, 100]);
    assert_eq!(
        (found.at_start, found.limit, found.held),
        (Bytes(750 * MIB), Bytes(750 * MIB), Bytes(750 * MIB))
    );
    assert_eq!(
        (found.program, found.taken, found.largest_free),
        (Bytes(300 * MIB), Bytes(300 * MIB), Bytes(450 * MIB))
    );
    assert_eq!(
        found.to_string(),
        "When the process starts, its pool takes 750.00 MiB of the device's 1000.00 MiB (XLA_CLIENT_MEM_FRACTION is \
         0.75), which leaves 250.00 MiB to everything else. The program needs 300.00 MiB in 3 allocations. It fits: the \
         process holds 750.00 MiB then, and the largest piece left free is 450.00 MiB."
    );
}

#[test]
fn what_does_not_fit_is_named_with_what_would_do() {
    let found = with(Settings::default(), [500, 100, 200]);
    assert!(found.to_string().ends_with(
        "It does NOT fit: for the arena of 200.00 MiB, the largest free piece is 150.00 MiB. A share of 0.8 would suffice."
    ));
    let fraction = "0.8".parse().unwrap();
    assert_eq!(with(Settings { fraction, ..Settings::default() }, [500, 100, 200]).shortage, None);
    let found = with(Settings::default(), [800, 100, 200]);
    assert_eq!(found.shortage.as_ref().map(|s| (s.what, s.enough)), Some(("an argument", None)));
    assert!(found.to_string().ends_with("The device is too small."));
}

#[test]
fn a_rest_below_the_waste_limit_is_given_too() {
    // 700 of 750 MiB: the rest of 50 stays with the chunk, and nothing is free.
    let found = with(Settings::default(), [0, 0, 700]);
    assert_eq!(
        (found.program, found.taken, found.largest_free),
        (Bytes(700 * MIB), Bytes(750 * MIB), Bytes(0))
    );
    assert!(found.to_string().contains("in one allocation, 50.00 MiB more with rounding."));
}

#[test]
fn a_pool_may_start_empty() {
    let found = with(Settings { preallocate: false, ..Settings::default() }, [100, 100, 100]);
    assert_eq!((found.at_start, found.limit, found.shortage), (Bytes(0), Bytes(750 * MIB), None));
    // Regions of 128, 256 and 366 MiB: each request asks for a larger one than the last left.
    assert!(found.held >= Bytes(300 * MIB) && found.held <= Bytes(750 * MIB));
    assert!(found.to_string().starts_with(
        "The process starts with nothing, and its pool grows as it is needed, up to 750.00 MiB of the device's"
    ));
    assert!(found.to_string().contains(&format!("the process holds {} then", found.held)));
}

#[test]
fn the_platform_reserves_nothing() {
    let found = with(allocator(AllocatorKind::Platform), [500, 200, 200]);
    assert_eq!((found.at_start, found.limit, found.shortage), (Bytes(0), Bytes(1000 * MIB), None));
    assert!(
        found
            .to_string()
            .starts_with("The process has no pool: every buffer is allocated from the device, which has")
    );
    assert!(!found.to_string().contains("XLA_CLIENT_MEM_FRACTION"));
    let settings = Settings { fraction: "0.5".parse().unwrap(), ..allocator(AllocatorKind::Platform) };
    let found = with(settings, [500, 200, 200]);
    assert_eq!(found.shortage, None);
    assert!(found.to_string().contains("XLA_CLIENT_MEM_FRACTION is for pools and changes nothing."));
    let found = with(allocator(AllocatorKind::Vmm), [1, 1, 1]);
    assert_eq!(found.taken, Bytes(6 * MIB), "whole pages");
    let found = with(allocator(AllocatorKind::CudaAsync), [500, 200, 200]);
    assert!(found.to_string().starts_with("When the process starts, the driver's pool takes 750.00 MiB"));
    assert_eq!(found.shortage.map(|s| s.enough), Some("0.9".parse().ok()));
}

#[test]
fn collective_and_host_memory_lie_beside_the_pool() {
    let plan = plan([100, 100, 100], &[(1, 3 * MIB), (5, 1000)]);
    let found = place(&target(), &plan, &Settings::default()).unwrap();
    assert_eq!((found.collective, found.host), (Bytes(4 * MIB), Bytes(1000)), "pages of 2 MiB, plain bytes");
    assert_eq!((found.program, found.held), (Bytes(300 * MIB), Bytes(754 * MIB)));
    assert!(
        found.to_string().contains("4.00 MiB of collective memory are mapped in addition. 1000 B are pinned")
    );
    let settings = Settings { collective: Bytes(512 * MIB), ..Settings::default() };
    let found = place(&target(), &plan, &settings).unwrap();
    assert_eq!(
        (found.limit, found.at_start),
        (Bytes(488 * MIB), Bytes(1000 * MIB)),
        "what is set aside is gone"
    );
    assert!(found.to_string().contains("else. 512.00 MiB are set aside for collective memory. The program"));
}

#[test]
fn temporaries_of_their_own_space_are_in_the_pool_too() {
    let found = place(&target(), &plan([100, 100, 100], &[(2, 50 * MIB)]), &Settings::default()).unwrap();
    assert_eq!((found.program, found.taken), (Bytes(350 * MIB), Bytes(350 * MIB)));
}

#[test]
fn fractions_are_shares() {
    let of = |text: &str| text.parse::<MemoryFraction>().map(|fraction| fraction.of(Bytes(1000)));
    assert_eq!(of("0.75"), Ok(Bytes(750)));
    assert_eq!(of(" 1 "), Ok(Bytes(1000)));
    assert_eq!(MemoryFraction::default().of(Bytes(1001)), Bytes(750));
    for text in ["", "0", "-0.5", "1.5", "0.5-0.9", "0.75+", "nan", "half"] {
        let message = of(text).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("`{text}` is not a share of a device's memory; expected a number above 0 and at most 1")
        );
    }
}

#[test]
fn a_device_without_capacity_is_no_place() {
    let mut target = target();
    target.spaces[0].capacity = None;
    assert_eq!(place(&target, &plan([1, 1, 1], &[]), &Settings::default()), None);
}
