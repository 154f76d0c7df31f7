//! From messages to a module.

use std::sync::Arc;

use memplan_ir::{
    AliasKind, BufferDonor, ComputationId, EntityRef, Extras, InputOutputAlias, Instruction, InstructionId,
    Module, Op, OriginRecovery,
};
use prost::Message;
use prost::bytes::Bytes;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::convert::*;
use super::messages as pb;
use super::wire::{Kept, next_field, scan};
use super::{FieldError, ImportError, Imported, Warning};

mod op;

pub(super) use op::Import;

type InstructionProto = Kept<pb::HloInstructionProto>;
type ComputationProto = Kept<pb::HloComputationProto>;

pub(super) fn import(bytes: &[u8]) -> Result<Imported, ImportError> {
    let is_hlo_proto = holds_module(bytes);
    let schema = if is_hlo_proto { &pb::HLO_PROTO } else { &pb::HLO_MODULE_PROTO };
    let warnings = find_dropped(schema, bytes)?;
    let bytes = Bytes::copy_from_slice(bytes);
    let (module, buffer_assignment) = match is_hlo_proto {
        true => {
            let file = pb::HloProto::decode(bytes)?;
            (file.hlo_module, Some(file.buffer_assignment).filter(|b| !b.is_empty()))
        }
        false => (bytes, None),
    };
    let module = module_of(module, 0)?;
    Ok(Imported { module, buffer_assignment: buffer_assignment.map(|b| b.as_ref().into()), warnings })
}

/// A module that is so many times the recovery module of another.
fn module_of(bytes: Bytes, depth: u32) -> Result<Module, ImportError> {
    let mut file = Kept::<pb::HloModuleProto>::decode(bytes)?;
    let table = file.message.original_value_recovery_table.take();
    let mut module = Importer::default().import(file)?;
    let entries = table.into_iter().flat_map(|table| table.entries);
    module.config.origin_recovery_table =
        entries.map(|entry| recovery(entry, depth)).collect::<Result<_, _>>()?;
    Ok(module)
}

/// How often recovery modules may nest: they are texts within texts, and quotes double with every level.
const MAX_RECOVERIES: u32 = 4;

fn recovery(entry: pb::OriginalValueRecovery, depth: u32) -> Result<OriginRecovery, ImportError> {
    if depth == MAX_RECOVERIES {
        return Err(ImportError::TooDeep);
    }
    let array = |array: Option<_>| original_array(array.unwrap_or_default()).map_err(ImportError::Module);
    let recovery_module = match entry.recovery_module.is_empty() {
        true => String::new(),
        false => crate::print(&module_of(entry.recovery_module, depth + 1)?),
    };
    let (old, new) = (array(entry.old_original_array)?, array(entry.new_original_array)?);
    Ok(OriginRecovery { old, new, recovery_module: recovery_module.into() })
}

/// Field 1 is the module of an `HloProto` and the name of an `HloModuleProto`. A name does not read as a message with
/// computations.
pub(super) fn holds_module(mut bytes: &[u8]) -> bool {
    let mut first = None;
    while let (false, Ok((number, _, payload))) = (bytes.is_empty(), next_field(&mut bytes)) {
        if number == 1 {
            first = Some(payload);
        }
    }
    let Some(mut inner) = first else { return false };
    let mut has_computations = false;
    while !inner.is_empty() {
        match next_field(&mut inner) {
            Ok((number, ..)) => has_computations |= number == 3,
            // If the file is truncated, so is the module in it.
            Err(_) => return false,
        }
    }
    has_computations
}

fn find_dropped(schema: &'static super::wire::Schema, bytes: &[u8]) -> Result<Vec<Warning>, ImportError> {
    let (mut warnings, mut seen) = (Vec::new(), FxHashSet::default());
    scan(schema, bytes, &mut |message, field| {
        let warning = Warning { message, field };
        if seen.insert(warning.clone()) {
            warnings.push(warning);
        }
    })?;
    Ok(warnings)
}

/// The module so far, and the meanings of the file's ids in it.
struct Importer {
    module: Module,
    computations: FxHashMap<i64, ComputationId>,
    /// Ids are unique in a computation at least.
    instructions: FxHashMap<(ComputationId, i64), InstructionId>,
}

impl Default for Importer {
    fn default() -> Importer {
        Importer {
            module: Module::new(""),
            computations: FxHashMap::default(),
            instructions: FxHashMap::default(),
        }
    }
}

impl Importer {
    fn import(mut self, file: Kept<pb::HloModuleProto>) -> Result<Module, ImportError> {
        let Kept { message: mut file, unknown } = file;
        let computations: Vec<ComputationProto> =
            file.computations.drain(..).map(Kept::decode).collect::<Result<_, _>>()?;
        for computation in &computations {
            let id = self.module.add_computation(computation.message.name.as_str());
            if self.computations.insert(computation.message.id, id).is_some() {
                return Err(ImportError::DuplicateComputation(computation.message.id));
            }
        }
        self.module.entry = self
            .computations
            .get(&file.entry_computation_id)
            .copied()
            .ok_or(ImportError::Entry(file.entry_computation_id))?;
        for (index, computation) in computations.into_iter().enumerate() {
            self.computation(ComputationId::new(index), computation)?;
        }
        self.module_fields(file, unknown).map_err(ImportError::Module)?;
        Ok(self.module)
    }

    fn module_fields(&mut self, file: pb::HloModuleProto, unknown: Vec<u8>) -> Result<(), FieldError> {
        self.module.name = file.name.into();
        let config = &mut self.module.config;
        config.unknown_fields = unknown.into();
        config.frontend_attributes = frontend_attributes(file.frontend_attributes);
        config.stack_frames = file.stack_frame_index.map(stack_frames).unwrap_or_default();
        config.entry_computation_layout = file.host_program_shape.as_ref().map(program_shape).transpose()?;
        for entry in file.input_output_alias.into_iter().flat_map(|aliases| aliases.entries) {
            const FIELD: &str = "input_output_alias";
            config.input_output_alias.push(InputOutputAlias {
                output_index: shape_index(FIELD, &entry.output_shape_index)?,
                parameter: number(FIELD, entry.parameter_number)?,
                parameter_index: shape_index(FIELD, &entry.parameter_shape_index)?,
                kind: match entry.kind {
                    1 => AliasKind::MayAlias,
                    2 => AliasKind::MustAlias,
                    other => return Err(FieldError::value("input_output_alias kind", other)),
                },
            });
        }
        for entry in file.buffer_donor.into_iter().flat_map(|donors| donors.entries) {
            config.buffer_donors.push(BufferDonor {
                parameter: number("buffer_donor", entry.parameter_number)?,
                index: shape_index("buffer_donor", &entry.parameter_shape_index)?,
            });
        }
        if let Some(schedule) = file.schedule {
            self.schedule(schedule)?;
        }
        Ok(())
    }

    /// Puts instructions in the order of the schedule. Computations without a sequence, as fusions are, keep theirs.
    fn schedule(&mut self, schedule: pb::HloScheduleProto) -> Result<(), FieldError> {
        self.module.is_scheduled = true;
        for entry in schedule.sequences {
            let field = "schedule";
            let unknown = FieldError::UnknownComputation { field, id: entry.key };
            let computation = self.computations.get(&entry.key).copied().ok_or(unknown)?;
            let ids = entry.value.unwrap_or_default().instruction_ids;
            let find = |id: i64| {
                let found = self.instructions.get(&(computation, id)).copied();
                found.ok_or(FieldError::UnknownInstruction { field, id })
            };
            let sequence = ids.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
            let distinct: FxHashSet<InstructionId> = sequence.iter().copied().collect();
            let listed = &mut self.module.computations[computation].instructions;
            if sequence.len() != listed.len() || distinct.len() != listed.len() {
                return Err(FieldError::Schedule);
            }
            *listed = sequence;
        }
        Ok(())
    }

    fn computation(&mut self, id: ComputationId, computation: ComputationProto) -> Result<(), ImportError> {
        let Kept { message: mut computation, unknown } = computation;
        let name = computation.name.clone();
        let wrong = |source| ImportError::Computation { computation: name.clone(), source };

        // References may lead forward, so ids come first. They are all that is decoded twice.
        let first = self.module.instructions.len();
        for (offset, bytes) in computation.instructions.iter().enumerate() {
            let file_id = instruction_id(bytes)?;
            let instruction = InstructionId::new(first + offset);
            if self.instructions.insert((id, file_id), instruction).is_some() {
                return Err(wrong(FieldError::DuplicateInstruction(file_id)));
            }
        }
        let mut parameters = Vec::new();
        for bytes in computation.instructions.drain(..) {
            let proto = InstructionProto::decode(bytes)?;
            let instruction_name = proto.message.name.clone();
            let instruction = self.instruction(id, proto).map_err(|source| ImportError::Instruction {
                instruction: instruction_name,
                computation: name.clone(),
                source,
            })?;
            let number = match instruction.op {
                Op::Parameter { number } => Some(number),
                _ => None,
            };
            let instruction = self.module.add_instruction(instruction);
            parameters.extend(number.map(|number| (number, instruction)));
        }
        parameters.sort_unstable();
        let root = self.instructions.get(&(id, computation.root_id)).copied();
        let root = root.ok_or_else(|| {
            wrong(FieldError::UnknownInstruction { field: "root_id", id: computation.root_id })
        })?;
        let target = &mut self.module.computations[id];
        target.root = root;
        target.parameters = parameters.into_iter().map(|(_, instruction)| instruction).collect();
        target.execution_thread = computation.execution_thread.into();
        target.unknown_fields = unknown.into();
        Ok(())
    }

    fn instruction(
        &mut self,
        parent: ComputationId,
        proto: InstructionProto,
    ) -> Result<Instruction, FieldError> {
        let Kept { message: mut proto, unknown } = proto;
        let shape = shape(proto.shape.as_deref().ok_or(FieldError::Missing("shape"))?)?;
        let operands = self.references(parent, "operand_ids", &proto.operand_ids)?;
        let control_predecessors =
            self.references(parent, "control_predecessor_ids", &proto.control_predecessor_ids)?;
        let op = self.op(&mut proto, &shape, &operands)?;
        let extras = Extras {
            sharding: proto.sharding.take().map(|s| sharding(*s)).transpose()?,
            frontend_attributes: frontend_attributes(proto.frontend_attributes.take()),
            statistics: proto.statistics_viz.as_deref().and_then(statistics),
            parameter_replication: proto
                .parameter_replication
                .take()
                .map_or_else(Vec::new, |p| p.replicated_at_leaf_buffers),
            origin: proto.original_value.take().map(|value| original_value(*value, &shape)).transpose()?,
            result_accuracy: proto.result_accuracy.as_deref().and_then(result_accuracy),
            unknown_fields: unknown.into(),
        };
        let called = proto.called_computation_ids.iter().map(|&id| {
            let unknown = FieldError::UnknownComputation { field: "called_computation_ids", id };
            self.computations.get(&id).copied().ok_or(unknown)
        });
        let mut called = called.collect::<Result<SmallVec<_>, _>>()?;
        if matches!(op, Op::AsyncUpdate(_) | Op::AsyncDone(_)) && called.is_empty() {
            let before = operands.first().and_then(|&before| self.module.instructions.get(before));
            called = before.map_or_else(SmallVec::new, |before| before.called.clone());
        }
        let metadata = proto.metadata.take().map(|kept| metadata(*kept)).filter(|m| *m != Default::default());
        let shape = self.module.intern(shape);
        let mut instruction = Instruction::new(proto.name, shape, op, operands, parent);
        instruction.called = called;
        instruction.control_predecessors = control_predecessors;
        instruction.metadata = metadata.map(Arc::new);
        instruction.backend_config =
            (!proto.backend_config.is_empty()).then(|| proto.backend_config.as_ref().into());
        instruction.extras = (extras != Extras::default()).then(|| Box::new(extras));
        Ok(instruction)
    }

    fn references(
        &self,
        computation: ComputationId,
        field: &'static str,
        ids: &[i64],
    ) -> Result<Vec<InstructionId>, FieldError> {
        let find = |&id: &i64| {
            let found = self.instructions.get(&(computation, id)).copied();
            found.ok_or(FieldError::UnknownInstruction { field, id })
        };
        ids.iter().map(find).collect()
    }
}

/// The id of an instruction, without the rest of it.
fn instruction_id(bytes: &Bytes) -> Result<i64, ImportError> {
    const ID: u32 = 35;
    let (mut rest, mut id) = (bytes.as_ref(), 0);
    while !rest.is_empty() {
        let field = rest;
        let (number, ..) = next_field(&mut rest)?;
        if number == ID {
            let mut field = field;
            prost::encoding::decode_key(&mut field)?;
            id = prost::encoding::decode_varint(&mut field)?.cast_signed();
        }
    }
    Ok(id)
}
