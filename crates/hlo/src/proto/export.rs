//! From a module to messages.

use memplan_ir::{
    AliasKind, ComputationId, EntityRef, Instruction, InstructionId, Module, Opcode, OriginRecovery,
    ProgramShape, SecondaryMap, Shape,
};
use prost::Message;
use rustc_hash::{FxHashMap, FxHashSet};

use super::ExportError;
use super::convert::*;
use super::messages as pb;
use super::wire::Kept;

mod op;

pub(super) use op::Export;

type Exported<T> = Result<T, ExportError>;

pub(super) fn module(module: &Module) -> Exported<Vec<u8>> {
    let exporter = Exporter::new(module)?;
    exporter.module()
}

/// A module on its way out.
pub(super) struct Exporter<'a> {
    module: &'a Module,
    /// Number of each computation and instruction in the file.
    ids: SecondaryMap<InstructionId, Option<i64>>,
    /// Names, made unique in the module as XLA demands of messages.
    names: SecondaryMap<InstructionId, Box<str>>,
    /// Computations that a fusion calls, which have no schedule.
    is_fusion: SecondaryMap<ComputationId, bool>,
}

impl<'a> Exporter<'a> {
    /// Numbers instructions the way XLA does: computation in the upper half, position in the lower.
    pub(super) fn new(module: &'a Module) -> Exported<Exporter<'a>> {
        let mut ids = SecondaryMap::with_capacity(module.instructions.len());
        let mut is_fusion = SecondaryMap::with_capacity(module.computations.len());
        for (id, computation) in module.computations.iter() {
            for (local, &instruction) in (0i64..).zip(&computation.instructions) {
                let known =
                    module.instructions.get(instruction).filter(|i| i.shape.index() < module.shapes.len());
                let known = known.ok_or(ExportError::Instruction(instruction))?;
                ids[instruction] = Some(computation_id(id) << 32 | local);
                if known.opcode() == Opcode::Fusion {
                    known.called.iter().for_each(|&callee| is_fusion[callee] = true);
                }
            }
        }
        Ok(Exporter { module, ids, names: unique_names(module), is_fusion })
    }

    pub(super) fn module(&self) -> Exported<Vec<u8>> {
        let module = self.module;
        let config = &module.config;
        let entry = module.computations.get(module.entry).ok_or(ExportError::Computation(module.entry))?;
        let computations =
            module.computations.keys().map(|id| Ok(self.computation(id)?.encode_to_vec().into()));
        let declared = self.program_shape(module.entry)?;
        let entry_shape = match &config.entry_computation_layout {
            None => declared,
            Some(ProgramShape { parameters, result }) => pb::ProgramShapeProto {
                parameters: parameters.iter().map(shape_proto).collect(),
                result: Some(Box::new(shape_proto(result))),
                parameter_names: declared.parameter_names,
            },
        };
        let message = pb::HloModuleProto {
            name: module.name.to_string(),
            entry_computation_name: entry.name.to_string(),
            computations: computations.collect::<Exported<_>>()?,
            host_program_shape: Some(entry_shape),
            entry_computation_id: computation_id(module.entry),
            schedule: module.is_scheduled.then(|| self.schedule()).transpose()?,
            input_output_alias: self.aliases(),
            stack_frame_index: (config.stack_frames != Default::default())
                .then(|| stack_frames_proto(&config.stack_frames)),
            buffer_donor: self.donors(),
            frontend_attributes: frontend_attributes_proto(&config.frontend_attributes),
            original_value_recovery_table: self.recoveries()?,
        };
        Ok(Kept { message, unknown: config.unknown_fields.to_vec() }.encode_to_vec())
    }

    fn aliases(&self) -> Option<pb::HloInputOutputAliasProto> {
        let entry = |alias: &memplan_ir::InputOutputAlias| pb::AliasEntry {
            output_shape_index: steps(&alias.output_index),
            parameter_number: alias.parameter.into(),
            parameter_shape_index: steps(&alias.parameter_index),
            kind: match alias.kind {
                AliasKind::MayAlias => 1,
                AliasKind::MustAlias => 2,
            },
        };
        let entries: Vec<_> = self.module.config.input_output_alias.iter().map(entry).collect();
        (!entries.is_empty()).then_some(pb::HloInputOutputAliasProto { entries })
    }

    fn donors(&self) -> Option<pb::HloBufferDonorProto> {
        let entry = |donor: &memplan_ir::BufferDonor| pb::BufferDonorEntry {
            parameter_number: donor.parameter.into(),
            parameter_shape_index: steps(&donor.index),
        };
        let entries: Vec<_> = self.module.config.buffer_donors.iter().map(entry).collect();
        (!entries.is_empty()).then_some(pb::HloBufferDonorProto { entries })
    }

    fn recoveries(&self) -> Exported<Option<pb::OriginalValueRecoveryTable>> {
        let entry = |recovery: &OriginRecovery| {
            let recovery_module = match &*recovery.recovery_module {
                "" => Vec::new(),
                text => module(
                    &crate::parse(text).map_err(|error| ExportError::RecoveryModule(Box::new(error)))?,
                )?,
            };
            Ok(pb::OriginalValueRecovery {
                old_original_array: Some(original_array_proto(&recovery.old)),
                new_original_array: Some(original_array_proto(&recovery.new)),
                recovery_module: recovery_module.into(),
            })
        };
        let entries = self.module.config.origin_recovery_table.iter().map(entry);
        let entries: Vec<_> = entries.collect::<Exported<_>>()?;
        Ok((!entries.is_empty()).then_some(pb::OriginalValueRecoveryTable { entries }))
    }

    /// Sequences in the order of their keys, as XLA writes maps.
    fn schedule(&self) -> Exported<pb::HloScheduleProto> {
        let mut sequences = Vec::new();
        for (id, computation) in self.module.computations.iter().filter(|&(id, _)| !self.is_fusion[id]) {
            let instruction_ids =
                computation.instructions.iter().map(|&i| self.id(i)).collect::<Exported<_>>()?;
            let value = Some(pb::InstructionSequence { instruction_ids });
            sequences.push(pb::SequenceEntry { key: computation_id(id), value });
        }
        Ok(pb::HloScheduleProto { sequences })
    }

    fn computation(&self, id: ComputationId) -> Exported<Kept<pb::HloComputationProto>> {
        let computation = &self.module.computations[id];
        let instructions = computation.instructions.iter();
        let instructions = instructions.map(|&i| Ok(self.instruction(i)?.encode_to_vec().into()));
        let message = pb::HloComputationProto {
            name: computation.name.to_string(),
            instructions: instructions.collect::<Exported<_>>()?,
            program_shape: Some(self.program_shape(id)?),
            id: computation_id(id),
            root_id: self.id(computation.root)?,
            is_fusion_computation: self.is_fusion[id],
            execution_thread: computation.execution_thread.to_string(),
        };
        Ok(Kept { message, unknown: computation.unknown_fields.to_vec() })
    }

    fn program_shape(&self, id: ComputationId) -> Exported<pb::ProgramShapeProto> {
        let computation = &self.module.computations[id];
        let parameters =
            computation.parameters.iter().map(|&p| self.resolve(p)).collect::<Exported<Vec<_>>>()?;
        Ok(pb::ProgramShapeProto {
            parameters: parameters.iter().map(|&(_, shape)| shape_proto(shape)).collect(),
            result: Some(Box::new(shape_proto(self.resolve(computation.root)?.1))),
            parameter_names: computation.parameters.iter().map(|&p| self.names[p].to_string()).collect(),
        })
    }

    fn instruction(&self, id: InstructionId) -> Exported<Kept<pb::HloInstructionProto>> {
        let (instruction, shape) = self.resolve(id)?;
        let mut message = pb::HloInstructionProto {
            name: self.names[id].to_string(),
            opcode: instruction.opcode().to_string(),
            shape: Some(Box::new(shape_proto(shape))),
            id: self.id(id)?,
            operand_ids: self.ids_of(&instruction.operands)?,
            control_predecessor_ids: self.ids_of(&instruction.control_predecessors)?,
            called_computation_ids: instruction.called.iter().map(|&callee| computation_id(callee)).collect(),
            metadata: instruction.metadata.as_ref().map(|metadata| Box::new(metadata_proto(metadata))),
            backend_config: instruction.backend_config.as_deref().unwrap_or_default().to_vec().into(),
            ..Default::default()
        };
        self.set_op(&mut message, instruction, shape);
        let mut unknown = Vec::new();
        if let Some(extras) = &instruction.extras {
            let replicated_at_leaf_buffers = extras.parameter_replication.clone();
            message.sharding = extras.sharding.as_ref().map(|sharding| Box::new(sharding_proto(sharding)));
            message.frontend_attributes = frontend_attributes_proto(&extras.frontend_attributes);
            message.statistics_viz = extras.statistics.as_ref().map(|s| Box::new(statistics_proto(s)));
            message.parameter_replication = (!replicated_at_leaf_buffers.is_empty())
                .then_some(pb::ParameterReplication { replicated_at_leaf_buffers });
            message.original_value =
                extras.origin.as_ref().map(|value| Box::new(original_value_proto(value)));
            message.result_accuracy =
                extras.result_accuracy.as_ref().map(|a| Box::new(result_accuracy_proto(a)));
            unknown = extras.unknown_fields.to_vec();
        }
        Ok(Kept { message, unknown })
    }

    fn resolve(&self, id: InstructionId) -> Exported<(&'a Instruction, &'a Shape)> {
        self.id(id)?;
        Ok((&self.module.instructions[id], self.module.shape(id)))
    }

    fn ids_of(&self, instructions: &[InstructionId]) -> Exported<Vec<i64>> {
        instructions.iter().map(|&instruction| self.id(instruction)).collect()
    }

    /// The name of an instruction in the file.
    pub(super) fn name(&self, instruction: InstructionId) -> Exported<&str> {
        self.id(instruction).map(|_| &*self.names[instruction])
    }

    /// The name of an instruction's computation.
    pub(super) fn computation_of(&self, instruction: InstructionId) -> Exported<&str> {
        self.resolve(instruction).map(|(known, _)| &*self.module.computations[known.parent].name)
    }

    pub(super) fn id(&self, instruction: InstructionId) -> Exported<i64> {
        let known = self.module.instructions.is_valid(instruction).then(|| self.ids[instruction]).flatten();
        known.ok_or(ExportError::Instruction(instruction))
    }
}

fn computation_id(id: ComputationId) -> i64 {
    i64::from(id.as_u32())
}

/// The names of instructions, made unique as in XLA's parser: if a name is taken, the number behind its last dot is
/// replaced by the lowest free one; a missing number counts as 0.
fn unique_names(module: &Module) -> SecondaryMap<InstructionId, Box<str>> {
    let mut taken: FxHashMap<&str, (FxHashSet<i64>, i64)> = FxHashMap::default();
    let mut names = SecondaryMap::with_capacity(module.instructions.len());
    for &id in module.computations.values().flat_map(|computation| &computation.instructions) {
        let name = &*module.instructions[id].name;
        let numbered = name.rsplit_once('.').filter(|(root, _)| !root.is_empty());
        let numbered = numbered.and_then(|(root, number)| Some((root, number.parse::<i64>().ok()?)));
        let (root, mut number) = numbered.unwrap_or((name, 0));
        let (numbers, next) = taken.entry(root).or_default();
        if !numbers.insert(number) {
            while !numbers.insert(*next) {
                *next += 1;
            }
            number = *next;
        }
        names[id] = match (number, numbered) {
            (0, None) => name.into(),
            _ => format!("{root}.{number}").into(),
        };
    }
    names
}
