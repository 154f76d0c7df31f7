//! Modules and computations.

use std::fmt;

use memplan_ir::{ComputationId, Module, ModuleConfig, ProgramShape, Shape};

use super::{
    instruction::instruction,
    notes, quoted, separated,
    shape::{Layouts, index_comment, shape},
    sugar::Sugar,
};

pub(super) fn module<W: fmt::Write>(module: &Module, out: &mut W) -> fmt::Result {
    write!(out, "HloModule {}", module.name)?;
    if module.is_scheduled {
        out.write_str(", is_scheduled=true")?;
    }
    config(module, out)?;
    out.write_str("\n\n")?;
    let frames = &module.config.stack_frames;
    notes::stack_frames(frames, out)?;
    if !frames.file_names.is_empty() || !frames.frames.is_empty() {
        out.write_char('\n')?;
    }
    let sugar = Sugar::new(module);
    for id in module.computations.keys() {
        if sugar.wrapped(id).is_none() {
            computation(module, &sugar, id, out)?;
        }
    }
    Ok(())
}

fn config<W: fmt::Write>(module: &Module, out: &mut W) -> fmt::Result {
    let config: &ModuleConfig = &module.config;
    if !config.input_output_alias.is_empty() {
        out.write_str(", input_output_alias={ ")?;
        separated(out, ", ", &config.input_output_alias, |out, alias| {
            write!(
                out,
                "{}: ({}, {}, {})",
                alias.output_index, alias.parameter, alias.parameter_index, alias.kind
            )
        })?;
        out.write_str(" }")?;
    }
    if !config.buffer_donors.is_empty() {
        out.write_str(", buffer_donor={ ")?;
        separated(out, ", ", &config.buffer_donors, |out, donor| {
            write!(out, "({}, {})", donor.parameter, donor.index)
        })?;
        out.write_str(" }")?;
    }
    if config.alias_passthrough_params {
        out.write_str(", alias_passthrough_params=true")?;
    }
    if let Some(layout) = &config.entry_computation_layout {
        out.write_str(", entry_computation_layout={")?;
        program_shape(layout, out)?;
        out.write_char('}')?;
    }
    let propagations = [
        ("parameters", &config.allow_spmd_sharding_propagation_to_parameters),
        ("output", &config.allow_spmd_sharding_propagation_to_output),
    ];
    for (what, values) in propagations {
        if !values.is_empty() {
            write!(out, ", allow_spmd_sharding_propagation_to_{what}={{")?;
            separated(out, ",", values, |out, value| write!(out, "{value}"))?;
            out.write_char('}')?;
        }
    }
    if let Some(count) = config.replica_count {
        write!(out, ", replica_count={count}")?;
    }
    if let Some(count) = config.num_partitions {
        write!(out, ", num_partitions={count}")?;
    }
    if !config.frontend_attributes.is_empty() {
        out.write_str(", frontend_attributes=")?;
        notes::frontend_attributes(&config.frontend_attributes, out)?;
    }
    if !config.origin_recovery_table.is_empty() {
        out.write_str(", origin_recovery_table={\n")?;
        for recovery in &config.origin_recovery_table {
            out.write_str("  ")?;
            notes::original_array(&recovery.old, out)?;
            out.write_str(" : ")?;
            notes::original_array(&recovery.new, out)?;
            if !recovery.recovery_module.is_empty() {
                out.write_str(",\n  ")?;
                quoted(out, recovery.recovery_module.as_bytes())?;
            }
            out.write_char('\n')?;
        }
        out.write_str("}\n")?;
    }
    if !config.debug_attributes.is_empty() {
        out.write_str(", debug_attributes={")?;
        separated(out, ", ", &config.debug_attributes, |out, entry| {
            notes::original_array(&entry.array, out)?;
            out.write_str(if entry.is_list { ":(" } else { ":" })?;
            separated(out, ",", &entry.attributes, |out, attributes| write!(out, "{{{attributes}}}"))?;
            out.write_str(if entry.is_list { ")" } else { "" })
        })?;
        out.write_char('}')?;
    }
    Ok(())
}

fn program_shape<W: fmt::Write>(program: &ProgramShape, out: &mut W) -> fmt::Result {
    out.write_char('(')?;
    for (i, parameter) in program.parameters.iter().enumerate() {
        index_comment(out, i)?;
        shape(parameter, Layouts::Print, out)?;
    }
    out.write_str(")->")?;
    shape(&program.result, Layouts::Print, out)
}

fn computation<W: fmt::Write>(module: &Module, sugar: &Sugar, id: ComputationId, out: &mut W) -> fmt::Result {
    let computation = &module.computations[id];
    if id == module.entry {
        out.write_str("ENTRY ")?;
    }
    write!(out, "%{} (", computation.name)?;
    separated(out, ", ", &computation.parameters, |out, &parameter| {
        write!(out, "{}: ", module.instructions[parameter].name)?;
        shape(module.shape(parameter), Layouts::Omit, out)
    })?;
    out.write_str(") -> ")?;
    let result: &Shape = module.shape(computation.root);
    shape(result, Layouts::Omit, out)?;
    out.write_str(" {\n")?;
    for &instruction_ in &computation.instructions {
        out.write_str(if instruction_ == computation.root { "  ROOT " } else { "  " })?;
        instruction(module, sugar, instruction_, out)?;
        out.write_char('\n')?;
    }
    out.write_char('}')?;
    if !computation.execution_thread.is_empty() {
        out.write_str(", execution_thread=")?;
        quoted(out, computation.execution_thread.as_bytes())?;
    }
    out.write_str("\n\n")
}
