//! Compiles modules to C, C to programs, and runs them beside the evaluator.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use memplan_c99::{Program, Refusal, Sources, write};
use memplan_driver::{CompileOptions, Effort, compile};
use memplan_interp::{Options, evaluate};
use memplan_ir::{ArrayLiteral, ElementType, Literal, Module};
use memplan_memory::{Bytes, Target};
use memplan_passes::legalize;
use memplan_plan_hlo::{PlanOptions, Planned, plan};

/// A module that was compiled, as C.
pub(crate) struct Written {
    pub(crate) name: String,
    pub(crate) module: Module,
    pub(crate) sources: Sources,
}

/// Compiles a module and writes it as C. `None` if it cannot be compiled.
pub(crate) fn written(module: Module, target: &str, name: &str) -> Option<Result<Written, Refusal>> {
    let target = Target::find(target).expect("the target is built in");
    compiled(module, &target, &Effort::Quick.of(CompileOptions::default()), name, false)
}

/// Compiles a module for a machine with too little memory for it, so that every variant is tried, and writes it as C.
pub(crate) fn written_as_small_as_can_be(
    module: Module,
    target: &str,
    name: &str,
) -> Option<Result<Written, Refusal>> {
    let mut target = Target::find(target).expect("the target is built in");
    target.spaces[0].capacity = Some(Bytes(1 << 12));
    compiled(module, &target, &CompileOptions::default(), name, false)
}

/// Plans a module as it is and writes it as C. `None` if it cannot be planned.
pub(crate) fn written_as_given(
    mut module: Module,
    target: &str,
    name: &str,
) -> Option<Result<Written, Refusal>> {
    let target = Target::find(target).expect("the target is built in");
    legalize(&mut module, &target).ok()?;
    let mut planned = plan(&module, &target, &PlanOptions::default()).ok()?;
    planned.apply(&mut module);
    Some(as_c(module, &planned, &target, name, false))
}

/// Compiles a module and writes it as C with calls of CMSIS-NN.
pub(crate) fn written_with_cmsis_nn(
    module: Module,
    target: &str,
    name: &str,
) -> Option<Result<Written, Refusal>> {
    let target = Target::find(target).expect("the target is built in");
    compiled(module, &target, &CompileOptions::default(), name, true)
}

fn compiled(
    mut module: Module,
    target: &Target,
    options: &CompileOptions,
    name: &str,
    cmsis_nn: bool,
) -> Option<Result<Written, Refusal>> {
    let planned = compile(&mut module, target, options).ok()?.planned;
    Some(as_c(module, &planned, target, name, cmsis_nn))
}

fn as_c(
    module: Module,
    planned: &Planned,
    target: &Target,
    name: &str,
    cmsis_nn: bool,
) -> Result<Written, Refusal> {
    let (schedule, facts, plan) = (&planned.schedule, &planned.facts, &planned.plan);
    let sources = write(&Program { module: &module, schedule, facts, plan, target, name, cmsis_nn })?;
    Ok(Written { name: name.to_string(), module, sources })
}

/// The folder of the header that stands in for CMSIS-NN.
const STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/cmsis_nn");

/// What tests compile with: every warning that embedded projects ask for is an error.
const FLAGS: [&str; 5] = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-Werror"];

/// Further flags, or those of `MEMPLAN_C99_FLAGS`: every access is checked. Nothing is optimised, which compiles a third
/// faster; programs for microcontrollers are.
fn checks() -> Vec<String> {
    let flags = std::env::var("MEMPLAN_C99_FLAGS");
    let flags = flags.as_deref().unwrap_or("-O0 -fsanitize=address,undefined -fno-sanitize-recover");
    flags.split_whitespace().map(str::to_string).collect()
}

/// The C compilers that are here. A machine that has none fails the test if `CI` is set, and says so otherwise.
pub(crate) fn compilers() -> Vec<&'static str> {
    let is_there =
        |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    let found: Vec<&str> = ["gcc", "clang"].into_iter().filter(is_there).collect();
    if found.is_empty() {
        assert!(std::env::var_os("CI").is_none(), "there is no C compiler, and CI is set");
        eprintln!("skipped: no C compiler");
    }
    found
}

/// A program with its inputs.
pub(crate) struct Ready {
    pub(crate) program: Written,
    pub(crate) inputs: Vec<Literal>,
}

/// Programs that one run of the compiler makes one executable of.
pub(crate) const BATCH: usize = 24;

/// The results of many programs, some at a time.
pub(crate) fn run_all(compiler: &str, programs: &[Ready]) -> Vec<Result<Literal, String>> {
    let n_threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let batches: Vec<&[Ready]> = programs.chunks(BATCH).collect();
    let shares = batches.chunks(batches.len().div_ceil(n_threads).max(1));
    std::thread::scope(|scope| {
        let run_share = |share: &[&[Ready]]| {
            share.iter().flat_map(|batch| run_batch(compiler, batch)).collect::<Vec<_>>()
        };
        let shares: Vec<_> = shares.map(|share| scope.spawn(move || run_share(share))).collect();
        shares.into_iter().flat_map(|share| share.join().expect("no thread panics")).collect()
    })
}

fn run_batch(compiler: &str, batch: &[Ready]) -> Vec<Result<Literal, String>> {
    let all: Vec<&Written> = batch.iter().map(|ready| &ready.program).collect();
    let inputs: Vec<_> = batch.iter().map(|ready| ready.inputs.clone()).collect();
    match run(compiler, &all, &inputs) {
        Ok(results) => results.into_iter().map(Ok).collect(),
        // One by one, to find which it is.
        Err(_) => all
            .iter()
            .zip(&inputs)
            .map(|(&program, inputs)| {
                run(compiler, &[program], std::slice::from_ref(inputs)).map(|mut found| found.swap_remove(0))
            })
            .collect(),
    }
}

/// Runs programs that one compiler made, on inputs, and gives the results of each; one that cannot be compiled or fails
/// is an error.
pub(crate) fn run(
    compiler: &str,
    programs: &[&Written],
    inputs: &[Vec<Literal>],
) -> Result<Vec<Literal>, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let put = |name: &str, contents: &[u8]| {
        std::fs::write(folder.path().join(name), contents).expect("a temporary folder can be written")
    };
    for (program, inputs) in programs.iter().zip(inputs) {
        put(&format!("{}.c", program.name), program.sources.c.as_bytes());
        put(&format!("{}.h", program.name), program.sources.h.as_bytes());
        let arguments = inputs.iter().flat_map(leaves).flat_map(|a| a.bytes().to_vec());
        put(&format!("{}.in", program.name), &arguments.collect::<Vec<u8>>());
    }
    put("main.c", main_file(programs).as_bytes());
    let files = programs.iter().map(|program| format!("{}.c", program.name));
    let mut command = Command::new(compiler);
    command.current_dir(&folder).args(FLAGS).args(["-isystem", STAND_IN]).args(checks());
    command.args(files).args(["main.c", "-o", "main", "-lm"]);
    let out = command.output().map_err(|error| error.to_string())?;
    if !out.status.success() {
        return Err(format!("{compiler}: {}", head(&out.stderr)));
    }
    let out = Command::new(folder.path().join("main")).current_dir(&folder).output();
    let out = out.map_err(|error| error.to_string())?;
    if !out.status.success() {
        return Err(format!("{}: {}", out.status, head(&out.stderr)));
    }
    programs.iter().map(|program| results(program, folder.path())).collect()
}

fn head(text: &[u8]) -> String {
    String::from_utf8_lossy(text).lines().take(12).collect::<Vec<_>>().join("\n")
}

/// A `main` that reads the arguments of each program, runs it twice, since a program may not depend on what it left, and
/// writes the results.
fn main_file(programs: &[&Written]) -> String {
    let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
    for program in programs {
        let _ = writeln!(text, "#include \"{}.h\"", program.name);
    }
    text.push_str(
        "static void *take(FILE *f, size_t n) {\n    void *p = malloc(n ? n : 1);\n    if (p == NULL || fread(p, 1, n, f) != n) { exit(9); }\n    return p;\n}\nint main(void) {\n",
    );
    for program in programs {
        let name = &program.name;
        let module = &program.module;
        let arguments = module.entry_computation().parameters.iter().map(|&p| module.shape(p));
        let _ = writeln!(
            text,
            "    {{\n        FILE *f = fopen(\"{name}.in\", \"rb\");\n        const void *a[{name}_ARGUMENTS + 1] = {{0}};\n        void *r[{name}_RESULTS + 1] = {{0}};"
        );
        let sizes = |shape: &memplan_ir::Shape| -> Vec<u64> {
            let leaves = shape.leaves().into_iter();
            leaves.filter_map(|(_, leaf)| leaf.as_array()?.dense_bytes()).collect()
        };
        for (k, bytes) in arguments.flat_map(sizes).enumerate() {
            let _ = writeln!(text, "        a[{k}] = take(f, {bytes});");
        }
        let result = sizes(module.shape(module.entry_computation().root));
        for (k, bytes) in result.iter().enumerate() {
            let _ = writeln!(text, "        r[{k}] = malloc({});", bytes.max(&1));
        }
        let _ = writeln!(
            text,
            "        fclose(f);\n        {name}_run(a, r);\n        {name}_run(a, r);\n        f = fopen(\"{name}.out\", \"wb\");"
        );
        for (k, bytes) in result.iter().enumerate() {
            let _ = writeln!(text, "        fwrite(r[{k}], 1, {bytes}, f);\n        free(r[{k}]);");
        }
        let _ = writeln!(
            text,
            "        fclose(f);\n        for (int i = 0; i < {name}_ARGUMENTS; ++i) {{ free((void *)a[i]); }}\n    }}"
        );
    }
    text + "    return 0;\n}\n"
}

/// The results that a program wrote, as a literal of its shape.
fn results(program: &Written, folder: &Path) -> Result<Literal, String> {
    let bytes = std::fs::read(folder.join(format!("{}.out", program.name))).map_err(|e| e.to_string())?;
    let mut at = 0;
    let shape = program.module.shape(program.module.entry_computation().root);
    Ok(literal(shape, &bytes, &mut at))
}

pub(crate) fn literal(shape: &memplan_ir::Shape, bytes: &[u8], at: &mut usize) -> Literal {
    match shape {
        memplan_ir::Shape::Tuple(elements) => {
            Literal::Tuple(elements.iter().map(|element| literal(element, bytes, at)).collect())
        }
        shape => match shape.as_array() {
            None => Literal::Token,
            Some(array) => {
                let n = array.dense_bytes().expect("extents are static") as usize;
                *at += n;
                Literal::array(array.element_type, array.dimensions.iter().copied(), &bytes[*at - n..*at])
            }
        },
    }
}

pub(crate) fn leaves(literal: &Literal) -> Vec<&ArrayLiteral> {
    match literal {
        Literal::Tuple(elements) => elements.iter().flat_map(leaves).collect(),
        Literal::Array(array) => vec![array],
        Literal::Token => Vec::new(),
    }
}

/// What the evaluator computes of the compiled module. `None` if it cannot.
pub(crate) fn expected(program: &Written, inputs: &[Literal]) -> Option<Literal> {
    evaluate(&program.module, inputs, &Options::default()).ok()
}

/// Whether results are the evaluator's: integers bit for bit, floats up to the order in which sums are added up, for
/// `f32` to a tolerance.
pub(crate) fn compare(found: &Literal, expected: &Literal, tolerance: f64) -> Result<(), String> {
    for (k, (found, expected)) in leaves(found).into_iter().zip(leaves(expected)).enumerate() {
        let tolerance = match found.element_type {
            ElementType::F64 => 1e-10,
            ElementType::F32 => tolerance,
            ElementType::F16 => 4e-3,
            ElementType::Bf16 => 3e-2,
            _ => 0.0,
        };
        let [found, expected] = [found, expected].map(|array| Literal::Array(array.clone()));
        if let Some(difference) = memplan_testkit::first_difference(&found, &expected, tolerance) {
            let apart = memplan_testkit::difference(&found, &expected);
            return Err(format!("result {k}: {apart:.1e} apart: {difference}").chars().take(300).collect());
        }
    }
    Ok(())
}
