//! XLA's texts about a lack of memory: the buffers that it lists, by line of the program, and what may help.
//!
//! GPUs and CPUs list `Peak buffers`, TPUs `Largest program allocations`, in blocks of lines: size, operation with its
//! source, shape. Logs have a prefix before each line, which is skipped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use memplan::memory::Bytes;

/// A buffer that XLA lists.
#[derive(Clone, Debug, Default, PartialEq)]
struct Buffer {
    size: Bytes,
    unpadded: Option<Bytes>,
    operation: String,
    source: String,
    shape: String,
    label: String,
    is_argument: bool,
}

/// The report about a text in which XLA says that memory does not suffice; `None` where it says no such thing.
pub(super) fn report(text: &str, name: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_about =
        ["RESOURCE_EXHAUSTED", "Ran out of memory in memory space", "Out of memory while trying to allocate"];
    let headline = lines.iter().position(|line| is_about.iter().any(|about| line.contains(about)))?;
    let buffers = buffers(&lines[headline..]);
    let mut out = format!("error: `{name}` says that XLA ran out of memory");
    if let Some(amounts) = amounts(&lines[headline..]) {
        let _ = write!(out, ": {amounts}");
    }
    out.push('\n');
    for (what, size) in totals(&lines[headline..]) {
        let _ = writeln!(out, "  {size:>10}  {what}");
    }
    if buffers.is_empty() {
        out.push_str("  it lists no buffers\n");
    } else {
        table(&buffers, &mut out);
    }
    remedies(&buffers, &lines[headline..], &mut out);
    Some(out.trim_end().to_owned())
}

/// `19.25 GiB of 15.48 GiB in hbm`, or what was asked for.
fn amounts(lines: &[&str]) -> Option<String> {
    for line in lines {
        if let Some((_, rest)) = line.split_once("Ran out of memory in memory space ") {
            let (space, rest) = rest.split_once(". Used ")?;
            let (used, rest) = rest.split_once(" of ")?;
            let (used, limit) = (size(used)?, size(rest.split(' ').next()?)?);
            let over = Bytes(used.0.saturating_sub(limit.0));
            return Some(format!("{used} of {limit} in {space}, {over} too much"));
        }
        if let Some((_, rest)) = line.split_once("trying to allocate ") {
            let asked = rest.split([' ', '.']).next()?;
            let bytes = asked.parse().map(Bytes).ok().or_else(|| size(rest.split(' ').next()?))?;
            return Some(format!("{bytes} could not be had"));
        }
    }
    None
}

/// The totals that XLA gives, with their names.
fn totals(lines: &[&str]) -> Vec<(String, Bytes)> {
    let names = [
        "parameter allocation",
        "constant allocation",
        "maybe_live_out allocation",
        "preallocated temp allocation",
        "total allocation",
        "total fragmentation",
    ];
    let tpu = ["reserved", "program", "arguments"];
    let mut found = Vec::new();
    for line in lines {
        for name in names {
            if let Some(at) = line.find(&format!("{name}:"))
                && let Some(bytes) = size(line[at + name.len() + 1..].trim_start())
            {
                found.push((name.to_owned(), bytes));
            }
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [name, amount] = words[..]
            && tpu.contains(&name)
            && let Some(bytes) = size(amount)
        {
            found.push((name.to_owned(), bytes));
        }
    }
    found
}

fn buffers(lines: &[&str]) -> Vec<Buffer> {
    let mut found: Vec<Buffer> = Vec::new();
    let mut current: Option<Buffer> = None;
    for line in lines {
        // Log lines have a time and a file before the text.
        let field = |name: &str| line.find(name).map(|at| line[at + name.len()..].trim());
        if line.contains("==========") {
            found.extend(current.take());
        } else if let Some(rest) = field("Unpadded size: ") {
            if let Some(buffer) = &mut current {
                buffer.unpadded = size(rest);
            }
        } else if let Some(bytes) = field("Size: ").and_then(size) {
            found.extend(current.take());
            current = Some(Buffer { size: bytes, ..Buffer::default() });
        } else if let Some(buffer) = &mut current {
            if let Some(rest) = field("Operator: ") {
                let quoted = |name: &str| {
                    let rest = &rest[rest.find(&format!("{name}=\""))? + name.len() + 2..];
                    rest.find('"').map(|end| rest[..end].to_owned())
                };
                buffer.operation = quoted("op_name").unwrap_or_default();
                let line = rest
                    .split_once("source_line=")
                    .map(|(_, rest)| rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
                buffer.source = match (quoted("source_file"), line) {
                    (Some(file), Some(line)) => format!("{}:{line}", shortened(&file)),
                    _ => String::new(),
                };
            } else if let Some(shape) = field("Entry Parameter Subshape: ") {
                (buffer.shape, buffer.is_argument) = (shape.to_owned(), true);
            } else if let Some(shape) = field("Shape: ") {
                shape.clone_into(&mut buffer.shape);
            } else if let Some(label) = field("XLA Label: ").or_else(|| field("XLA label: ")) {
                label.split(' ').next().unwrap_or_default().clone_into(&mut buffer.label);
                buffer.is_argument |= label.starts_with("parameter");
            } else if let Some(kind) = field("Allocation type: ") {
                buffer.is_argument |= kind.contains("argument") || kind.contains("parameter");
            }
        }
    }
    found.extend(current);
    found
}

/// The file with the folder that it is in.
fn shortened(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
    slashes.nth(1).map_or(file, |at| &file[at..])
}

/// `6.00MiB`, `19.25G`, `384B`.
fn size(text: &str) -> Option<Bytes> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..end].parse().ok()?;
    let unit = text[end..].chars().next().unwrap_or('B');
    let factor = match unit {
        'K' => 1u64 << 10,
        'M' => 1 << 20,
        'G' => 1 << 30,
        'T' => 1 << 40,
        'B' | ' ' | '.' | ',' => 1,
        _ => return None,
    };
    Some(Bytes((number * factor as f64).round() as u64))
}

/// The buffers by line, operation and shape, the largest sum first.
fn table(buffers: &[Buffer], out: &mut String) {
    let mut groups: BTreeMap<(&str, &str, &str), (u64, usize)> = BTreeMap::new();
    for buffer in buffers {
        let operation = buffer.operation.rsplit('/').next().unwrap_or_default();
        let operation = match (buffer.is_argument, operation) {
            (true, _) => "argument",
            (false, "") => &buffer.label,
            (false, operation) => operation,
        };
        let shape = buffer.shape.split('{').next().unwrap_or_default();
        let group = groups.entry((&buffer.source, operation, shape)).or_default();
        *group = (group.0 + buffer.size.0, group.1 + 1);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|&(key, (bytes, _))| (std::cmp::Reverse(bytes), key));
    let width =
        |of: &dyn Fn(&(&str, &str, &str)) -> usize| groups.iter().map(|(key, _)| of(key)).max().unwrap_or(0);
    let (sources, operations) = (width(&|key| key.0.len()).max(4), width(&|key| key.1.len()).clamp(9, 40));
    let total: u64 = buffers.iter().map(|buffer| buffer.size.0).sum();
    let _ =
        writeln!(out, "\nthe {} buffers that it lists, {} together, by line:", buffers.len(), Bytes(total));
    for ((source, operation, shape), (bytes, count)) in groups {
        let source = if source.is_empty() { "-" } else { source };
        let times = if count == 1 { String::new() } else { format!("{count} x ") };
        let bytes = Bytes(bytes).to_string();
        let _ = writeln!(out, "  {bytes:>10}  {source:<sources$}  {operation:<operations$}  {times}{shape}");
    }
}

/// What may help, from what the buffers are.
fn remedies(buffers: &[Buffer], lines: &[&str], out: &mut String) {
    let sum =
        |is_one: &dyn Fn(&&Buffer) -> bool| Bytes(buffers.iter().filter(is_one).map(|it| it.size.0).sum());
    out.push_str("\nwhat may help:\n");
    let kept = sum(&|it| it.operation.contains("jvp(") && !it.operation.contains("transpose("));
    if kept > Bytes::ZERO {
        let _ = writeln!(
            out,
            "  {kept} are kept from the forward pass for the gradient: `jax.checkpoint` around the layers that make them"
        );
    }
    let arguments = sum(&|it| it.is_argument);
    if arguments > Bytes::ZERO {
        let _ =
            writeln!(out, "  {arguments} are arguments: `donate_argnums` of those that the program replaces");
    }
    let padding: u64 = buffers.iter().filter_map(|it| Some(it.size.0.saturating_sub(it.unpadded?.0))).sum();
    if padding > 0 {
        let _ = writeln!(
            out,
            "  {} are padding: extents that are multiples of 128 and 8 in the last two dimensions",
            Bytes(padding)
        );
    }
    let limit =
        amounts(lines).and_then(|text| text.split(" of ").nth(1)?.split(" in ").next().map(str::to_owned));
    let limit = limit.map_or(String::new(), |limit| format!(" --memory-limit {}", limit.replace(' ', "")));
    let _ = writeln!(
        out,
        "  the text has no program; with one, memplan tries each change and says what it saves:\n    \
         XLA_FLAGS=\"--xla_dump_to=dump --xla_dump_hlo_as_text\" python train.py; memplan fit dump{limit}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: &str = "\
jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6291456 bytes.
BufferAssignment OOM Debugging.
BufferAssignment stats:
             parameter allocation:    6.00MiB
      preallocated temp allocation:         0B
                 total allocation:   12.00MiB
              total fragmentation:         0B (0.00%)
Peak buffers:
	Buffer 1:
		Size: 6.00MiB
		Operator: op_name=\"jit(f)/jvp(mlp)/concatenate\" source_file=\"/home/me/proj/models.py\" source_line=689
		XLA Label: concatenate
		Shape: f32[4096,128,3]
		==========================

	Buffer 2:
		Size: 384.0KiB
		Entry Parameter Subshape: f32[256,128,3]
		==========================

	Buffer 3:
		Size: 384.0KiB
		Entry Parameter Subshape: f32[256,128,3]
		==========================
";

    #[test]
    fn buffers_are_shown_by_line() {
        let report = report(GPU, "log").unwrap();
        assert_eq!(
            report,
            "error: `log` says that XLA ran out of memory: 6.00 MiB could not be had\n    \
             6.00 MiB  parameter allocation\n         0 B  preallocated temp allocation\n   \
             12.00 MiB  total allocation\n         0 B  total fragmentation\n\n\
             the 3 buffers that it lists, 6.75 MiB together, by line:\n    \
             6.00 MiB  proj/models.py:689  concatenate  f32[4096,128,3]\n  \
             768.00 KiB  -                   argument     2 x f32[256,128,3]\n\n\
             what may help:\n  \
             6.00 MiB are kept from the forward pass for the gradient: `jax.checkpoint` around the layers that make them\n  \
             768.00 KiB are arguments: `donate_argnums` of those that the program replaces\n  \
             the text has no program; with one, memplan tries each change and says what it saves:\n    \
             XLA_FLAGS=\"--xla_dump_to=dump --xla_dump_hlo_as_text\" python train.py; memplan fit dump"
        );
    }

    #[test]
    fn tpus_say_it_otherwise() {
        let text = "\
E1123 20:05:01.123 7 x.cc:1] RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 19.25G of 15.48G hbm. Exceeded hbm capacity by 3.77G.

Total hbm usage >= 19.77G:
    reserved        530.00M
    program          15.13G
    arguments         4.13G

Largest program allocations in hbm:

  1. Size: 2.00G
     Operator: op_name=\"jit(step)/transpose(jvp(layer))/dot_general\" source_file=\"a/b/c.py\" source_line=7
     Shape: bf16[8,1000,4]{2,1,0:T(8,128)(2,1)}
     Unpadded size: 500.0M
     Extra memory due to padding: 1.5G (4.0x expansion)
     XLA label: fusion.7 = fusion(...)
     Allocation type: HLO temp
     ==========================
";
        let report = report(text, "log").unwrap();
        assert!(report.contains("19.25 GiB of 15.48 GiB in hbm, 3.77 GiB too much"), "{report}");
        assert!(report.contains("4.13 GiB  arguments"), "{report}");
        assert!(report.contains("b/c.py:7  dot_general  bf16[8,1000,4]"), "{report}");
        assert!(report.contains("1.51 GiB are padding"), "{report}");
        assert!(report.contains("memplan fit dump --memory-limit 15.48GiB"), "{report}");
        assert!(!report.contains("jax.checkpoint"), "{report}");
    }

    #[test]
    fn other_texts_are_not_about_memory() {
        assert_eq!(report("HloModule m", "m"), None);
        assert_eq!(report("2026-11-23 error: no such file\n", "m"), None);
    }
}
