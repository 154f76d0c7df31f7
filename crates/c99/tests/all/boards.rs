//! Programs on a Cortex-M7 under QEMU, with the board of `examples/microcontroller`.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use memplan_ir::{Literal, Module};
use memplan_testkit::{corpus, random_inputs};

use crate::support::{Written, compare, expected, leaves, literal, written, written_as_small_as_can_be};

const COMPILER: &str = "arm-none-eabi-gcc";
const EMULATOR: &str = "qemu-system-arm";

const FLAGS: [&str; 11] = [
    "-mcpu=cortex-m7",
    "-mthumb",
    "-mfloat-abi=hard",
    "-mfpu=fpv5-sp-d16",
    "-std=c99",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Werror",
    "-Os",
    "-ffunction-sections",
];

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[test]
fn programs_compute_the_same_on_a_microcontroller() {
    let is_missing =
        |name: &&&str| !Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    if let Some(missing) = [COMPILER, EMULATOR].iter().find(is_missing) {
        eprintln!("skipped: no {missing}");
        return;
    }
    let example = |name: &str| {
        let text = std::fs::read_to_string(repository(&format!("examples/small/{name}.hlo.txt")));
        memplan_hlo::parse(&text.expect("it is there")).expect("it is valid")
    };
    let mut modules: Vec<(String, Module)> = Vec::new();
    for name in ["keyword_spotting", "image_classifier"] {
        modules.push((name.to_string(), example(name)));
    }
    for program in corpus().iter().filter(|p| p.is_ours && ["kmeans", "lstm"].contains(&&*p.name)) {
        let module = memplan_hlo::parse(&program.text("before")).expect("programs of the corpus are valid");
        modules.push((program.name.clone(), module));
    }
    let mut programs: Vec<_> =
        modules.into_iter().map(|(name, module)| (written(module, "mcu-cortex-m7", &name), name)).collect();
    let name = "image_classifier_in_bands";
    let in_bands = written_as_small_as_can_be(example("image_classifier"), "mcu-cortex-m7", name);
    programs.push((in_bands, name.to_string()));
    let mut failures = Vec::new();
    for (program, name) in programs {
        let program = program.expect("it can be compiled").unwrap_or_else(|refusal| panic!("{refusal}"));
        let inputs = random_inputs(&program.module, 3);
        let expected = expected(&program, &inputs).expect("it can be evaluated");
        match run(&program, &inputs) {
            Ok((found, measured)) => {
                eprintln!("{name}: {measured}");
                if let Err(reason) = compare(&found, &expected, 2e-5) {
                    failures.push(format!("{name}: {reason}"));
                }
            }
            Err(reason) => failures.push(format!("{name}: {reason}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The results of a program, and what it used of its memory.
fn run(program: &Written, inputs: &[Literal]) -> Result<(Literal, String), String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let put = |name: &str, contents: &str| {
        std::fs::write(folder.path().join(name), contents).expect("a temporary folder can be written")
    };
    let name = &program.name;
    put(&format!("{name}.c"), &program.sources.c);
    put(&format!("{name}.h"), &program.sources.h);
    let arena = std::fs::read_to_string(repository("examples/microcontroller/arena.h")).expect("it is there");
    put("arena.h", &arena.replace("net", name));
    put("main.c", &main_file(program, inputs));
    let board = repository("examples/microcontroller");
    let mut command = Command::new(COMPILER);
    command.current_dir(&folder).args(FLAGS).args(["-include", "arena.h", "-I", "."]).arg("-I").arg(&board);
    command
        .arg(format!("{name}.c"))
        .arg("main.c")
        .arg(board.join("board.c"))
        .arg("-T")
        .arg(board.join("mps2.ld"));
    command.args(["-nostartfiles", "--specs=nosys.specs", "-Wl,--gc-sections", "-lm", "-o", "image.elf"]);
    let out = command.output().map_err(|error| error.to_string())?;
    checked(&out)?;
    let mut command = Command::new(EMULATOR);
    command.current_dir(&folder).args(["-M", "mps2-an500", "-nographic", "-kernel", "image.elf"]);
    command.args(["-semihosting-config", "enable=on,target=native"]);
    let out = command.output().map_err(|error| error.to_string())?;
    checked(&out)?;
    // Semihosting writes to standard error or output, as QEMU's version has it.
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let mut lines = text.lines();
    let measured = lines.by_ref().take(2).collect::<Vec<_>>().join(", ");
    let bytes: Vec<u8> = lines.flat_map(bytes).collect();
    let shape = program.module.shape(program.module.entry_computation().root);
    Ok((literal(shape, &bytes, &mut 0), measured))
}

fn checked(out: &Output) -> Result<(), String> {
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let head = || text.lines().take(12).collect::<Vec<_>>().join("\n");
    if out.status.success() { Ok(()) } else { Err(format!("{}: {}", out.status, head())) }
}

/// The bytes of a line of hexadecimal.
fn bytes(line: &str) -> Vec<u8> {
    let digits: Vec<u8> = line.bytes().filter_map(|c| (c as char).to_digit(16).map(|d| d as u8)).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// A `main` with the inputs in flash, which checks what is beside the arena, and writes the results.
fn main_file(program: &Written, inputs: &[Literal]) -> String {
    let name = &program.name;
    let mut text = format!(
        "#include \"board.h\"\n#include \"{name}.h\"\n#include <string.h>\nstruct guarded_arena guarded_arena;\n"
    );
    let arguments: Vec<Vec<u8>> = inputs.iter().flat_map(leaves).map(|a| a.bytes().to_vec()).collect();
    for (k, argument) in arguments.iter().enumerate() {
        let bytes: Vec<String> = argument.iter().map(u8::to_string).collect();
        let n = bytes.len().max(1);
        let _ = writeln!(
            text,
            "static const uint8_t a{k}[{n}] __attribute__((aligned(16))) = {{{}}};",
            bytes.join(",")
        );
    }
    let module = &program.module;
    let results = module.shape(module.entry_computation().root).leaves();
    let results: Vec<u64> = results.iter().filter_map(|(_, leaf)| leaf.as_array()?.dense_bytes()).collect();
    for (k, bytes) in results.iter().enumerate() {
        let _ = writeln!(text, "static uint8_t r{k}[{}] __attribute__((aligned(16)));", bytes.max(&1));
    }
    let list = |letter: &str, n: usize| (0..n).map(|k| format!("{letter}{k}, ")).collect::<String>();
    let _ = write!(
        text,
        "int main(void)\n{{\n    const void *a[] = {{{}NULL}};\n    void *r[] = {{{}NULL}};\n    size_t i, used = 0;\n    memset(&guarded_arena, 0x5a, sizeof guarded_arena);\n    {name}_run(a, r);\n    for (i = 0; i < sizeof guarded_arena.bytes; ++i) {{\n        used = guarded_arena.bytes[i] != 0x5a ? i + 1 : used;\n    }}\n    board_text(\"arena \");\n    board_number((long)used);\n    board_text(\" of \");\n    board_number({name}_ARENA_BYTES);\n    board_text(\"\\nstack \");\n    board_number((long)board_stack_used());\n    board_text(\"\\n\");\n    for (i = 0; i < 64; ++i) {{\n        if (guarded_arena.before[i] != 0x5a || guarded_arena.after[i] != 0x5a) {{\n            return 1;\n        }}\n    }}\n",
        list("a", arguments.len()),
        list("r", results.len())
    );
    for (k, bytes) in results.iter().enumerate() {
        let _ = writeln!(text, "    board_bytes(r{k}, {bytes});");
    }
    text + "    return 0;\n}\n"
}
