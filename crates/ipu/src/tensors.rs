//! Tensors: the items to spread over tiles. All values that share storage are one tensor, since an in-place update must
//! stay in place.

use cranelift_entity::{PrimaryMap, SecondaryMap, entity_impl, packed_option::PackedOption};
use memplan_analysis::{Costs, Facts, LiveRange, Time, ValueId, ValueKind, union_of_ranges};
use memplan_ir::{ArrayShape, Module, Shape};
use memplan_memory::{Bytes, Target};
use memplan_plan_hlo::{PlanError, Storage, StorageId, StorageKind, Storages, TakeOver, storages};

/// A tensor: values that share storage.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(u32);
entity_impl!(TensorId, "tensor");

/// An item to spread over tiles.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The instruction that defines its largest value, with the place in a tuple where it has one.
    pub name: String,
    /// How many elements.
    pub elements: u64,
    /// Bytes of one.
    pub element_bytes: u64,
    /// Extents of its largest value.
    pub dimensions: Vec<i64>,
    /// Its role for the caller.
    pub role: Role,
    /// When its bytes are needed: disjoint, ascending.
    pub busy: Vec<LiveRange>,
    /// When instructions read or write it, ascending; each instant once.
    pub touches: Vec<Touch>,
    /// For how many micro-batches it is kept: 1 but for the stashes of a pipeline.
    pub copies: u64,
    /// When it is on the chip if it lives outside; `None` when it does not.
    pub streamed: Option<Streaming>,
}

/// How a tensor outside the chip is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streaming {
    /// Bytes that are moved in one run.
    pub moved: Bytes,
    /// When it is on the chip: disjoint, ascending.
    pub visits: Vec<Visit>,
}

/// A time that a tensor which lives outside the chip, or a part of it, is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visit {
    /// When.
    pub range: LiveRange,
    /// Bytes that are there at once, on all tiles together.
    pub bytes: Bytes,
    /// Bytes that are there one part after the other.
    pub moved: Bytes,
}

/// An instant at which a tensor is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// When.
    pub time: Time,
    /// Whether it is written.
    pub writes: bool,
    /// Bytes of it that are read or written: all, or a slice.
    pub bytes: Bytes,
    /// In how many parts one after the other.
    pub phases: u64,
}

/// The role of a tensor for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A parameter, or a result in the memory of one.
    Argument,
    /// Constant data.
    Constant,
    /// A result.
    Output,
    /// Nothing.
    Temp,
}

/// All tensors of a program.
#[derive(Clone, Debug)]
pub struct Tensors {
    /// The tensors, by the order of their storages.
    pub all: PrimaryMap<TensorId, Tensor>,
    of_value: SecondaryMap<ValueId, PackedOption<TensorId>>,
}

impl Streaming {
    /// The visit at a time.
    pub fn at(&self, time: Time) -> Option<&Visit> {
        let after = self.visits.partition_point(|visit| visit.range.start <= time);
        self.visits[..after].last().filter(|visit| visit.range.is_live_at(time))
    }
}

impl Tensor {
    /// Whether it has its bytes for the whole run.
    pub fn is_always_live(&self) -> bool {
        matches!(self.role, Role::Argument | Role::Constant) && self.streamed.is_none()
    }

    /// Whether anything of it is ever on the chip.
    pub fn is_here(&self) -> bool {
        !self.busy.is_empty() || self.streamed.is_some()
    }

    /// Element width and extents, for people.
    pub fn shape_text(&self) -> String {
        let extents: Vec<String> = self.dimensions.iter().map(i64::to_string).collect();
        format!("{} bytes x [{}]", self.element_bytes, extents.join(","))
    }

    /// Bytes without rounding.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.elements.saturating_mul(self.element_bytes))
    }
}

impl Tensors {
    /// Finds the tensors of a program. Close to linear in positions.
    ///
    /// # Errors
    /// When values that must share storage cannot.
    pub fn new(module: &Module, facts: &Facts, target: &Target) -> Result<Tensors, PlanError> {
        let storages = storages(module, facts, target, TakeOver::Any)?;
        let mut tensors = Tensors { all: PrimaryMap::new(), of_value: SecondaryMap::new() };
        let mut of_storage: SecondaryMap<StorageId, PackedOption<TensorId>> = SecondaryMap::new();
        for (id, storage) in storages.all.iter() {
            if storage.size > Bytes::ZERO && storage.kind != StorageKind::Nowhere {
                let largest = largest_value(storage, &storages);
                of_storage[id] = tensors.all.push(tensor(module, facts, storage, largest)).into();
            }
        }
        for value in facts.flow.values.keys() {
            tensors.of_value[value] = match storages.values[value].size {
                Bytes::ZERO => None.into(),
                _ => of_storage[storages.of(value)],
            };
        }
        tensors.find_touches(module, facts, target);
        Ok(tensors)
    }

    /// The tensor of a value; `None` for what needs no memory.
    pub fn of(&self, value: ValueId) -> Option<TensorId> {
        self.of_value[value].expand()
    }

    fn find_touches(&mut self, module: &Module, facts: &Facts, target: &Target) {
        let costs = Costs::new(module, &facts.graph, &facts.in_place, target);
        for (time, &id) in (0..).zip(&facts.line.instructions) {
            let instruction = &module.instructions[id];
            // An instruction that calls a computation touches nothing; the instructions inside do.
            if instruction.op.only_passes_on() || instruction.op.traits().role == memplan_ir::Role::Calls {
                continue;
            }
            for &operand in &instruction.operands {
                for position in facts.flow.positions.of(operand) {
                    self.touch(facts.flow.value_at(position), time, false);
                }
            }
            for position in facts.flow.positions.of(id) {
                let value = facts.flow.value_at(position).filter(|&value| {
                    let value = &facts.flow.values[value];
                    value.definition == position && value.kind == ValueKind::Written
                });
                self.touch(value, time, true);
            }
            for access in &costs.work(id).accesses {
                let of = access.operand.map_or(id, |operand| instruction.operands[operand as usize]);
                let value = facts.flow.find(of, &access.index);
                if let Some(touch) = value.and_then(|value| self.last_touch(value)).filter(|t| t.time == time)
                {
                    touch.bytes = touch.bytes.saturating_add(access.bytes);
                }
            }
        }
        // Tensors without known accesses may be touched anywhere.
        for tensor in self.all.values_mut() {
            let whole = tensor.bytes();
            for touch in &mut tensor.touches {
                touch.bytes = if touch.bytes == Bytes::ZERO { whole } else { touch.bytes.min(whole) };
            }
        }
    }

    fn last_touch(&mut self, value: ValueId) -> Option<&mut Touch> {
        let tensor = self.of(value)?;
        self.all[tensor].touches.last_mut()
    }

    fn touch(&mut self, value: Option<ValueId>, time: Time, writes: bool) {
        let Some(tensor) = value.and_then(|value| self.of(value)) else { return };
        match self.all[tensor].touches.last_mut() {
            Some(last) if last.time == time => last.writes |= writes,
            _ => self.all[tensor].touches.push(Touch { time, writes, bytes: Bytes::ZERO, phases: 1 }),
        }
    }
}

/// The largest value of a storage, the first of equals.
fn largest_value(storage: &Storage, storages: &Storages) -> ValueId {
    let values = storage.values.iter().copied();
    values
        .max_by_key(|&v| (storages.values[v].size, std::cmp::Reverse(v)))
        .expect("a storage with bytes has values")
}

fn tensor(module: &Module, facts: &Facts, storage: &Storage, value: ValueId) -> Tensor {
    let definition = facts.flow.values[value].definition;
    let instruction = facts.flow.positions.instruction(definition);
    let index = facts.flow.positions.shape_index(definition);
    let mut name = module.instructions[instruction].name.to_string();
    if !index.is_root() {
        name.push_str(&index.to_string());
    }
    let array = module.shape(instruction).subshape(index).and_then(Shape::as_array);
    let element_bytes = array.map_or(1, |array| u64::from(array.element_type.byte_width()).max(1));
    Tensor {
        name,
        // Padding and packing of elements below a byte count as they are stored.
        elements: storage.size.0.div_ceil(element_bytes),
        element_bytes,
        dimensions: array.map_or_else(Vec::new, |array: &ArrayShape| array.dimensions.to_vec()),
        role: match storage.kind {
            StorageKind::Argument => Role::Argument,
            StorageKind::Constant => Role::Constant,
            StorageKind::Output => Role::Output,
            StorageKind::Temp | StorageKind::Nowhere => Role::Temp,
        },
        busy: match storage.kind {
            StorageKind::Argument | StorageKind::Constant => {
                vec![LiveRange { start: 0, end: facts.line.end() }]
            }
            _ => union_of_ranges(storage.busy.clone()),
        },
        touches: Vec::new(),
        copies: 1,
        streamed: None,
    }
}
