//! Metadata, frontend attributes, statistics, origins.

use std::fmt;

use memplan_ir::{
    FrontendAttributes, Metadata, OriginalArray, OriginalTree, OriginalValue, ResultAccuracy, StackFrames,
    Statistics,
};

use super::{json_or_quoted, literal::double, quoted, separated};

/// The sub-attributes, without the braces.
pub(super) fn metadata<W: fmt::Write>(metadata: &Metadata, out: &mut W) -> fmt::Result {
    let mut first = true;
    let mut next = |out: &mut W, name: &str| {
        let space = if std::mem::take(&mut first) { "" } else { " " };
        out.write_str(space)?;
        out.write_str(name)
    };
    let m = metadata;
    let texts = [("op_type=", &m.op_type), ("op_name=", &m.op_name), ("source_file=", &m.source_file)];
    for (name, text) in texts {
        if !text.is_empty() {
            next(out, name)?;
            quoted(out, text.as_bytes())?;
        }
    }
    let numbers = [
        ("source_line=", m.source_line),
        ("source_end_line=", m.source_end_line),
        ("source_column=", m.source_column),
        ("source_end_column=", m.source_end_column),
    ];
    for (name, number) in numbers {
        if number != 0 {
            next(out, name)?;
            write!(out, "{number}")?;
        }
    }
    if !m.profile_types.is_empty() {
        next(out, "profile_type={")?;
        separated(out, ",", &m.profile_types, |out, kind| write!(out, "{kind}"))?;
        out.write_char('}')?;
    }
    for (name, text) in
        [("deduplicated_name=", &m.deduplicated_name), ("scheduling_name=", &m.scheduling_name)]
    {
        if !text.is_empty() {
            next(out, name)?;
            quoted(out, text.as_bytes())?;
        }
    }
    if !m.payload.is_empty() {
        next(out, "metadata_payload=")?;
        quoted(out, &m.payload)?;
    }
    if m.stack_frame_id != 0 {
        next(out, "stack_frame_id=")?;
        write!(out, "{}", m.stack_frame_id)?;
    }
    Ok(())
}

/// `{k="v",j={json}}`
pub(super) fn frontend_attributes<W: fmt::Write>(
    attributes: &FrontendAttributes,
    out: &mut W,
) -> fmt::Result {
    out.write_char('{')?;
    separated(out, ",", attributes, |out, (key, value)| {
        write!(out, "{key}=")?;
        json_or_quoted(out, value.as_bytes())
    })?;
    out.write_char('}')
}

pub(super) fn statistics<W: fmt::Write>(statistics: &Statistics, out: &mut W) -> fmt::Result {
    write!(out, "{{visualizing_index={}", statistics.visualizing_index)?;
    for (name, value) in &statistics.values {
        write!(out, ",{name}=")?;
        double(out, *value)?;
    }
    out.write_char('}')
}

pub(super) fn result_accuracy<W: fmt::Write>(accuracy: &ResultAccuracy, out: &mut W) -> fmt::Result {
    match *accuracy {
        ResultAccuracy::Highest => out.write_str("{mode=highest}"),
        ResultAccuracy::Tolerance { rtol, atol, ulps } => {
            out.write_str("{tolerance={atol=")?;
            double(out, atol)?;
            out.write_str(",rtol=")?;
            double(out, rtol)?;
            write!(out, ",ulps={ulps}}}}}")
        }
    }
}

/// With the outer braces.
pub(super) fn original_value<W: fmt::Write>(value: &OriginalValue, out: &mut W) -> fmt::Result {
    out.write_char('{')?;
    match value {
        OriginalValue::SyntheticCall => out.write_str("[synthetic_call]")?,
        OriginalValue::Tree(tree) => original_tree(tree, out)?,
    }
    out.write_char('}')
}

fn original_tree<W: fmt::Write>(tree: &OriginalTree, out: &mut W) -> fmt::Result {
    match tree {
        OriginalTree::Leaf(None) => out.write_str("{}"),
        OriginalTree::Leaf(Some(array)) => original_array(array, out),
        OriginalTree::Tuple(elements) => {
            out.write_char('(')?;
            separated(out, ", ", elements, |out, element| original_tree(element, out))?;
            out.write_char(')')
        }
    }
}

/// `{"instruction" {0,1}}`
pub(super) fn original_array<W: fmt::Write>(array: &OriginalArray, out: &mut W) -> fmt::Result {
    out.write_char('{')?;
    quoted(out, array.instruction.as_bytes())?;
    if !array.index.is_root() {
        write!(out, " {}", array.index)?;
    }
    out.write_char('}')
}

/// The tables between the first line and the first computation; each ends with an empty line.
pub(super) fn stack_frames<W: fmt::Write>(frames: &StackFrames, out: &mut W) -> fmt::Result {
    let names = [("FileNames", &frames.file_names), ("FunctionNames", &frames.function_names)];
    for (title, names) in names {
        if names.is_empty() {
            continue;
        }
        writeln!(out, "{title}")?;
        for (i, name) in names.iter().enumerate() {
            write!(out, "{} ", i + 1)?;
            quoted(out, name.as_bytes())?;
            out.write_char('\n')?;
        }
        out.write_char('\n')?;
    }
    if !frames.file_locations.is_empty() {
        out.write_str("FileLocations\n")?;
        for (i, at) in frames.file_locations.iter().enumerate() {
            writeln!(
                out,
                "{} {{file_name_id={} function_name_id={} line={} end_line={} column={} end_column={}}}",
                i + 1,
                at.file_name_id,
                at.function_name_id,
                at.line,
                at.end_line,
                at.column,
                at.end_column
            )?;
        }
        out.write_char('\n')?;
    }
    if !frames.frames.is_empty() {
        out.write_str("StackFrames\n")?;
        for (i, frame) in frames.frames.iter().enumerate() {
            let parent = i64::from(frame.parent_frame_id) + 1;
            writeln!(
                out,
                "{} {{file_location_id={} parent_frame_id={parent}}}",
                i + 1,
                frame.file_location_id
            )?;
        }
        out.write_char('\n')?;
    }
    Ok(())
}
