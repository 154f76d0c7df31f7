//! The header of a layout, taken by the system's compilers and used by `examples/embed.c`.

use std::path::Path;
use std::process::Command;

use memplan::codegen::layout::{Address, Argument, ProgramLayout, layout};
use memplan::codegen::{c_header, write_constants};
use memplan::hlo;
use memplan::memory::Target;
use memplan_testkit::Fixture;

use crate::support::plan_and_prove;

/// The programs of the layout tests, laid out by the example in C99, and as C11 and C++11.
#[test]
fn compilers_take_the_header() {
    let Some(cc) = compiler("cc") else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for (case, prefix) in [
        ("prefetch_in_loop", "PREFETCH_IN_LOOP"),
        ("branches_with_table", "BRANCHES_WITH_TABLE"),
        ("memory_spaces", "MEMORY_SPACES"),
    ] {
        let fixture = Fixture::read(&root.join(format!("tests/hlo/layout/{case}.hlo"))).unwrap();
        let target = Target::find(fixture.target.as_deref().unwrap()).unwrap();
        let mut module = hlo::parse(&fixture.source).unwrap();
        let planned = plan_and_prove(&mut module, &target).unwrap();
        let layout = layout(&module, &planned.facts, &target, &planned.plan);
        let mut constants = Vec::new();
        write_constants(&module, &planned.plan, &mut constants).unwrap();
        std::fs::write(at("program.h"), c_header(&layout)).unwrap();
        std::fs::write(at("program.bin"), constants).unwrap();

        let source = root.join("examples/embed.c").display().to_string();
        let (include, prefix) = (format!("-DPROGRAM=\"{}\"", at("program.h")), format!("-DPREFIX={prefix}"));
        let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic"];
        run(Command::new(cc).args(["-std=c99"]).args(strict).args([
            &include,
            &prefix,
            "-o",
            &at("embed"),
            &source,
        ]));
        let said = run(Command::new(at("embed")).arg(at("program.bin")));
        let mut end = String::new();
        walk(&layout, &layout.computations[0].name, 0, &mut end);
        end.push_str(&format!(
            "{} bytes in {} allocations\n",
            layout.totals.total.0,
            layout.allocations.len()
        ));
        assert!(said.ends_with(&end), "{said}");
        run(Command::new(cc)
            .args(["-std=c11", "-fsyntax-only"])
            .args(strict)
            .args([&include, &prefix, &source]));
        // Machines of 32 bits may have tables half as large.
        let small = "#define MEMPLAN_SIZE uint32_t\n#include \"program.h\"\n\
            MEMPLAN_ASSERT(sizeof(memplan_address) == 12, addresses_are_small);\n";
        std::fs::write(at("small.c"), small).unwrap();
        for cc in [Some(cc), compiler("arm-none-eabi-gcc")].into_iter().flatten() {
            let flags = ["-std=c99", "-ffreestanding", "-fsyntax-only"];
            run(Command::new(cc).args(flags).args(strict).arg(at("small.c")));
        }
        if let Some(cxx) = compiler("c++") {
            let mut command = Command::new(cxx);
            command.args(["-std=c++11", "-fsyntax-only", "-x", "c++"]).args(strict);
            run(command.args([&include, &prefix, &source]));
        }
    }
}

/// What the example says of the launches of a computation, from the layout itself.
fn walk(layout: &ProgramLayout, name: &str, depth: usize, text: &mut String) {
    let places = |what: &str, arguments: &[Argument]| {
        let place = |Address { allocation, offset, size }| format!(" {allocation}+{}:{}", offset.0, size.0);
        let places: String = arguments.iter().filter_map(|argument| argument.address.map(place)).collect();
        if places.is_empty() { places } else { format!(" {what}{places}") }
    };
    let launches = layout.launches_in_order();
    let computation = layout.computations.iter().find(|computation| computation.name == name).unwrap();
    for launch in &computation.launches {
        let (reads, writes) = (places("reads", &launch.operands), places("writes", &launch.results));
        let transfer = layout.transfers.iter().find(|transfer| transfer.start == launch.index);
        let transfer = transfer.map_or_else(String::new, |transfer| {
            let done = &launches[transfer.done.unwrap() as usize].1.name;
            format!(" from space {} to {} until {done}", transfer.from.0, transfer.to.0)
        });
        let indent = "  ".repeat(depth);
        text.push_str(&format!("{indent}{} {}{reads}{writes}{transfer}\n", launch.opcode, launch.name));
        launch.calls.iter().for_each(|call| walk(layout, &call.computation, depth + 1, text));
    }
}

/// A compiler by its usual name, if the system has it.
fn compiler(name: &'static str) -> Option<&'static str> {
    let is_there = Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        eprintln!("skipped: no `{name}` on this system");
    }
    is_there.then_some(name)
}

/// What a command that succeeds writes.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}{err}");
    out.into_owned()
}
