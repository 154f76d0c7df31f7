//! The program of one of several devices that share its state: each holds a shard of every weight and moment, gathers a
//! weight for products, and updates its own shard.
//!
//! ```text
//!   w = f32[1024,768] parameter(0)              w = f32[128,768] parameter(0)
//!   y = f32[8,768] dot(x, w)              =>    a = f32[1024,768] all-gather(w), dimensions={0}
//!   g = f32[1024,768] dot(x, d)                 y = f32[8,768] dot(x, a)
//!   n = f32[1024,768] subtract(w, g)            g = f32[1024,768] dot(x, d)
//!                                               s = f32[128,768] slice(g), slice={[0:128], [0:768]}
//!                                               n = f32[128,768] subtract(w, s)
//! ```
//!
//! Works on the entry computation; elementwise results of a shard are shards. The slice represents the result of a
//! reduce-scatter on one device: the program is meant for planning, not for running.

use memplan_ir::{
    Access, ArrayShape, Collective, Cursor, Insert, InstructionId, Module, Names, Op, ReplicaGroups, Role,
    SliceDimension,
};
use memplan_rewriter::interface::set_interface;
use rustc_hash::FxHashMap;

/// A program with sharded state.
#[derive(Clone, Debug)]
pub struct FullySharded {
    /// The program of one device.
    pub module: Module,
    /// The gathered arrays, whole.
    pub gathered: Vec<ArrayShape>,
    /// The arrays that are summed over devices and scattered, whole.
    pub scattered: Vec<ArrayShape>,
}

/// Shares the parameters of the entry with these numbers among devices: each along its largest dimension that they divide.
/// Those that have none stay whole. Close to linear.
pub fn fully_shard(module: &Module, parameters: &[usize], devices: i64) -> FullySharded {
    let mut sharding = Sharding::new(module, devices);
    let entry = module.entry;
    let mut sharded = module.clone();
    for &number in parameters {
        sharding.cut_parameter(&mut sharded, number);
    }
    sharded.edit_in_order(entry, |module, id| sharding.visit(module, id));
    fit_interface(&mut sharded);
    let Sharding { gathered, scattered, .. } = sharding;
    FullySharded { module: sharded, gathered, scattered }
}

/// Sets the program's interface to its current parameters and root.
fn fit_interface(module: &mut Module) {
    let root = module.entry_computation().root;
    if module.instructions[root].op == Op::Tuple {
        module.reshape_tuple(root);
    }
    if module.config.entry_computation_layout.is_some() {
        set_interface(module);
    }
}

/// Which values of a program are cut, while it becomes that of one device.
struct Sharding {
    names: Names,
    devices: i64,
    /// The dimension along which a value is cut.
    cut: FxHashMap<InstructionId, usize>,
    /// The whole of a value that is cut.
    whole: FxHashMap<InstructionId, InstructionId>,
    /// The part of a value that is whole.
    part: FxHashMap<(InstructionId, usize), InstructionId>,
    gathered: Vec<ArrayShape>,
    scattered: Vec<ArrayShape>,
}

impl Sharding {
    fn new(module: &Module, devices: i64) -> Sharding {
        Sharding {
            names: Names::new(module),
            devices,
            cut: FxHashMap::default(),
            whole: FxHashMap::default(),
            part: FxHashMap::default(),
            gathered: Vec::new(),
            scattered: Vec::new(),
        }
    }

    fn cut_parameter(&mut self, module: &mut Module, number: usize) {
        let id = module.entry_computation().parameters[number];
        let Some(array) = module.shape(id).as_array() else { return };
        let divisible =
            (0..array.rank()).filter(|&d| array.dimensions[d] % self.devices == 0 && array.dimensions[d] > 0);
        let Some(dimension) = divisible.max_by_key(|&d| (array.dimensions[d], std::cmp::Reverse(d))) else {
            return;
        };
        self.cut(module, id, dimension);
    }

    /// Leaves one device a part of a value.
    fn cut(&mut self, module: &mut Module, id: InstructionId, dimension: usize) {
        let mut shape = module.shape(id).clone();
        if let Some(array) = shape.as_array_mut() {
            array.dimensions[dimension] /= self.devices;
        }
        module.set_shape(id, shape);
        self.cut.insert(id, dimension);
    }

    fn visit(&mut self, module: &mut Module, id: InstructionId) {
        let instruction = &module.instructions[id];
        let operands = instruction.operands.clone();
        let of_operand = operands.iter().find_map(|operand| self.cut.get(operand).copied());
        let is_root = id == module.entry_computation().root;
        match of_operand {
            None => {}
            Some(_) if is_root && instruction.op == Op::Tuple => {}
            Some(dimension) if Self::is_by_elements(module, id) => {
                for operand in operands {
                    self.read_part(module, id, operand, dimension);
                }
                self.cut(module, id, dimension);
            }
            Some(_) => {
                for operand in operands {
                    if let Some(&dimension) = self.cut.get(&operand) {
                        let whole = self.gather(module, id, operand, dimension);
                        module.replace_operand(id, operand, whole);
                    }
                }
            }
        }
        module.list(id);
    }

    fn is_by_elements(module: &Module, id: InstructionId) -> bool {
        let op = &module.instructions[id].op;
        let is_elementwise = op.traits().access == Access::Elementwise && op.traits().role == Role::Computes;
        is_elementwise && module.shape(id).as_array().is_some()
    }

    /// Lets an instruction read a part of an operand, cut along a dimension.
    fn read_part(
        &mut self,
        module: &mut Module,
        id: InstructionId,
        operand: InstructionId,
        dimension: usize,
    ) {
        let shape = module.shape(operand).clone();
        let Some(array) = shape.as_array().filter(|array| array.rank() > 0) else { return };
        let whole = match self.cut.get(&operand) {
            Some(&other) if other == dimension => return,
            Some(&other) => self.gather(module, id, operand, other),
            None => operand,
        };
        let part = match self.part.get(&(whole, dimension)) {
            Some(&part) => part,
            None => self.make_part(module, id, whole, dimension, array),
        };
        module.replace_operand(id, operand, part);
    }

    /// One group of all devices.
    fn all_devices(&self) -> ReplicaGroups {
        ReplicaGroups::List(vec![(0..self.devices).collect()])
    }

    fn make_part(
        &mut self,
        module: &mut Module,
        beside: InstructionId,
        whole: InstructionId,
        dimension: usize,
        of: &ArrayShape,
    ) -> InstructionId {
        let mut shape = of.clone();
        shape.dimensions[dimension] /= self.devices;
        let instruction = &module.instructions[whole];
        let name = instruction.name.clone();
        // Splats are as easily made small.
        let part = if let Op::Broadcast { dimensions } = &instruction.op
            && dimensions.is_empty()
        {
            let (op, operands) = (instruction.op.clone(), instruction.operands.clone());
            let mut at = Cursor::beside(module, &mut self.names, beside);
            at.named(&name).insert_shaped(op, operands, shape)
        } else {
            self.scattered.push(of.clone());
            let all = |&limit: &i64| SliceDimension { start: 0, limit, stride: 1 };
            let dimensions = shape.dimensions.iter().map(all).collect();
            let mut at = Cursor::beside(module, &mut self.names, beside);
            at.named(&name).insert_shaped(Op::Slice { dimensions }, [whole], shape)
        };
        self.part.insert((whole, dimension), part);
        part
    }

    /// The whole of a part, from all devices.
    fn gather(
        &mut self,
        module: &mut Module,
        beside: InstructionId,
        operand: InstructionId,
        dimension: usize,
    ) -> InstructionId {
        if let Some(&whole) = self.whole.get(&operand) {
            return whole;
        }
        let mut shape = module.shape(operand).clone();
        if let Some(array) = shape.as_array_mut() {
            array.dimensions[dimension] *= self.devices;
            self.gathered.push(array.clone());
        }
        let collective = Collective {
            replica_groups: self.all_devices(),
            channel_id: Some(1),
            use_global_device_ids: true,
            dimension: Some(dimension as i64),
            ..Collective::default()
        };
        let gather = Op::AllGather(Box::new(collective));
        let whole = Cursor::beside(module, &mut self.names, beside).insert_shaped(gather, [operand], shape);
        self.whole.insert(operand, whole);
        whole
    }
}
