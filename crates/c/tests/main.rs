//! The library from C: its header, its example, and its errors.

#![expect(unsafe_code, reason = "calls what C calls")]

use std::any::type_name;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};

use memplan_c::*;
use memplan_pack::generate;

/// The C compiler takes the header together with declarations that are made of the Rust ones.
#[test]
fn the_header_says_what_the_library_has() {
    if !is_there("cc") {
        return;
    }
    let mut text = String::from("#include <memplan.h>\n");
    macro_rules! layout {
        ($($name:ident { $($field:ident),* })*) => {$(
            // Fails to compile where a field is not listed.
            let _ = |it: &$name| { let $name { $($field: _),* } = it; };
            let c = c_type(type_name::<$name>());
            text += &format!("_Static_assert(sizeof({c}) == {}, \"{c}\");\n", size_of::<$name>());
            $(text += &field(&c, stringify!($field), std::mem::offset_of!($name, $field), |it: &$name| &it.$field);)*
        )*};
    }
    layout! {
        Item { size, alignment, lower, upper }
        Problem { items, n_items, fixed, groups, capacity }
        Options { node_limit, time_limit_ms, seed, threads }
        Packing { height, lower_bound, nodes, is_optimal }
        Access { time, item }
        Overwrite { time, operand, result }
        Program { n_instants, reads, n_reads, writes, n_writes, overwrites, n_overwrites }
        Error { first, second, time, message }
    }
    macro_rules! constants {
        ($($name:ident)*) => {$(
            text += &format!("_Static_assert(MEMPLAN_{} == {}, \"\");\n", stringify!($name), $name);
        )*};
    }
    constants! { OK INFEASIBLE UNKNOWN BAD_POINTER BAD_PROBLEM MISPLACED BUG }
    text += &format!("_Static_assert(MEMPLAN_NONE == {NONE}u, \"\");\n");
    text += &declaration("memplan_default_options", memplan_default_options as extern "C" fn() -> _);
    text += &declaration("memplan_pack", memplan_pack as unsafe extern "C" fn(_, _, _, _, _) -> _);
    text += &declaration(
        "memplan_check_placement",
        memplan_check_placement as unsafe extern "C" fn(_, _, _, _, _) -> _,
    );
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("header.c");
    std::fs::write(&source, &text).unwrap();
    run(cc("cc").args(["-std=c11", "-fsyntax-only"]).arg(&source), &text);
    std::fs::write(&source, "#include <memplan.h>\n").unwrap();
    run(cc("cc").args(["-std=c99", "-fsyntax-only"]).arg(&source), "");
    if is_there("c++") {
        run(cc("c++").args(["-std=c++11", "-fsyntax-only", "-x", "c++"]).arg(&source), "");
    }
}

/// That a field is where it is in Rust, and has its type.
fn field<T, F>(c: &str, name: &str, offset: usize, _: impl Fn(&T) -> &F) -> String {
    let (size, kind) = (size_of::<F>(), c_type(type_name::<F>()));
    let it = format!("(({c} *)0)->{name}");
    format!(
        "_Static_assert(offsetof({c}, {name}) == {offset} && sizeof({it}) == {size}, \"{c}.{name}\");\n\
         _Static_assert(_Generic({it}, {kind}: 1, default: 0), \"type of {c}.{name}\");\n"
    )
}

/// A function as C declares it. A second declaration that differs from the first is an error.
fn declaration<F>(name: &str, _: F) -> String {
    let (_, signature) =
        type_name::<F>().split_once("extern \"C\" fn(").expect("functions have C's convention");
    let (arguments, result) = signature.split_once(") -> ").expect("functions return something");
    let arguments: Vec<String> = arguments.split(", ").filter(|it| !it.is_empty()).map(c_type).collect();
    let arguments = if arguments.is_empty() { "void".into() } else { arguments.join(", ") };
    format!("{} {name}({arguments});\n", c_type(result))
}

fn c_type(rust: &str) -> String {
    if let Some(target) = rust.strip_prefix("*const ") {
        return format!("const {} *", c_type(target));
    }
    if let Some(target) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(target));
    }
    match rust {
        "bool" => "bool".into(),
        "i32" => "int32_t".into(),
        "u32" => "uint32_t".into(),
        "u64" => "uint64_t".into(),
        "usize" => "size_t".into(),
        // As a selection of `_Generic` sees it.
        "[u8; 256]" => "char *".into(),
        path => format!("memplan_{}", path.rsplit("::").next().unwrap().to_lowercase()),
    }
}

#[test]
fn the_example_runs() {
    if !is_there("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("pack");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pack.c");
    let libraries = ["-lpthread", "-ldl", "-lm"];
    run(
        cc("cc").arg("-std=c99").arg("-o").arg(&program).arg(source).arg(static_library()).args(libraries),
        "",
    );
    let said = run(&mut Command::new(program), "");
    assert_eq!(
        said,
        "input     at 16384,  3000 bytes\n\
         features  at     0, 16384 bytes\n\
         activated at     0, 16384 bytes\n\
         pooled    at 16384,  4096 bytes\n\
         result    at     0,    40 bytes\n\
         20480 bytes, proved minimal\n\
         proved right, 20480 bytes in use at most\n\
         items 2 and 3 share bytes at instant 2: activated and pooled\n\
         the items need 20480 bytes at least, and there are 16384; at time 2, when most are live, \
         item 1 is the largest with 16384: features\n"
    );
}

/// The library that Cargo made of the crate beside these tests. Older ones may be left there from builds with other features.
fn static_library() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let entries = tests.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let is_one = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libmemplan_c-") && name.ends_with(".a")
    };
    let newest = entries.filter(is_one).max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("the crate is a static library")
}

fn cc(name: &str) -> Command {
    let mut command = Command::new(name);
    command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("include"));
    command
}

fn is_there(name: &str) -> bool {
    let is_there = Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("skipped: no `{name}` on this system");
    }
    is_there
}

/// What a command that succeeds writes. `input` is shown where it fails.
#[track_caller]
fn run(command: &mut Command, input: &str) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{input}{command:?}\n{out}{err}");
    out.into_owned()
}

fn no_error() -> Error {
    Error { first: 0, second: 0, time: 0, message: [1; 256] }
}

fn message(error: &Error) -> &str {
    let end = error.message.iter().position(|&byte| byte == 0).expect("messages end with a zero");
    std::str::from_utf8(&error.message[..end]).expect("messages are text")
}

fn posed(items: &[Item]) -> Problem {
    Problem { items: items.as_ptr(), n_items: items.len(), fixed: null(), groups: null(), capacity: 0 }
}

/// Status, message, culprits and time of packing.
fn pack(problem: &Problem) -> (i32, String, [u64; 3]) {
    let (mut error, mut offsets) = (no_error(), vec![0; problem.n_items.min(100)]);
    // SAFETY: problems of tests have arrays of `n_items` elements, or what is wrong with them is seen before they are read.
    let status = unsafe { memplan_pack(problem, null(), offsets.as_mut_ptr(), null_mut(), &mut error) };
    (status, message(&error).to_string(), [error.first, error.second, error.time])
}

/// Status, message, culprits and time of a check.
fn check(problem: &Problem, program: Option<&Program>, offsets: &[u64]) -> (i32, String, [u64; 3]) {
    let mut error = no_error();
    let program = program.map_or(null(), |program| program);
    // SAFETY: as above.
    let status =
        unsafe { memplan_check_placement(problem, program, offsets.as_ptr(), null_mut(), &mut error) };
    (status, message(&error).to_string(), [error.first, error.second, error.time])
}

const A: Item = Item { size: 64, alignment: 16, lower: 0, upper: 2 };
const B: Item = Item { size: 32, alignment: 16, lower: 1, upper: 3 };

#[track_caller]
fn says(found: (i32, String, [u64; 3]), status: i32, text: &str, culprits: [u64; 3]) {
    assert_eq!(found, (status, text.to_string(), culprits));
}

#[test]
fn pointers_are_looked_at_before_they_are_followed() {
    let mut error = no_error();
    // SAFETY: NULL is looked at.
    let status = unsafe { memplan_pack(null(), null(), null_mut(), null_mut(), &mut error) };
    assert_eq!((status, message(&error)), (BAD_POINTER, "problem is NULL"));
    // SAFETY: NULL is looked at.
    assert_eq!(unsafe { memplan_pack(null(), null(), null_mut(), null_mut(), null_mut()) }, BAD_POINTER);
    let items = [A, B];
    let nothing = [NONE; 3];
    says(pack(&posed(&[])), OK, "", nothing);
    says(pack(&Problem { items: null(), ..posed(&items) }), BAD_POINTER, "items is NULL", nothing);
    let odd = items.as_ptr().wrapping_byte_add(1);
    says(pack(&Problem { items: odd, ..posed(&items) }), BAD_POINTER, "items is not aligned", nothing);
    let endless = Problem { n_items: usize::MAX / 2, ..posed(&items) };
    let text = format!("items has {} elements, more than memory holds", usize::MAX / 2);
    says(pack(&endless), BAD_POINTER, &text, nothing);
    // SAFETY: NULL is looked at.
    let status = unsafe { memplan_pack(&posed(&items), null(), null_mut(), null_mut(), &mut error) };
    assert_eq!((status, message(&error)), (BAD_POINTER, "offsets is NULL"));
}

#[test]
fn contradictions_name_their_items() {
    let pair = [A, Item { alignment: 0, ..B }];
    says(pack(&posed(&pair)), BAD_PROBLEM, "item 1 has alignment 0", [1, NONE, NONE]);
    let pair = [A, Item { upper: 1, ..B }];
    says(pack(&posed(&pair)), BAD_PROBLEM, "item 1 is live in [1, 1), which is empty", [1, NONE, NONE]);
    let pair = [A, B];
    let fixed = [16, 64];
    let text = "items 0 and 1 are live together and fixed at overlapping bytes";
    says(pack(&Problem { fixed: fixed.as_ptr(), ..posed(&pair) }), BAD_PROBLEM, text, [0, 1, NONE]);
    let groups = [1, 1];
    let text = "item 0 is in the group of 1, which is not the first of a group";
    says(pack(&Problem { groups: groups.as_ptr(), ..posed(&pair) }), BAD_PROBLEM, text, [0, 1, NONE]);
    let large = [Item { size: u64::MAX, ..A }, B];
    says(pack(&posed(&large)), BAD_PROBLEM, "the items live together need more than 2^64 bytes", [NONE; 3]);
    let text = "the items need 96 bytes at least, and there are 95; at time 1, when most are live, \
                item 0 is the largest with 64";
    says(pack(&Problem { capacity: 95, ..posed(&pair) }), INFEASIBLE, text, [0, NONE, 1]);
}

#[test]
fn wrong_places_name_two_items_and_a_time() {
    let pair = [A, B];
    let problem = posed(&pair);
    says(check(&problem, None, &[0, 64]), OK, "", [NONE; 3]);
    says(check(&problem, None, &[0, 48]), MISPLACED, "items 0 and 1 share bytes at instant 1", [0, 1, 1]);
    let text = "item 1 is at 72, which is not a multiple of 16";
    says(check(&problem, None, &[0, 72]), MISPLACED, text, [1, NONE, NONE]);
    let text = "item 0 at 64 ends beyond the capacity";
    says(check(&Problem { capacity: 96, ..problem }, None, &[64, 0]), MISPLACED, text, [0, NONE, NONE]);
    let fixed = [NONE, 32];
    let text = "item 1 is at 64 and fixed at 32";
    says(
        check(&Problem { fixed: fixed.as_ptr(), ..problem }, None, &[0, 64]),
        MISPLACED,
        text,
        [1, NONE, NONE],
    );
    let groups = [0, 0];
    let grouped = Problem { groups: groups.as_ptr(), ..problem };
    says(check(&grouped, None, &[0, 0]), OK, "", [NONE; 3]);
    let text = "items 0 and 1 are of one group and have different offsets";
    says(check(&grouped, None, &[0, 64]), MISPLACED, text, [0, 1, NONE]);
    let odd = [Item { alignment: 48, ..A }];
    let text = "item 0: an alignment is a power of two, not 48";
    says(check(&posed(&odd), None, &[0]), BAD_PROBLEM, text, [0, NONE, NONE]);
    let late = [Item { upper: 1 << 32, ..A }];
    let text = "item 0 is live in [0, 4294967296), and times are below 2^32 here";
    says(check(&posed(&late), None, &[0]), BAD_PROBLEM, text, [0, NONE, NONE]);
}

#[test]
fn instants_are_held_against_live_ranges() {
    let pair = [A, B];
    let problem = posed(&pair);
    let reads = [Access { time: 1, item: 0 }, Access { time: 2, item: 1 }];
    let writes = [Access { time: 0, item: 0 }, Access { time: 1, item: 1 }];
    let over = [Overwrite { time: 1, operand: 0, result: 1 }];
    let program = Program {
        n_instants: 3,
        reads: reads.as_ptr(),
        n_reads: 2,
        writes: writes.as_ptr(),
        n_writes: 2,
        overwrites: over.as_ptr(),
        n_overwrites: 1,
    };
    // Written over the operand, and only there, and only where the program says so.
    says(check(&problem, Some(&program), &[0, 0]), OK, "", [NONE; 3]);
    let text = "items 0 and 1 share bytes at instant 1";
    says(check(&problem, Some(&program), &[0, 16]), MISPLACED, text, [0, 1, 1]);
    let never = Program { n_overwrites: 0, overwrites: null(), ..program };
    says(check(&problem, Some(&never), &[0, 0]), MISPLACED, text, [0, 1, 1]);
    let late = [Access { time: 2, item: 0 }];
    let late = Program { reads: late.as_ptr(), n_reads: 1, ..program };
    let text = "instant 2 reads item 0, which is live in [0, 2) only";
    says(check(&problem, Some(&late), &[0, 64]), BAD_PROBLEM, text, [0, NONE, 2]);
    let stranger = [Access { time: 2, item: 2 }];
    let stranger = Program { writes: stranger.as_ptr(), n_writes: 1, ..program };
    let text = "a write is of item 2, and there are 2 items";
    says(check(&problem, Some(&stranger), &[0, 64]), BAD_PROBLEM, text, [2, NONE, NONE]);
    let beyond = [Access { time: 3, item: 1 }];
    let beyond = Program { reads: beyond.as_ptr(), n_reads: 1, ..program };
    let text = "a read is at instant 3, and there are 3 instants";
    says(check(&problem, Some(&beyond), &[0, 64]), BAD_PROBLEM, text, [NONE, NONE, 3]);
    let short = Program { n_instants: 2, reads: null(), n_reads: 0, ..program };
    let text = "item 1 is live in [1, 3), which is no part of the 2 instants";
    says(check(&problem, Some(&short), &[0, 64]), BAD_PROBLEM, text, [1, NONE, NONE]);
}

/// Both functions say what the crates behind them say, of a problem like a training step.
#[test]
fn answers_are_those_of_the_packer() {
    let problem = generate::training(300, 5);
    let item = |it: &memplan_pack::Item| Item {
        size: it.size,
        alignment: it.alignment,
        lower: it.lower,
        upper: it.upper,
    };
    let items: Vec<Item> = problem.items.iter().map(item).collect();
    let expected = memplan_pack::minimize(&problem, &memplan_pack::Options::quick()).unwrap();
    let mut options = memplan_default_options();
    options.node_limit = 0;
    options.threads = 1;
    let mut offsets = vec![0; items.len()];
    let mut packing = Packing { height: 0, lower_bound: 0, nodes: 0, is_optimal: false };
    let mut peak = 0;
    let posed = posed(&items);
    // SAFETY: all of them are there.
    unsafe {
        assert_eq!(memplan_pack(&posed, &options, offsets.as_mut_ptr(), &mut packing, null_mut()), OK);
        assert_eq!(memplan_check_placement(&posed, null(), offsets.as_ptr(), &mut peak, null_mut()), OK);
    }
    assert_eq!((&offsets, packing.height), (&expected.offsets, expected.height));
    assert_eq!((packing.lower_bound, peak), (expected.certificate.lower_bound, packing.lower_bound));
    for victim in 0..items.len() {
        let mut moved = offsets.clone();
        moved[victim] = 0;
        let is_right = memplan_pack::validate(&problem, &moved).is_ok();
        let (status, text, [first, second, time]) = check(&posed, None, &moved);
        assert_eq!(status, if is_right { OK } else { MISPLACED }, "{text}");
        if !is_right {
            let is_live =
                |item: u64| (items[item as usize].lower..items[item as usize].upper).contains(&time);
            assert!(
                [first, second].contains(&(victim as u64)) && is_live(first) && is_live(second),
                "{text}"
            );
        }
    }
}
