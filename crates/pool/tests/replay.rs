//! Traces and their replay.

use std::time::Duration;

use memplan_memory::{Alignment, Bytes};
use memplan_pool::bfc::{Bfc, Options};
use memplan_pool::replay::{Outcome, Platform, RETRY_TIME, Replay, replay, smallest_pool};
use memplan_pool::trace::{AllocationIndex, Event, Lifetime, Trace};
use memplan_pool::{End, Request};
use proptest::prelude::*;

const KIB: u64 = 1 << 10;

fn parse(text: &str) -> Trace {
    Trace::parse(text.as_bytes()).unwrap()
}

fn run(trace: &Trace, bytes: u64, patience: Option<Duration>) -> Replay {
    replay(&mut Bfc::new(Options::preallocated(Bytes(bytes))), trace, patience)
}

#[test]
fn columns_come_in_any_order() {
    let trace = parse(
        "time,size,event,id,tag,alignment\r\n0,100,alloc,a,,\n\n 0.5 , 7 ,alloc, b ,collective,4096\n,,sync,,,\n2,,free,a,,\n",
    );
    let request = Request::new(Bytes(7)).at(End::Lower).aligned(Alignment::new(4096).unwrap());
    assert_eq!(trace[AllocationIndex(1)].request, request);
    assert_eq!(&*trace[AllocationIndex(1)].name, "b");
    let events: Vec<Event> = trace.events().iter().map(|timed| timed.event).collect();
    let [a, b] = [0, 1].map(AllocationIndex);
    assert_eq!(events, [Event::Allocate(a), Event::Allocate(b), Event::Synchronize, Event::Free(a)]);
    let times: Vec<u128> = trace.events().iter().map(|timed| timed.time.as_millis()).collect();
    assert_eq!(times, [0, 500, 500, 2000]);
}

#[test]
fn names_may_be_quoted_and_a_mark_may_stand_first() {
    let trace = parse("\u{feff}event,id,size\nalloc,\"a, \"\"b\"\"\",7\nfree,\"a, \"\"b\"\"\",\n");
    assert_eq!((&*trace[AllocationIndex(0)].name, trace.events().len()), ("a, \"b\"", 2));
}

#[test]
fn what_is_written_is_read_again() {
    let trace = parse(
        "event,id,size,alignment,tag,time\nalloc,a b,7,512,collective,0.25\nsync,,,,,1\nfree,a b,,,,2\n",
    );
    let expected =
        "event,id,size,alignment,tag,time\nalloc,a_b#0,7,512,collective,0.25\nsync,,,,,1\nfree,a_b#0,,,,2\n";
    assert_eq!(trace.to_csv(), expected);
    assert_eq!(parse(expected).events(), trace.events());
}

#[test]
fn names_are_free_again_after_a_free() {
    let trace = parse("event,id,size\nalloc,a,1\nfree,a,\nalloc,a,2\n");
    assert_eq!(trace.allocations().len(), 2);
}

#[test]
fn errors_say_where() {
    let cases = [
        ("", "1:1: the header has no column `event`; event, id and size are required"),
        ("event,id\n", "1:1: the header has no column `size`; event, id and size are required"),
        ("event,id,size,id\n", "1:15: the header has the column `id` twice"),
        ("event,id,size,color\n", "1:15: `color` is not a column of a trace; the columns are"),
        ("event,id,size\nalloc,a\n", "2:8: the line has 2 fields, the header has 3"),
        ("event,id,size\nalloc,a,1,2\n", "2:11: the line has more fields than the 3 of the header"),
        ("event,id,size\nfoo,a,1\n", "2:1: `foo` is not an event; the events are alloc, free and sync"),
        ("event,id,size\nalloc,a, -1\n", "2:10: `-1` is not a whole number of bytes"),
        (
            "event,id,size\nalloc,a,99999999999999999999\n",
            "2:9: `99999999999999999999` is not a whole number",
        ),
        ("event,id,size\nalloc,a,1\nalloc,a,1\n", "3:7: `a` is allocated already"),
        ("event,id,size\nalloc,a,1\nfree,b,\n", "3:6: `b` is not allocated"),
        ("event,id,size,alignment\nalloc,a,1,12\n", "2:11: `12` is not a power of two"),
        ("event,id,size,time\nalloc,a,1,soon\n", "2:11: `soon` is not a number of seconds"),
        ("event,id,size,time\nalloc,a,1,-1\n", "2:11: `-1` is not a number of seconds"),
        ("event,id,size,time\nalloc,a,1,2\nfree,a,,1\n", "3:9: the time is before that of the event above"),
    ];
    for (text, expected) in cases {
        let message = Trace::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}\ninstead of\n{expected}");
    }
    let message = Trace::parse(b"event,id,size\nalloc,\xff,1").unwrap_err().to_string();
    assert_eq!(message, "2:7: the file is not UTF-8 from here on");
}

#[test]
fn a_failed_request_is_no_reason_to_stop() {
    let trace = parse("event,id,size\nalloc,a,3000\nalloc,b,3000\nalloc,z,0\nfree,b,\nalloc,c,1000\n");
    let result = run(&trace, 4 * KIB, None);
    let served = |address, event| Outcome::Served { address, event };
    // 3000 bytes of 4096 leave less than half: the whole chunk is given.
    assert_eq!(result.outcomes, [served(0, 0), Outcome::Failed, Outcome::Empty, Outcome::Failed]);
    assert_eq!((result.failures(), result.waits(&trace)), (2, 0));
    assert_eq!(result.peak(|sample| sample.in_use), (0, Bytes(4096)));
}

#[test]
fn a_patient_request_waits_for_others() {
    let text = |when| {
        format!(
            "event,id,size,time\nalloc,a,3072,0\nalloc,b,2048,1\nalloc,c,2048,1\nfree,a,,{when}\nfree,c,,{when}\n"
        )
    };
    let trace = parse(&text("10.9"));
    let result = run(&trace, 4 * KIB, Some(RETRY_TIME));
    let served = |address, event| Outcome::Served { address, event };
    assert_eq!(result.outcomes, [served(0, 0), served(0, 3), served(2048, 3)]);
    assert_eq!(result.waits(&trace), 2);
    assert_eq!(result.samples.last().unwrap().in_use, Bytes(2048), "what had to wait is freed too");
    assert_eq!(run(&trace, 4 * KIB, None).failures(), 2);
    let late = parse(&text("11.1"));
    assert_eq!(run(&late, 4 * KIB, Some(RETRY_TIME)).failures(), 2, "ten seconds are enough");
}

#[test]
fn a_device_that_has_come_past_frees_lets_them_merge() {
    let text = |sync: &str| {
        format!("event,id,size\nalloc,a,2048\nalloc,b,2048\nfree,a,\nfree,b,\n{sync}alloc,c,256\n")
    };
    let chunks = |sync: &str| {
        let options = Options { timestamps: true, ..Options::preallocated(Bytes(4 * KIB)) };
        let mut pool = Bfc::new(options);
        replay(&mut pool, &parse(&text(sync)), None);
        pool.chunks().count()
    };
    assert_eq!((chunks("sync,,\n"), chunks("")), (2, 3));
}

#[test]
fn the_platform_holds_what_is_in_use() {
    let trace = parse("event,id,size\nalloc,a,1000\nalloc,b,300\nfree,a,\nalloc,c,4000\n");
    let result = replay(&mut Platform::new(Bytes(4 * KIB)), &trace, None);
    let held: Vec<u64> = result.samples.iter().map(|sample| sample.reserved.0).collect();
    assert_eq!((held, result.failures()), (vec![1024, 1536, 512, 512], 1));
}

#[test]
fn what_ends_is_freed_before_what_begins() {
    let lifetime = |name, start, end| Lifetime { name, request: Request::new(Bytes(1)), start, end };
    let values = [
        lifetime("b", 2, Some(4)),
        lifetime("a", 0, Some(2)),
        lifetime("none", 3, Some(3)),
        lifetime("out", 1, None),
    ];
    let trace = Trace::of_lifetimes(values);
    let events: Vec<String> = trace
        .events()
        .iter()
        .map(|timed| match timed.event {
            Event::Allocate(index) => format!("+{}", trace[index].name),
            Event::Free(index) => format!("-{}", trace[index].name),
            Event::Synchronize => unreachable!(),
        })
        .collect();
    assert_eq!(events, ["+a", "+out", "-a", "+b", "-b"]);
}

#[test]
fn nothing_needs_no_pool() {
    let most = Options::preallocated(Bytes(KIB));
    for text in ["event,id,size\n", "event,id,size\nalloc,a,0\nfree,a,\n"] {
        assert_eq!(smallest_pool(&parse(text), most), Some(Bytes(0)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_smallest_pool_is_enough(lives in prop::collection::vec((1u64..1 << 16, 0u64..50, 1u64..20), 1..60)) {
        let lifetime = |&(bytes, start, length): &(u64, u64, u64)| {
            Lifetime { name: "", request: Request::new(Bytes(bytes)), start, end: Some(start + length) }
        };
        let trace = Trace::of_lifetimes(lives.iter().map(lifetime));
        let smallest = smallest_pool(&trace, Options::preallocated(Bytes(1 << 40))).unwrap();
        let result = run(&trace, smallest.0, None);
        prop_assert_eq!(result.failures(), 0);
        prop_assert!(result.peak(|sample| sample.requested).1 <= smallest);
        prop_assert_eq!(&result, &run(&trace, smallest.0, None), "the same numbers again");
        let written = trace.to_csv();
        let read = parse(&written);
        prop_assert_eq!(&result, &run(&read, smallest.0, None), "and again from a file");
        prop_assert_eq!(read.allocations().len(), trace.allocations().len());
    }
    /// Whatever the bytes, there is a trace that can be replayed, or an error at a line that is there.
    #[test]
    fn any_bytes_are_read_or_refused(lines in prop::collection::vec(
        "(alloc|free|sync|x)?,?(a|b|é)?,?(0|7|-1|18446744073709551615)?,?(1|3|64)?,?(collective)?,?(0|1|nan|1e400)?", 0..12,
    ), shuffled: bool) {
        let header = if shuffled { "time,size,id,event\n" } else { "event,id,size,alignment,tag,time\n" };
        let text = header.to_string() + &lines.join("\n");
        match Trace::parse(text.as_bytes()) {
            Ok(trace) => prop_assert_eq!(run(&trace, KIB, Some(RETRY_TIME)).samples.len(), trace.events().len()),
            Err(error) => prop_assert!((1..=text.lines().count()).contains(&error.line) && error.column >= 1),
        }
    }
}
