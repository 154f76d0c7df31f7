//! The header and the file.

use std::fmt::Write;

use memplan_memory::{AllocationKind, Family, MemorySpaceId};

use crate::cmsis_nn::{PRELUDE, Rounding};
use crate::names::{Identifiers, identifier};
use crate::program::Parts;
use crate::runtime::stored_type;
use crate::storage::{Memory, Port, arena_name};
use crate::{Program, Sources};

/// The version of what the header declares.
const INTERFACE: u32 = 1;

/// Bytes of the stack for variables and saved registers: about twice what the networks of docs/small_devices.md need on a Cortex-M7,
/// where kernels of CMSIS-NN take most, and a page on a host, where compilers spill vector registers.
fn variables(program: &Program<'_>, parts: &Parts) -> u64 {
    match program.target.family {
        Family::Cpu => 4096,
        _ if parts.library.calls > 0 => 3072,
        _ => 2048,
    }
}

/// The alignment of results that the caller does not want.
const ALIGNMENT: u64 = 64;

/// Whether callers may leave out results: on a host, where memory that nobody writes is not resident.
fn has_unwanted(program: &Program<'_>) -> bool {
    program.target.family == Family::Cpu
        && !program.module.shape(program.module.entry_computation().root).leaves().is_empty()
}

pub(crate) fn write(program: &Program<'_>, parts: &Parts) -> Sources {
    Sources { c: file(program, parts), h: header(program, parts) }
}

/// A type of the caller.
fn c_type(port: &Port) -> &'static str {
    match stored_type(port.shape.element_type).as_str() {
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "s8" => "int8_t",
        "s16" => "int16_t",
        "s32" => "int32_t",
        "s64" => "int64_t",
        "f32" => "float",
        _ => "double",
    }
}

fn shape(port: &Port) -> String {
    let extents: Vec<String> = port.shape.dimensions.iter().map(i64::to_string).collect();
    format!("{}[{}]", port.shape.element_type, extents.join(","))
}

fn header(program: &Program<'_>, parts: &Parts) -> String {
    let name = program.name;
    let storage = &parts.storage;
    let guard = format!("{}_H", name.to_ascii_uppercase());
    let mut text = format!(
        "/* {} for {}, by memplan {}. */\n#ifndef {guard}\n#define {guard}\n\n#include <stddef.h>\n#include <stdint.h>\n\n",
        program.module.name,
        program.target.name,
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(text, "#ifdef __cplusplus\nextern \"C\" {{\n#endif\n");
    let _ = writeln!(text, "/* The version of memplan, and of this interface. */");
    let _ = writeln!(
        text,
        "#define {name}_MEMPLAN \"{}\"\n#define {name}_INTERFACE {INTERFACE}\n",
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(
        text,
        "/* Bytes of the arena. The file has it as a static array, unless {name}_ARENA is defined to be one, with the alignment\n   {}. */",
        program.target.alignment(MemorySpaceId::MAIN).bytes()
    );
    let _ = writeln!(text, "#define {name}_ARENA_BYTES {}", program.plan.totals.temp.0);
    for (space, bytes) in other_arenas(program) {
        let _ = writeln!(text, "#define {}_BYTES {bytes}", arena_macro(program, space));
    }
    let beside: u64 = statics(program, parts).iter().map(|(_, bytes)| bytes).sum();
    if beside > 0 {
        let _ = writeln!(text, "\n/* Bytes of copies of arguments and results beside the arena. */");
        let _ = writeln!(text, "#define {name}_COPY_BYTES {beside}");
    }
    let _ = writeln!(
        text,
        "\n/* Bytes of the stack: arrays of kernels, and {} for variables, saved registers and calls. */",
        variables(program, parts)
    );
    let _ = writeln!(text, "#define {name}_STACK_BYTES {}", parts.stack + variables(program, parts));
    let _ = writeln!(
        text,
        "#define {name}_ARGUMENTS {}\n#define {name}_RESULTS {}\n",
        storage.arguments.len(),
        storage.results.len()
    );
    let _ = writeln!(
        text,
        "/* Arguments, each aligned for its type: row-major; bf16 and f16 as 16 bits, pred as bytes."
    );
    for (k, port) in storage.arguments.iter().enumerate() {
        let _ = writeln!(text, "   {k}  {}  {}, {} bytes", shape(port), port.name, port.bytes());
    }
    let _ = writeln!(text, "   Results:");
    for (k, port) in storage.results.iter().enumerate() {
        let _ = writeln!(text, "   {k}  {}, {} bytes", shape(port), port.bytes());
    }
    if has_unwanted(program) {
        let _ = writeln!(text, "   A null pointer ends the list of results: the others are not wanted.");
    }
    let _ = writeln!(text, "   Not for several threads at once. */");
    let _ = writeln!(text, "void {name}_run(const void *const arguments[], void *const results[]);\n");
    if program.cmsis_nn {
        let (calls, of) = (parts.library.calls, parts.library.of);
        let _ = writeln!(
            text,
            "/* Of {of} calls of kernels, {calls} are of CMSIS-NN. Its status is 0, or that of a kernel that could not run, after\n   which results are not valid. */"
        );
        let _ = writeln!(text, "int32_t {name}_cmsis_nn_status(void);\n");
    }
    typed(&mut text, name, &storage.arguments, &storage.results);
    let _ = writeln!(text, "#ifdef __cplusplus\n}}\n#endif\n\n#endif");
    text
}

/// The typed form of the entry point.
fn typed(text: &mut String, name: &str, arguments: &[Port], results: &[Port]) {
    let mut identifiers = Identifiers::default();
    let mut list = Vec::new();
    let mut names = [Vec::new(), Vec::new()];
    for port in arguments {
        let called = identifiers.unique(&port.name);
        list.push(format!("const {} *{called}", c_type(port)));
        names[0].push(called);
    }
    for (k, port) in results.iter().enumerate() {
        let called = identifiers.unique(&format!("out_{k}"));
        list.push(format!("{} *{called}", c_type(port)));
        names[1].push(called);
    }
    if list.is_empty() {
        list.push("void".to_string());
    }
    let _ = writeln!(text, "static inline void {name}(\n    {})\n{{", list.join(",\n    "));
    let sets = |text: &mut String, of: &str, array: &str, names: &[String]| {
        let _ = writeln!(text, "    {of}{array}[{}];", names.len().max(1));
    };
    sets(text, "const void *", "call_arguments", &names[0]);
    sets(text, "void *", "call_results", &names[1]);
    for (array, names) in [("call_arguments", &names[0]), ("call_results", &names[1])] {
        if names.is_empty() {
            let _ = writeln!(text, "    {array}[0] = NULL;");
        }
        for (k, called) in names.iter().enumerate() {
            let _ = writeln!(text, "    {array}[{k}] = {called};");
        }
    }
    let _ = writeln!(text, "    {name}_run(call_arguments, call_results);\n}}\n");
}

/// The macro that names the arena of a memory.
fn arena_macro(program: &Program<'_>, space: MemorySpaceId) -> String {
    if space == MemorySpaceId::MAIN {
        return format!("{}_ARENA", program.name);
    }
    let called = program.target.space(space).map_or_else(|| space.0.to_string(), |s| identifier(&s.name));
    format!("{}_ARENA_{}", program.name, called.to_ascii_uppercase())
}

/// Arenas in other memories than the main one.
fn other_arenas(program: &Program<'_>) -> Vec<(MemorySpaceId, u64)> {
    let arenas = program.plan.allocations.values().filter(|a| a.kind == AllocationKind::Temp);
    arenas.filter(|a| a.space != MemorySpaceId::MAIN).map(|a| (a.space, a.size.0)).collect()
}

/// Arrays beside the arena.
fn statics(program: &Program<'_>, parts: &Parts) -> Vec<(String, u64)> {
    let named = |(id, allocation): (_, &memplan_memory::Allocation)| match &parts.storage.memory[id] {
        Some(Memory::Static(name)) => Some((name.clone(), allocation.size.0)),
        _ => None,
    };
    program.plan.allocations.iter().filter_map(named).collect()
}

fn file(program: &Program<'_>, parts: &Parts) -> String {
    let name = program.name;
    let mut body = String::new();
    let _ = writeln!(
        body,
        "/* {} for {}, by memplan {}.",
        program.module.name,
        program.target.name,
        env!("CARGO_PKG_VERSION")
    );
    let _ = writeln!(body, "   Every array is where the plan has it; nothing is allocated. */");
    let _ = writeln!(body, "#include \"{name}.h\"\n");
    let _ =
        writeln!(body, "#include <limits.h>\n#include <math.h>\n#include <stdbool.h>\n#include <string.h>\n");
    body.push_str(
        "/* Memory holds numbers of several types, one after the other. */\n#if defined(__GNUC__)\n#define MAY_ALIAS __attribute__((__may_alias__))\n#define ALIGNED(n) __attribute__((__aligned__(n)))\n#else\n#define MAY_ALIAS\n#define ALIGNED(n)\n#endif\n",
    );
    for (short, long) in [
        ("s8", "int8_t"),
        ("s16", "int16_t"),
        ("s32", "int32_t"),
        ("s64", "int64_t"),
        ("u8", "uint8_t"),
        ("u16", "uint16_t"),
        ("u32", "uint32_t"),
        ("u64", "uint64_t"),
        ("f32", "float"),
        ("f64", "double"),
    ] {
        let _ = writeln!(body, "typedef {long} {short};");
        let _ = writeln!(body, "typedef {short} mem_{short} MAY_ALIAS;");
    }
    body.push_str("\n/* An array at an offset of some memory. */\n");
    body.push_str("#define AT(type, memory, offset) ((type *)(void *)((u8 *)(memory) + (offset)))\n");
    body.push_str("#define FROM(type, memory, offset) ((const type *)(const void *)((const u8 *)(memory) + (offset)))\n\n");
    let _ = writeln!(
        body,
        "#define ASSERT(name, condition) typedef char {name}_assert_##name[(condition) ? 1 : -1]"
    );
    let _ =
        writeln!(body, "ASSERT(bits_of_a_byte, CHAR_BIT == 8);\nASSERT(size_of_float, sizeof(float) == 4);");
    if parts.kernels.iter().any(|text| text.contains("f64")) {
        let _ = writeln!(body, "ASSERT(size_of_double, sizeof(double) == 8);");
    }
    if parts.library.calls > 0 {
        library(&mut body, parts.library.rounding);
    }
    memory(&mut body, program, parts);
    for (_, text) in parts.constants.iter().filter(|(called, _)| parts.reaches(called)) {
        let _ = write!(body, "\n{text}");
    }
    if parts.runtime.texts().next().is_some() {
        body.push('\n');
    }
    for text in parts.runtime.texts() {
        let _ = writeln!(body, "{text}");
    }
    for text in parts.kernels.iter().chain(&parts.functions) {
        let _ = write!(body, "\n{text}");
    }
    let _ = writeln!(body, "\nvoid {name}_run(const void *const arguments[], void *const results[])\n{{");
    let n_arguments = parts.storage.arguments.len();
    let n_results = parts.storage.results.len();
    match n_arguments > 0 && parts.mentions("argument[") {
        true => body.push_str("    memcpy(argument, arguments, sizeof argument);\n"),
        false => body.push_str("    (void)arguments;\n"),
    }
    match (n_results > 0 && parts.mentions("result["), has_unwanted(program)) {
        (false, _) => body.push_str("    (void)results;\n"),
        (true, false) => body.push_str("    memcpy(result, results, sizeof result);\n"),
        (true, true) => {
            let _ = write!(
                body,
                "    size_t n = 0;\n    for (; n < {n_results} && results[n] != NULL; ++n) {{\n        result[n] = results[n];\n    }}\n    for (; n < {n_results}; ++n) {{\n        result[n] = unwanted.bytes + unwanted_at[n];\n    }}\n"
            );
        }
    }
    body.push_str(&parts.entry);
    body.push_str("}\n");
    if program.cmsis_nn {
        let status = if parts.library.calls > 0 { "cmsis_nn_status" } else { "0" };
        let _ = writeln!(body, "\nint32_t {name}_cmsis_nn_status(void)\n{{\n    return {status};\n}}");
    }
    body
}

/// What calls of CMSIS-NN need. The library has to round as the program does.
fn library(body: &mut String, rounding: Option<Rounding>) {
    let _ = writeln!(body, "\n#include \"arm_nnfunctions.h\"");
    let unlike = match rounding {
        Some(Rounding::Twice) => Some(("ifdef", "without")),
        Some(Rounding::Once) => Some(("ifndef", "with")),
        None => None,
    };
    if let Some((directive, how)) = unlike {
        let _ = writeln!(
            body,
            "#{directive} CMSIS_NN_USE_SINGLE_ROUNDING\n#error \"compile CMSIS-NN and this file {how} CMSIS_NN_USE_SINGLE_ROUNDING\"\n#endif"
        );
    }
    body.push_str(PRELUDE);
}

/// The declarations of memory.
fn memory(body: &mut String, program: &Program<'_>, parts: &Parts) {
    body.push('\n');
    for (id, allocation) in &program.plan.allocations {
        let alignment = allocation.alignment.bytes().max(8);
        let size = allocation.size.0;
        let array = |called: &str| {
            format!(
                "static union {{\n    u8 bytes[{size}];\n    double widest;\n}} {called} ALIGNED({alignment});\n"
            )
        };
        match &parts.storage.memory[id] {
            Some(Memory::Arena(space)) if size > 0 => {
                let (called, given) = (arena_name(*space), arena_macro(program, *space));
                if parts.reaches(&called) {
                    let _ = write!(
                        body,
                        "#ifdef {given}\n#define {called} ({given})\n#else\n{}#define {called} ({called}_memory.bytes)\n#endif\n",
                        array(&format!("{called}_memory"))
                    );
                }
                let _ = writeln!(body, "ASSERT(size_of_{called}, {size} == {given}_BYTES);");
            }
            Some(Memory::Static(called)) if parts.reaches(called) => body.push_str(&array(called)),
            _ => {}
        }
    }
    if has_unwanted(program) && parts.mentions("result[") {
        let results = &parts.storage.results;
        let mut at = Vec::new();
        let mut end = 0u64;
        for port in results {
            at.push(end.to_string());
            end += port.bytes().next_multiple_of(ALIGNMENT);
        }
        let n = results.len();
        let _ = writeln!(body, "/* Results that the caller does not want. */");
        let _ = writeln!(
            body,
            "static union {{\n    u8 bytes[{}];\n    double widest;\n}} unwanted ALIGNED({ALIGNMENT});",
            end.max(1)
        );
        let _ = writeln!(body, "static const size_t unwanted_at[{n}] = {{{}}};", at.join(", "));
    }
    for (called, of, n) in [
        ("argument", "const void *", parts.storage.arguments.len()),
        ("result", "void *", parts.storage.results.len()),
    ] {
        if parts.mentions(&format!("{called}[")) {
            let _ = writeln!(body, "static {of}{called}[{n}];");
        }
    }
}
