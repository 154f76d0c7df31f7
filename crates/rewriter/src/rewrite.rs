//! Rewrites a module by rules: visits instructions in order, replaces each, and cleans up once at the end.
//!
//! A pass gives a *rule*, which looks at one instruction and downwards, through operands, and either leaves it alone or
//! returns its replacement: another instruction of the computation, or a new one made with [`Rewriter::emit`]. Users
//! are not updated at once. Instead each instruction, at its turn, looks its operands up in a table, so a replacement
//! costs the same for one user or a million:
//!
//! ```text
//!   text              table             what the rule sees
//!   a = parameter(0)
//!   b = reshape(a)    b -> a
//!   c = negate(b)                       c = negate(a)
//! ```
//!
//! Operands precede users, so when the rule sees an instruction, its operands are final. New instructions are visited
//! right after the rule that made them, operands first. So one sweep is a fixpoint for rules that only look downwards;
//! rules that also count uses may need a second one.
//!
//! A replacement takes the position of the replaced instruction, so operands still precede users in the text, and a
//! schedule stays a schedule. [`Rewriter::finish`] drops unused instructions, and compacts. Everything is linear in the
//! instructions visited and made.

use cranelift_entity::{EntityRef, EntitySet, SecondaryMap};
use memplan_ir::{
    ArrayShape, BinaryOp, ComputationId, Cursor, Dimensions, ElementType, Insert, Instruction, InstructionId,
    Literal, Module, Names, Op, PackedOption, Role, Scalar, Shape, ShapeId,
};
use smallvec::SmallVec;

use crate::loops::scalar;
use crate::side_effects::SideEffects;
use crate::unshare::unshare_async;

/// The most instructions that the rules of one sweep may make, per instruction of the module. Rules that shrink the
/// module stay far below; the bound stops a pair of rules that undo each other.
const MAX_GROWTH: usize = 16;

/// A module under rewriting, by rules that say what replaces an instruction.
///
/// A rule looks at one instruction and at its operands, and returns the instruction's replacement: another one of the
/// same computation, or a new one made with [`Rewriter::emit`]. [`Rewriter::sweep`] applies it to every instruction,
/// operands first; [`Rewriter::finish`] drops unused instructions. A replacement must have the same shape, up to the
/// layout; a new one gets the layout too.
///
/// Parameters, instructions with side effects and both ends of control dependencies are *pinned*: rules see them, but
/// their replacements are ignored.
///
/// The module must be valid ([`memplan_ir::verify`]), and ids must be of this module: methods panic for others. Methods
/// take constant time unless documented otherwise.
///
/// ```
/// use memplan_ir::{BinaryOp, Op};
/// use memplan_rewriter::Rewriter;
///
/// let mut module = memplan_hlo::parse(
///     "HloModule m
///      ENTRY main {
///        p = f32[8] parameter(0)
///        two = f32[] constant(2)
///        twos = f32[8] broadcast(two), dimensions={}
///        ROOT r = f32[8] multiply(p, twos)
///      }",
/// )?;
/// let mut rewriter = Rewriter::new(&mut module);
/// // 2 x = x + x
/// rewriter.sweep(|r, id| {
///     let is_product = *r.op(id) == Op::Binary(BinaryOp::Multiply);
///     if !is_product || !r.splat(r.operand(id, 1))?.is_value(2) {
///         return None;
///     }
///     let (x, shape) = (r.operand(id, 0), r.shape(id).clone());
///     Some(r.emit(Op::Binary(BinaryOp::Add), [x, x], shape))
/// });
/// assert!(rewriter.finish());
/// // The constant and its broadcast are gone.
/// assert_eq!(module.entry_computation().instructions.len(), 2);
/// # Ok::<(), memplan_hlo::ParseError>(())
/// ```
pub struct Rewriter<'m> {
    module: &'m mut Module,
    /// The replacement of an instruction.
    replacements: SecondaryMap<InstructionId, PackedOption<InstructionId>>,
    /// How often an instruction is an operand of one that is not dead; being the root counts once more.
    uses: SecondaryMap<InstructionId, u32>,
    /// Instructions that must stay as they are: parameters, side effects, either end of a control dependency.
    pinned: SecondaryMap<InstructionId, bool>,
    /// Instructions that others wait for without using them.
    awaited: EntitySet<InstructionId>,
    effects: SideEffects,
    /// The position of new instructions.
    site: Option<Site>,
    /// For new names. Most passes that change nothing never ask for one.
    names: Option<Names>,
    is_layout_sensitive: bool,
    changed: bool,
}

/// The position of new instructions.
#[derive(Clone, Copy)]
enum Site {
    /// In place of the instruction whose turn it is, with its metadata; in no list until the rule returns them.
    Turn(InstructionId),
    /// At the end of a new computation.
    EndOf(ComputationId),
}

impl<'m> Rewriter<'m> {
    /// Prepares to rewrite a module. Linear in its instructions.
    pub fn new(module: &'m mut Module) -> Rewriter<'m> {
        let n = module.instructions.len();
        let mut rewriter = Rewriter {
            replacements: SecondaryMap::new(),
            uses: SecondaryMap::new(),
            names: None,
            awaited: EntitySet::new(),
            pinned: SecondaryMap::new(),
            effects: SideEffects::default(),
            site: None,
            is_layout_sensitive: module.is_scheduled,
            changed: false,
            module,
        };
        rewriter.replacements.resize(n);
        rewriter.uses.resize(n);
        rewriter.pinned.resize(n);
        // Callees before callers, since side effects propagate to callers.
        for i in 0..rewriter.module.computations.len() {
            rewriter.pin_instructions(ComputationId::new(i));
            rewriter.count_uses(ComputationId::new(i));
        }
        rewriter
    }

    /// Applies a rule to every live instruction, operands first, callees before callers, and to the instructions that
    /// the rule makes right afterwards. Linear in the instructions visited.
    ///
    /// When a rule has made more than sixteen instructions for each one of a computation, the rest of the computation stays
    /// as it is.
    ///
    /// # Panics
    /// In builds with debug assertions, when a rule makes instructions and then returns `None`.
    pub fn sweep(&mut self, mut rule: impl FnMut(&mut Rewriter<'m>, InstructionId) -> Option<InstructionId>) {
        // Computations that rules make are left for another sweep.
        for i in 0..self.module.computations.len() {
            self.sweep_computation(ComputationId::new(i), &mut rule);
        }
    }

    /// Sweeps a module with one rule, and says whether anything was rewritten: [`Rewriter::sweep`], [`Rewriter::finish`].
    pub fn swept(
        module: &mut Module,
        rule: impl FnMut(&mut Rewriter<'_>, InstructionId) -> Option<InstructionId>,
    ) -> bool {
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(rule);
        rewriter.finish()
    }

    /// As [`Rewriter::sweep`], for one computation. Those that it calls must have been swept before.
    ///
    /// # Panics
    /// As [`Rewriter::sweep`].
    pub fn sweep_computation(
        &mut self,
        computation: ComputationId,
        rule: &mut impl FnMut(&mut Rewriter<'m>, InstructionId) -> Option<InstructionId>,
    ) {
        let instructions = std::mem::take(&mut self.module.computations[computation].instructions);
        let mut budget = MAX_GROWTH * (instructions.len() + 64);
        // The remaining instructions, in order: a replacement takes the position of the original, after its own
        // operands.
        let mut listed = Vec::with_capacity(instructions.len());
        let mut turns: Vec<InstructionId> = Vec::new();
        for &id in &instructions {
            turns.push(id);
            while let Some(id) = turns.pop() {
                if self.uses[id] == 0 {
                    self.changed = true;
                    continue;
                }
                self.resolve_operands(id);
                self.site = Some(Site::Turn(id));
                let first_new = self.module.instructions.len();
                let replacement = if budget > 0 { rule(self, id) } else { None };
                let last_new = self.module.instructions.len();
                debug_assert!(replacement.is_some() || first_new == last_new, "a rule looks before it makes");
                match replacement {
                    Some(new) if self.replace(id, new) => {
                        budget = budget.saturating_sub(last_new - first_new);
                        let new = (first_new..last_new).rev().map(InstructionId::new);
                        turns.extend(new.filter(|&id| self.module.instructions[id].parent == computation));
                    }
                    _ => listed.push(id),
                }
            }
        }
        self.site = None;
        self.module.computations[computation].instructions = listed;
    }

    /// Drops dead instructions and computations, orders the rest, and says whether anything was rewritten. Ids of before
    /// mean nothing afterwards. Linear in the instructions of the module, and nothing at all where nothing was rewritten.
    pub fn finish(mut self) -> bool {
        if self.changed {
            for i in 0..self.module.computations.len() {
                self.rebuild(ComputationId::new(i));
            }
            self.module.compact();
            unshare_async(self.module);
        }
        self.changed
    }

    // Looking.

    /// The current module. Operands of instructions not visited yet may be out of date.
    pub fn module(&self) -> &Module {
        self.module
    }

    /// An instruction.
    #[inline]
    pub fn get(&self, id: InstructionId) -> &Instruction {
        &self.module.instructions[id]
    }

    /// The operation of an instruction.
    #[inline]
    pub fn op(&self, id: InstructionId) -> &Op {
        &self.module.instructions[id].op
    }

    /// The operands of an instruction.
    #[inline]
    pub fn operands(&self, id: InstructionId) -> &[InstructionId] {
        &self.module.instructions[id].operands
    }

    /// An operand of an instruction.
    ///
    /// # Panics
    /// When there is no such operand.
    #[inline]
    pub fn operand(&self, id: InstructionId, i: usize) -> InstructionId {
        self.module.instructions[id].operands[i]
    }

    /// The result shape of an instruction.
    #[inline]
    pub fn shape(&self, id: InstructionId) -> &Shape {
        self.module.shape(id)
    }

    /// The result of an instruction where it is an array of static extents.
    pub fn array(&self, id: InstructionId) -> Option<&ArrayShape> {
        match self.module.shape(id) {
            Shape::Array(array) if !array.is_dynamic() && array.dimensions.iter().all(|&d| d >= 0) => {
                Some(array)
            }
            _ => None,
        }
    }

    /// The extents of an array of static extents.
    pub fn dimensions(&self, id: InstructionId) -> Option<Dimensions> {
        self.array(id).map(|array| array.dimensions.clone())
    }

    /// The type of an array of static extents.
    pub fn element_type(&self, id: InstructionId) -> Option<ElementType> {
        self.array(id).map(|array| array.element_type)
    }

    /// How often an instruction is an operand of live ones; one more for roots of computations and for pinned
    /// instructions.
    #[inline]
    pub fn uses(&self, id: InstructionId) -> u32 {
        self.uses[id]
    }

    /// The live instructions of a computation that was swept already, operands first, new ones included. Linear in them.
    pub fn live_instructions_of(&mut self, computation: ComputationId) -> Vec<InstructionId> {
        self.rebuild(computation);
        self.module.computations[computation].instructions.clone()
    }

    /// The root of a computation, as rewritten so far.
    pub fn root_of(&mut self, computation: ComputationId) -> InstructionId {
        let root = self.module.computations[computation].root;
        self.resolve(root)
    }

    /// Whether any instruction is not used by a live one. Linear in the instructions of the module.
    pub fn has_dead_instruction(&self) -> bool {
        let mut ids = self.module.computations.values().flat_map(|computation| &computation.instructions);
        ids.any(|&id| self.uses[id] == 0)
    }

    /// Whether an instruction is pinned, so that nothing can replace it.
    #[inline]
    pub fn is_pinned(&self, id: InstructionId) -> bool {
        self.pinned[id]
    }

    /// Whether layouts have meaning in the program: a bitcast changes its meaning with its operand's layout.
    pub fn is_layout_sensitive(&self) -> bool {
        self.is_layout_sensitive
    }

    /// The element that all elements of a constant, or of a broadcast of one, are. Linear in the bytes of the constant.
    pub fn splat(&self, id: InstructionId) -> Option<Scalar> {
        let constant = if let Op::Broadcast { .. } = self.op(id) { self.operand(id, 0) } else { id };
        scalar(self.module, constant)
    }

    // Making.

    /// Makes an instruction beside the one whose turn it is. Its metadata is that one's. The shape is taken as it is given;
    /// the methods of [`Insert`] infer it.
    ///
    /// # Panics
    /// Outside of a rule, since there is no instruction whose turn it is.
    pub fn emit(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        shape: impl Into<Shape>,
    ) -> InstructionId {
        self.insert_shaped(op, operands, shape)
    }

    /// As [`Rewriter::emit`], calling computations.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn emit_call(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: impl Into<Shape>,
    ) -> InstructionId {
        self.insert_instruction(op, operands, called, Some(shape.into()))
    }

    /// Makes a copy of an instruction, which `edit` changes: its name has to be new in its computation.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn copy(&mut self, original: InstructionId, edit: impl FnOnce(&mut Instruction)) -> InstructionId {
        let id = self.cursor().copy_edited(original, edit);
        self.take_note_of(id)
    }

    /// Makes a computation, which is not swept. It contains the instructions that `make` makes, in that order and
    /// without metadata; `make` returns the root.
    pub fn new_computation(
        &mut self,
        stem: &str,
        execution_thread: &str,
        make: impl FnOnce(&mut Rewriter<'m>) -> InstructionId,
    ) -> ComputationId {
        let name = self.fresh_name(stem);
        let id = self.module.add_computation(name);
        self.module.computations[id].execution_thread = execution_thread.into();
        let around = self.site.replace(Site::EndOf(id));
        let root = make(self);
        self.site = around;
        self.module.computations[id].root = root;
        self.uses[root] += 1;
        id
    }

    /// Makes the next parameter of the computation that [`Rewriter::new_computation`] is making.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn parameter(&mut self, stem: &str, shape: Shape) -> InstructionId {
        let id = self.cursor().named(stem).parameter(shape);
        self.take_note_of(id)
    }

    /// A computation of two scalars, as reductions call them.
    pub fn combiner(&mut self, stem: &str, op: BinaryOp, element_type: ElementType) -> ComputationId {
        self.new_computation(stem, "", |r| {
            let [x, y] = [0, 1].map(|_| r.parameter("parameter", Shape::scalar(element_type)));
            r.binary(op, x, y)
        })
    }

    /// A cursor at the position of new instructions.
    fn cursor(&mut self) -> Cursor<'_> {
        let names = self.names.get_or_insert_with(|| Names::beyond(self.module));
        match self.site.expect("rules run at an instruction") {
            Site::Turn(id) => {
                let computation = self.module.instructions[id].parent;
                Cursor::unlisted(self.module, names, computation).with_metadata_of(id)
            }
            Site::EndOf(computation) => Cursor::end(self.module, names, computation),
        }
    }

    /// Counts the uses of a new instruction's operands, and keeps it if it must stay.
    fn take_note_of(&mut self, id: InstructionId) -> InstructionId {
        let instruction = &self.module.instructions[id];
        for &operand in &instruction.operands {
            self.uses[operand] += 1;
        }
        if let Some(Site::EndOf(computation)) = self.site {
            self.effects.note(computation, instruction);
        }
        let has_control = !instruction.control_predecessors.is_empty();
        if self.effects.of(instruction) || matches!(instruction.op, Op::Parameter { .. }) {
            self.pinned[id] = true;
            self.uses[id] += 1;
        }
        if has_control {
            self.pin_with_control_predecessors(id);
        }
        id
    }

    /// The id of a shape, which is added when new.
    pub fn intern(&mut self, shape: Shape) -> ShapeId {
        self.module.intern(shape)
    }

    /// Makes a constant, in row-major layout.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn constant(&mut self, literal: Literal) -> InstructionId {
        let shape = literal_shape(&literal);
        self.emit(Op::Constant(literal), [], shape)
    }

    /// Makes an array whose elements are all the same: a constant, broadcast unless it is a scalar.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn splat_array(&mut self, value: Scalar, dimensions: &[i64]) -> InstructionId {
        let scalar = self.constant(value.literal());
        self.broadcast_scalar(scalar, dimensions)
    }

    /// Broadcasts a scalar to an array; for no dimensions, the scalar itself.
    ///
    /// # Panics
    /// As [`Rewriter::emit`], and when the operand is no array.
    pub fn broadcast_scalar(&mut self, scalar: InstructionId, dimensions: &[i64]) -> InstructionId {
        if dimensions.is_empty() {
            return scalar;
        }
        let element_type = self.element_type(scalar).expect("a scalar is an array");
        let shape = Shape::array(element_type, dimensions.iter().copied());
        self.emit(Op::Broadcast { dimensions: Dimensions::new() }, [scalar], shape)
    }

    /// An array with its dimensions in another order: the array itself if it has that order. `None` unless it is an
    /// array of static extents.
    ///
    /// # Panics
    /// As [`Rewriter::emit`], and when the order names a dimension that the array does not have.
    pub fn transposed(&mut self, id: InstructionId, order: &Dimensions) -> Option<InstructionId> {
        if order.is_sorted() {
            return Some(id);
        }
        let array = self.array(id)?;
        let extents: Dimensions = order.iter().map(|&d| array.dimensions[d as usize]).collect();
        let shape = Shape::array(array.element_type, extents);
        Some(self.emit(Op::Transpose { dimensions: order.clone() }, [id], shape))
    }

    /// The elements of an array in row-major order with other extents: the array itself if it has these. `None` if it is no
    /// array.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn reshaped(&mut self, id: InstructionId, extents: &[i64]) -> Option<InstructionId> {
        let has_them = self.array(id)?.dimensions[..] == *extents;
        Some(if has_them { id } else { self.reshape(id, extents.iter().copied()) })
    }

    /// A reduction of one transposed array as one of the array before: the order of the reduced dimensions does not matter,
    /// that of the others is restored on the smaller result. `None` for anything else, and at either end of a control
    /// dependency.
    ///
    /// # Panics
    /// As [`Rewriter::emit`].
    pub fn reduced_before_transpose(&mut self, id: InstructionId) -> Option<InstructionId> {
        let Op::Reduce { dimensions } = self.op(id) else { return None };
        let &[transposed, initial] = self.operands(id) else { return None };
        let Op::Transpose { dimensions: order } = self.op(transposed) else { return None };
        if self.has_control_dependencies(id) {
            return None;
        }
        let mut reduced: Dimensions = dimensions.iter().map(|&d| order[d as usize]).collect();
        reduced.sort_unstable();
        let kept: Dimensions = order.iter().copied().filter(|d| !reduced.contains(d)).collect();
        let mut sorted = kept.clone();
        sorted.sort_unstable();
        let (source, reducer, shape) =
            (self.operand(transposed, 0), self.get(id).called[0], self.shape(id).clone());
        let extents = self.dimensions(source)?;
        let small = Shape::array(self.element_type(id)?, sorted.iter().map(|&d| extents[d as usize]));
        let result = self.emit_call(Op::Reduce { dimensions: reduced }, [source, initial], [reducer], small);
        if kept == sorted {
            return Some(result);
        }
        let place = |d: &i64| sorted.iter().position(|other| other == d).expect("the same dimensions") as i64;
        let dimensions = kept.iter().map(place).collect();
        Some(self.emit(Op::Transpose { dimensions }, [result], shape))
    }

    /// A name that no instruction and no computation of the module has. The first call is linear in the instructions of the
    /// module.
    pub fn fresh_name(&mut self, base: &str) -> Box<str> {
        self.names.get_or_insert_with(|| Names::beyond(self.module)).fresh(base)
    }

    /// Whether an instruction is at either end of a control dependency, so that no other can replace it.
    pub fn has_control_dependencies(&self, id: InstructionId) -> bool {
        !self.module.instructions[id].control_predecessors.is_empty() || self.awaited.contains(id)
    }

    /// Lets an instruction be replaced although it is pinned: the rule sees to it that no side effect is lost.
    pub fn unpin(&mut self, id: InstructionId) {
        if std::mem::take(&mut self.pinned[id]) {
            self.uses[id] -= 1;
        }
    }

    /// Keeps both ends of the control dependencies of a new instruction.
    pub fn pin_with_control_predecessors(&mut self, id: InstructionId) {
        let predecessors = self.module.instructions[id].control_predecessors.clone();
        self.awaited.extend(predecessors.iter().copied());
        for id in predecessors.into_iter().chain([id]) {
            if !std::mem::replace(&mut self.pinned[id], true) {
                self.uses[id] += 1;
            }
        }
    }

    /// Records a change that was not a replacement.
    pub fn mark_changed(&mut self) {
        self.changed = true;
    }

    // Bookkeeping.

    fn pin_instructions(&mut self, computation: ComputationId) {
        for &id in &self.module.computations[computation].instructions {
            let instruction = &self.module.instructions[id];
            let has_effect = self.effects.note(computation, instruction);
            self.is_layout_sensitive |= matches!(instruction.op, Op::Bitcast);
            // A started operation must end, even if nobody needs the result.
            let ends_what_stays = instruction.op.goes_on() && self.pinned[instruction.operands[0]];
            self.pinned[id] |= matches!(instruction.op, Op::Parameter { .. })
                || has_effect
                || ends_what_stays
                || !instruction.control_predecessors.is_empty();
            for &before in &instruction.control_predecessors {
                self.pinned[before] = true;
                self.awaited.insert(before);
            }
        }
    }

    fn count_uses(&mut self, computation: ComputationId) {
        let computation = &self.module.computations[computation];
        self.uses[computation.root] += 1;
        // Users before operands: an instruction unused by then is dead, and uses nothing.
        for &id in computation.instructions.iter().rev() {
            self.uses[id] += u32::from(self.pinned[id]);
            if self.uses[id] > 0 {
                for &operand in &self.module.instructions[id].operands {
                    self.uses[operand] += 1;
                }
            }
        }
    }

    fn resolve(&mut self, id: InstructionId) -> InstructionId {
        let mut end = id;
        while let Some(next) = self.replacements[end].expand() {
            end = next;
        }
        // Later look-ups along this path take one step.
        let mut at = id;
        while let Some(next) = self.replacements[at].expand() {
            self.replacements[at] = end.into();
            at = next;
        }
        end
    }

    fn resolve_operands(&mut self, id: InstructionId) {
        // Nothing was replaced yet.
        if !self.changed {
            return;
        }
        for i in 0..self.module.instructions[id].operands.len() {
            let operand = self.module.instructions[id].operands[i];
            if self.replacements[operand].is_some() {
                let resolved = self.resolve(operand);
                self.module.instructions[id].operands[i] = resolved;
            }
        }
    }

    /// Replaces `old` by `new`; refuses where that would change what users see or drop what must stay.
    fn replace(&mut self, old: InstructionId, new: InstructionId) -> bool {
        let new = self.resolve(new);
        if new == old || self.pinned[old] || !self.can_stand_for(new, old) {
            if new != old && self.uses[new] == 0 {
                self.release_operands(new);
            }
            return false;
        }
        self.adopt_notes(new, old);
        self.replacements[old] = new.into();
        self.uses[new] += std::mem::take(&mut self.uses[old]);
        self.release_operands(old);
        self.changed = true;
        true
    }

    fn can_stand_for(&self, new: InstructionId, old: InstructionId) -> bool {
        let (new_shape, old_shape) = (self.get(new).shape, self.get(old).shape);
        if new_shape == old_shape {
            return true;
        }
        let (new_shape, old_shape) = (self.module.shape_of(new_shape), self.module.shape_of(old_shape));
        let is_new = self.uses[new] == 0;
        new_shape.same_ignoring_layout(old_shape)
            && (is_new || (!self.is_layout_sensitive && same_memory_spaces(new_shape, old_shape)))
    }

    /// An instruction that replaces another takes over its layout and notes, and its name where it is the
    /// same operation.
    fn adopt_notes(&mut self, new: InstructionId, old: InstructionId) {
        if self.uses[new] > 0 {
            return;
        }
        let [new, old] = self.module.instructions.get_many_mut([new, old]).expect("old and new differ");
        if !aliases_operands(&new.op) {
            new.shape = old.shape;
        }
        if new.opcode() == old.opcode() {
            std::mem::swap(&mut new.name, &mut old.name);
        }
        if new.extras.is_none() {
            new.extras.clone_from(&old.extras);
        }
    }

    /// Stops counting the uses by a dead instruction, and by the instructions that die with it.
    fn release_operands(&mut self, dead: InstructionId) {
        let mut dead: SmallVec<[InstructionId; 8]> = SmallVec::from_slice(&[dead]);
        while let Some(id) = dead.pop() {
            for i in 0..self.module.instructions[id].operands.len() {
                let operand = self.module.instructions[id].operands[i];
                let operand = self.resolve(operand);
                self.uses[operand] -= 1;
                if self.uses[operand] == 0 {
                    dead.push(operand);
                }
            }
        }
    }

    /// Lists the live instructions of a computation, with their final operands.
    fn rebuild(&mut self, computation: ComputationId) {
        let root = self.module.computations[computation].root;
        self.module.computations[computation].root = self.resolve(root);
        let mut instructions = std::mem::take(&mut self.module.computations[computation].instructions);
        instructions.retain(|&id| self.uses[id] > 0);
        instructions.iter().for_each(|&id| self.resolve_operands(id));
        self.module.computations[computation].instructions = instructions;
    }
}

/// Makes instructions beside the one whose turn it is, as [`Rewriter::emit`] does, with inferred shapes.
impl Insert for Rewriter<'_> {
    type Inserted = InstructionId;

    fn module(&self) -> &Module {
        self.module
    }

    fn insert_instruction(
        &mut self,
        op: Op,
        operands: impl IntoIterator<Item = InstructionId>,
        called: impl IntoIterator<Item = ComputationId>,
        shape: Option<Shape>,
    ) -> InstructionId {
        let id = self.cursor().insert_instruction(op, operands, called, shape);
        self.take_note_of(id)
    }
}

/// The row-major shape of a literal.
fn literal_shape(literal: &Literal) -> Shape {
    match literal {
        Literal::Array(array) => Shape::array(array.element_type, array.dimensions.iter().copied()),
        Literal::Tuple(elements) => Shape::Tuple(elements.iter().map(literal_shape).collect()),
        Literal::Token => Shape::Token,
    }
}

/// Whether a result is, in whole or in part, an operand itself, so that its layout is not this instruction's to choose.
fn aliases_operands(op: &Op) -> bool {
    let is_operand = matches!(op.traits().role, Role::PassesOn | Role::Regroups | Role::Calls);
    is_operand && *op != Op::Bitcast
}

fn same_memory_spaces(a: &Shape, b: &Shape) -> bool {
    match (a, b) {
        (Shape::Tuple(a), Shape::Tuple(b)) => a.iter().zip(b.iter()).all(|(a, b)| same_memory_spaces(a, b)),
        _ => {
            let space = |shape: &Shape| shape.as_array().map_or(0, ArrayShape::memory_space);
            space(a) == space(b)
        }
    }
}
