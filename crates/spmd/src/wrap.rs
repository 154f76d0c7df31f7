//! Makes a program for all devices from the program of one: one manual computation, as JAX writes a `shard_map` over the
//! whole program.
//!
//! ```text
//!   body { w = f32[512,4096] parameter(0) ... }
//!   ENTRY { w = f32[4096,4096] parameter(0)
//!           l = f32[512,4096] custom-call(w), custom_call_target="xla.sdy.GlobalToLocalShape"
//!           r = f32[128,4096] call(l), to_apply=body
//!           ROOT y = f32[1024,4096] custom-call(r), custom_call_target="xla.sdy.LocalToGlobalShape" }
//! ```

use memplan_ir::{
    ArrayShape, ComputationId, Cursor, CustomCall, Insert, InstructionId, Module, Names, Op, Shape, Sharding,
};
use memplan_rewriter::interface::set_interface;
use rustc_hash::FxHashMap;

use crate::cut::{Axis, Cut, Grid};
use crate::{OfOneDevice, array_parameters};

impl OfOneDevice {
    /// The program of all devices, with the same interface as the one that was partitioned, that runs `of_one` on each:
    /// this program of one device, rewritten. `None` where the original does not have Shardy's meshes, since XLA's older
    /// partitioner refuses Shardy's calls; where parameters or results are tuples within tuples; or where the interface is
    /// another one.
    pub fn for_all(&self, original: &Module, of_one: &Module) -> Option<Module> {
        original.config.frontend_attributes.get("xla.sdy.meshes")?;
        let parameters = array_parameters(of_one)?;
        let wholes = array_parameters(original)?;
        if parameters.len() != wholes.len() || wholes.len() != self.of_parameters.len() {
            return None;
        }
        let mut module = Module::new(original.name.clone());
        module.config = of_one.config.clone();
        module.config.num_partitions = original.config.num_partitions;
        module.config.frontend_attributes = original.config.frontend_attributes.clone();
        module.config.frontend_attributes.insert("xla.sdy.meshes".into(), self.grid.mesh().into());
        let mut copies: FxHashMap<ComputationId, ComputationId> = FxHashMap::default();
        for (id, _) in &of_one.computations {
            let copy = module.add_copy_of_computation(of_one, id, |callee| copies[&callee]);
            copies.insert(id, copy);
        }
        let body = copies[&of_one.entry];
        module.computations[body].name = "xla.sdy.manual_computation_body".into();
        let entry = module.add_computation(original.computations[original.entry].name.clone());
        module.entry = entry;
        let mut names = Names::new(&module);
        let mut given = Vec::new();
        for (&whole, cut) in wholes.iter().zip(&self.of_parameters) {
            let shape = original.shape(whole).clone();
            let id = module.add_parameter(entry, original.instructions[whole].name.clone(), shape);
            module.instructions[id].metadata = original.instructions[whole].metadata.clone();
            let extras = module.instructions[id].extras_mut();
            extras.sharding = Some(Sharding::Single(Box::new(self.grid.spec(cut))));
            let note = format!("#sdy.sharding<{}>", self.grid.note(cut));
            extras.frontend_attributes.insert("xla.sdy.sharding".into(), note.into());
            given.push(id);
        }
        let local_shapes: Vec<Shape> = parameters.iter().map(|&id| of_one.shape(id).clone()).collect();
        let locals = self.border(&mut module, &mut names, &given, &local_shapes, &self.of_parameters, true);
        let result = module.shape(module.computations[body].root).clone();
        let mut at = Cursor::end(&mut module, &mut names, entry);
        let call =
            at.insert_instruction(Op::Call { is_composite: false }, locals, [body], Some(result.clone()));
        let note = module.instructions[call].extras_mut();
        note.frontend_attributes.insert("inlineable".into(), "xla_late".into());
        let leaves: Vec<&ArrayShape> = match &result {
            Shape::Tuple(elements) => elements.iter().map(Shape::as_array).collect::<Option<_>>()?,
            one => vec![one.as_array()?],
        };
        if leaves.len() != self.of_results.len() {
            return None;
        }
        let whole_shapes: Vec<Shape> = leaves
            .iter()
            .zip(&self.of_results)
            .map(|(array, cut)| Shape::Array(self.grid.whole(array, cut)))
            .collect();
        let mut at = Cursor::end(&mut module, &mut names, entry);
        let parts = if result.is_tuple() { at.elements(call) } else { vec![call] };
        let root = match self.border(&mut module, &mut names, &parts, &whole_shapes, &self.of_results, false)
        {
            // Where results go, the border says; a sharding here would be one of GSPMD's, and XLA takes those or Shardy's.
            whole if result.is_tuple() => Cursor::end(&mut module, &mut names, entry).tuple(whole),
            whole => whole[0],
        };
        module.computations[entry].root = root;
        if original.shape(original.entry_computation().root).same_ignoring_layout(module.shape(root)) {
            set_interface(&mut module);
            module.compact();
            return Some(module);
        }
        None
    }

    /// The custom call at a border, and the arrays on its other side.
    fn border(
        &self,
        module: &mut Module,
        names: &mut Names,
        operands: &[InstructionId],
        shapes: &[Shape],
        cuts: &[Cut],
        is_entered: bool,
    ) -> Vec<InstructionId> {
        if operands.is_empty() {
            return Vec::new();
        }
        let (target, key) = match is_entered {
            true => ("xla.sdy.GlobalToLocalShape", "xla.sdy.in_shardings"),
            false => ("xla.sdy.LocalToGlobalShape", "xla.sdy.out_shardings"),
        };
        let shape = if shapes.len() == 1 { shapes[0].clone() } else { Shape::tuple(shapes.to_vec()) };
        let op = CustomCall { target: target.into(), has_side_effect: true, ..CustomCall::default() };
        let entry = module.entry;
        let mut at = Cursor::end(module, names, entry);
        let call = at.insert_shaped(Op::CustomCall(Box::new(op)), operands.iter().copied(), shape);
        let others = if shapes.len() == 1 { vec![call] } else { at.elements(call) };
        let notes: Vec<String> = cuts.iter().map(|cut| format!("<{}>", self.grid.note(cut))).collect();
        let all = (0..self.grid.extents.len() as Axis).map(|axis| format!("\"{}\"", Grid::name(axis)));
        let manual = all.collect::<Vec<_>>().join(", ");
        let attributes = &mut module.instructions[call].extras_mut().frontend_attributes;
        attributes.insert(key.into(), format!("#sdy.sharding_per_value<[{}]>", notes.join(", ")).into());
        attributes.insert("xla.sdy.manual_axes".into(), format!("#sdy<manual_axes{{{manual}}}>").into());
        others
    }
}
