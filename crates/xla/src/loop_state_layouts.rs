//! `loop-state-layouts`: stores state that a loop updates in place in the dimension order in which the loop reads it.
//!
//! ```text
//!   u = f32[8,64,4] dynamic-update-slice(state, x, i, t, 0)            state is f32[8,4,64], and so is u
//!   s = f32[1,64,4] dynamic-slice(u, i, 0, 0)                 =>       r = f32[4,64] reshape(dynamic-slice(u, ..))
//!   r = f32[4,64] transpose(reshape(s))
//! ```
//!
//! XLA assigns layouts to the body of a loop before it assigns one to the initial state: products in the body choose the
//! order of caches of keys and values, and XLA transposes the whole caches before and after the loop. Here layouts are
//! row-major, so dimensions change places instead. Seen in 0.12 on XLA GPU, on decoders with a loop over layers.
//!
//! A slice may be updated before it is read, and stored again after that. State that a loop only writes has the order in
//! which its rows are computed (`reduction-layouts`), if these are transposed to become rows.
//!
//! The same holds for state that is only read, if it is read as a whole, like the kernels of convolutions in a loop over
//! parts of a batch, or if the values that are read are gathered from all devices (`collective-layouts`).
//!
//! Left alone: slices of state whose initial value is not the caller's array, of other state that is not updated, and
//! state that is read in several orders or without a transpose. *Changed* means that state is stored in another order.

use memplan_ir::{
    ArrayShape, ComputationId, Cursor, Dimensions, Insert, InstructionId, Module, Names, Op, Shape, Users,
};
use memplan_rewriter::views::inverse;
use memplan_rewriter::{Context, PassError, PassFn, cost};

/// The pass.
pub const LOOP_STATE_LAYOUTS: PassFn = PassFn {
    name: "loop-state-layouts",
    description: "store updated loop state as products in the loop read it, as XLA's GPU compiler does",
    run,
};

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut names = Names::new(module);
    let loops: Vec<InstructionId> =
        module.instructions.keys().filter(|&id| module.instructions[id].op == Op::While).collect();
    let mut changed = false;
    let mut users = Users::new(module);
    for id in loops {
        for index in 0..module.shape(id).as_tuple().map_or(0, <[Shape]>::len) as u32 {
            let Some(state) = State::new(module, &users, id, index) else { continue };
            state.store_as_read(module, &mut names);
            users = Users::new(module);
            changed = true;
        }
    }
    if changed {
        module.compact();
    }
    Ok(changed)
}

/// An element of the state of a loop, and all that reads it.
struct State {
    of: InstructionId,
    index: u32,
    /// Dimension `i` of what is read is this one of the state.
    order: Dimensions,
    shape: ArrayShape,
    /// Where the body takes it from its parameter.
    elements: Vec<InstructionId>,
    updates: Vec<InstructionId>,
    /// Slices of the first dimension, and the reshapes that drop it.
    slices: Vec<[InstructionId; 2]>,
    /// Updates of such slices.
    row_updates: Vec<InstructionId>,
    /// Slices that are stored again.
    rows: Vec<InstructionId>,
    /// Transposes of the state, or of slices of it.
    reads: Vec<InstructionId>,
    /// Where the results of the loop are taken.
    results: Vec<InstructionId>,
}

impl State {
    fn new(module: &Module, users: &Users, of: InstructionId, index: u32) -> Option<State> {
        let instruction = &module.instructions[of];
        let &[body, condition] = instruction.called.as_slice() else { return None };
        let shape = module.shape(of).as_tuple()?[index as usize].as_array()?.clone();
        let init = &module.instructions[instruction.operands[0]];
        if shape.rank() < 2 || init.op != Op::Tuple {
            return None;
        }
        let given = init.operands[index as usize];
        let of_parameter = |computation: ComputationId| {
            let parameter = module.computations[computation].parameters[0];
            let takes = move |id: &&InstructionId| {
                module.instructions[**id].operands.first() == Some(&parameter)
                    && matches!(module.instructions[**id].op, Op::GetTupleElement { index: i } if i == index)
            };
            module.computations[computation].instructions.iter().filter(takes).copied().collect::<Vec<_>>()
        };
        let elements = of_parameter(body);
        if !of_parameter(condition).is_empty() || elements.is_empty() {
            return None;
        }
        let results = users.of(of).to_vec();
        let is_result =
            |&id: &InstructionId| matches!(module.instructions[id].op, Op::GetTupleElement { .. });
        if !results.iter().all(is_result) || users.of(instruction.operands[0]).len() != 1 {
            return None;
        }
        let takes = |id: &InstructionId| matches!(module.instructions[*id].op, Op::GetTupleElement { index: i } if i == index);
        let results = results.into_iter().filter(takes).collect();
        let mut state = State {
            of,
            index,
            order: Dimensions::new(),
            shape,
            elements,
            updates: Vec::new(),
            slices: Vec::new(),
            row_updates: Vec::new(),
            rows: Vec::new(),
            reads: Vec::new(),
            results,
        };
        state.follow(module, users, body)?;
        (state.is_read_whole() || state.reads.is_empty() || is_given(module, given)).then_some(state)
    }

    /// Collects all uses in the body; `None` where one of them does not fit.
    fn follow(&mut self, module: &Module, users: &Users, body: ComputationId) -> Option<()> {
        let root = module.computations[body].root;
        let mut values = self.elements.clone();
        let mut at = 0;
        while let Some(&value) = values.get(at) {
            at += 1;
            for &user in users.of(value) {
                let instruction = &module.instructions[user];
                let n_uses = instruction.operands.iter().filter(|&&operand| operand == value).count();
                match &instruction.op {
                    Op::Tuple if user == root => {
                        let is_here = instruction.operands[self.index as usize] == value;
                        (is_here && n_uses == 1).then_some(())?;
                    }
                    Op::DynamicUpdateSlice if instruction.operands[0] == value && n_uses == 1 => {
                        self.updates.push(user);
                        values.push(user);
                    }
                    Op::DynamicSlice { slice_sizes } if slice_sizes[0] == 1 => {
                        self.read_slice(module, users, user)?
                    }
                    Op::Transpose { dimensions } => self.read(module, user, dimensions.iter().copied())?,
                    _ => return None,
                }
            }
        }
        let is_stored_here = |&row: &InstructionId| {
            let is_update = |user: &InstructionId| self.updates.contains(user);
            users.of(row).iter().all(|user| is_update(user) && module.instructions[*user].operands[1] == row)
        };
        self.rows.iter().all(is_stored_here).then_some(())?;
        let result = module.instructions[root].operands[self.index as usize];
        let is_gathered = |&read: &InstructionId| is_gathered(module, users, read);
        let is_stored = self.updates.contains(&result)
            || self.elements.contains(&result)
                && (self.is_read_whole() || self.reads.iter().all(is_gathered));
        if self.reads.is_empty() {
            self.order = self.order_of_rows(module)?;
        }
        is_stored.then_some(())
    }

    /// The order in which rows are computed that only what follows the loop reads, where they are transposed to become
    /// rows; `None` if they are not.
    fn order_of_rows(&self, module: &Module) -> Option<Dimensions> {
        let mut orders = self.updates.iter().map(|&id| {
            let transpose = transposed_row(module, id)?;
            let Op::Transpose { dimensions } = &module.instructions[transpose].op else { return None };
            Some([0].into_iter().chain(inverse(dimensions).into_iter().map(|d| d + 1)).collect())
        });
        let order: Dimensions = orders.next()??;
        (!order.is_sorted() && orders.all(|other| other.as_ref() == Some(&order))).then_some(order)
    }

    fn is_read_whole(&self) -> bool {
        self.updates.is_empty() && self.slices.is_empty()
    }

    /// A slice, of which the first dimension is dropped before it is transposed, perhaps after an update of it, which may
    /// be stored again.
    fn read_slice(&mut self, module: &Module, users: &Users, slice: InstructionId) -> Option<()> {
        let &[reshape] = users.of(slice) else { return None };
        let dimensions = |id| module.shape(id).as_array().map(|array| &array.dimensions[..]);
        let drops_first = matches!(module.instructions[reshape].op, Op::Reshape { .. })
            && dimensions(reshape)? == &dimensions(slice)?[1..];
        drops_first.then_some(())?;
        self.slices.push([slice, reshape]);
        let mut rows = vec![reshape];
        while let Some(row) = rows.pop() {
            for &user in users.of(row) {
                let instruction = &module.instructions[user];
                let n_uses = instruction.operands.iter().filter(|&&operand| operand == row).count();
                match &instruction.op {
                    Op::Transpose { dimensions } => {
                        let order = [0].into_iter().chain(dimensions.iter().map(|d| d + 1));
                        self.read(module, user, order)?;
                    }
                    Op::DynamicUpdateSlice if instruction.operands[0] == row && n_uses == 1 => {
                        self.row_updates.push(user);
                        rows.push(user);
                    }
                    Op::Reshape { .. } if dimensions(user)?.split_first() == Some((&1, dimensions(row)?)) => {
                        self.rows.push(user);
                    }
                    _ => return None,
                }
            }
        }
        Some(())
    }

    /// Notes a read; `None` where others are in another order, or it is no transpose that moves bytes.
    fn read(&mut self, module: &Module, read: InstructionId, order: impl Iterator<Item = i64>) -> Option<()> {
        let order: Dimensions = order.collect();
        let is_first = self.reads.is_empty();
        if cost::moves_no_bytes(module, read) || !is_first && order != self.order {
            return None;
        }
        self.order = order;
        self.reads.push(read);
        Some(())
    }

    fn permuted(&self, dimensions: &[i64]) -> Dimensions {
        self.order.iter().map(|&d| dimensions[d as usize]).collect()
    }

    fn store_as_read(&self, module: &mut Module, names: &mut Names) {
        let State { of, index, .. } = *self;
        let stored: Shape =
            ArrayShape::new(self.shape.element_type, self.permuted(&self.shape.dimensions)).into();
        let (body, condition) = (module.instructions[of].called[0], module.instructions[of].called[1]);
        self.elements.iter().for_each(|&id| module.set_shape(id, stored.clone()));
        let row_order: Dimensions = self.order.iter().skip(1).map(|d| d - 1).collect();
        for &id in &self.updates {
            let update = module.instructions[id].operands[1];
            let row = transposed_row(module, id).filter(|_| self.reads.is_empty());
            let mut at = Cursor::unlisted(module, names, body);
            let update = match row {
                _ if self.rows.contains(&update) => update,
                Some(transpose) => {
                    let extents = at.module().shape(update).as_array().expect("a row is an array");
                    let extents = self.permuted(&extents.dimensions);
                    let row = at.module().instructions[transpose].operands[0];
                    at.reshape(row, extents)
                }
                None => at.transpose(update, self.order.iter().copied()),
            };
            update_in_order(module, id, update, &self.order);
        }
        for &slice in &self.slices {
            self.slice_as_stored(module, slice);
        }
        for &id in &self.row_updates {
            let update = module.instructions[id].operands[1];
            let update = Cursor::unlisted(module, names, body).transpose(update, row_order.iter().copied());
            update_in_order(module, id, update, &row_order);
        }
        for &id in &self.rows {
            let array = module.shape(id).as_array().expect("a row is an array");
            let shape = ArrayShape::new(array.element_type, self.permuted(&array.dimensions));
            module.set_shape(id, shape.into());
        }
        for &read in &self.reads {
            module.instructions[read].op = Op::Reshape { inferred_dimension: None };
        }
        self.store_outside(module, names, &stored);
        for computation in [module.instructions[of].parent, body] {
            module.put_operands_first(computation);
        }
        let in_tuple = |module: &mut Module, id: InstructionId| {
            let mut elements = module.shape(id).as_tuple().expect("the state is a tuple").to_vec();
            elements[index as usize] = stored.clone();
            module.set_shape(id, Shape::tuple(elements));
        };
        let tuples = [
            of,
            module.instructions[of].operands[0],
            module.computations[body].parameters[0],
            module.computations[body].root,
            module.computations[condition].parameters[0],
        ];
        tuples.into_iter().for_each(|id| in_tuple(module, id));
    }

    fn slice_as_stored(&self, module: &mut Module, [slice, reshape]: [InstructionId; 2]) {
        let starts = module.instructions[slice].operands[1..].to_vec();
        let instruction = &mut module.instructions[slice];
        let Op::DynamicSlice { slice_sizes } = &mut instruction.op else { unreachable!("a slice is read") };
        let sizes: Dimensions = self.order.iter().map(|&d| slice_sizes[d as usize]).collect();
        slice_sizes.clone_from(&sizes);
        for (at, &d) in self.order.iter().enumerate() {
            instruction.operands[1 + at] = starts[d as usize];
        }
        let row = ArrayShape::new(self.shape.element_type, sizes[1..].iter().copied());
        module.set_shape(slice, ArrayShape::new(self.shape.element_type, sizes).into());
        module.set_shape(reshape, row.into());
    }

    /// Transposes what the loop begins with, and its results.
    fn store_outside(&self, module: &mut Module, names: &mut Names, stored: &Shape) {
        let State { of, index, .. } = *self;
        let parent = module.instructions[of].parent;
        let init = module.instructions[of].operands[0];
        let given = module.instructions[init].operands[index as usize];
        let transposed = Cursor::unlisted(module, names, parent).transpose(given, self.order.iter().copied());
        module.instructions[init].operands[index as usize] = transposed;
        let back = inverse(&self.order);
        for &result in &self.results {
            let mut at = Cursor::unlisted(module, names, parent);
            let element =
                at.insert_instruction(Op::GetTupleElement { index }, [of], [], Some(stored.clone()));
            let instruction = &mut module.instructions[result];
            instruction.op = Op::Transpose { dimensions: back.clone() };
            instruction.operands = [element].into_iter().collect();
        }
    }
}

/// Updates an array whose dimensions are in another order.
fn update_in_order(module: &mut Module, id: InstructionId, update: InstructionId, order: &Dimensions) {
    let array = module.shape(id).as_array().expect("an array is updated").clone();
    let starts = module.instructions[id].operands[2..].to_vec();
    let instruction = &mut module.instructions[id];
    instruction.operands[1] = update;
    for (at, &d) in order.iter().enumerate() {
        instruction.operands[2 + at] = starts[d as usize];
    }
    let extents = order.iter().map(|&d| array.dimensions[d as usize]);
    module.set_shape(id, Shape::array(array.element_type, extents));
}

/// The transpose that makes the row of an update, but for a first dimension of one element.
fn transposed_row(module: &Module, update: InstructionId) -> Option<InstructionId> {
    let row = module.instructions[update].operands[1];
    let Op::Reshape { .. } = module.instructions[row].op else { return None };
    let transpose = module.instructions[row].operands[0];
    let dimensions = |id| module.shape(id).as_array().map(|array| &array.dimensions[..]);
    let is_row = dimensions(row)?.split_first() == Some((&1, dimensions(transpose)?));
    (is_row && matches!(module.instructions[transpose].op, Op::Transpose { .. })).then_some(transpose)
}

/// Whether a value is what the caller of the computation gives.
fn is_given(module: &Module, mut id: InstructionId) -> bool {
    while let Op::GetTupleElement { .. } | Op::Copy = module.instructions[id].op {
        id = module.instructions[id].operands[0];
    }
    matches!(module.instructions[id].op, Op::Parameter { .. })
}

/// Whether a value is only gathered from all devices, perhaps behind a tuple and a barrier.
fn is_gathered(module: &Module, users: &Users, value: InstructionId) -> bool {
    let &[user] = users.of(value) else { return false };
    match module.instructions[user].op {
        Op::AllGather(_) => true,
        Op::Tuple => {
            let place = module.instructions[user].operands.iter().position(|&operand| operand == value);
            let elements = match users.of(user) {
                &[barrier] if module.instructions[barrier].op == Op::OptimizationBarrier => users.of(barrier),
                elements => elements,
            };
            elements.iter().all(|&element| match module.instructions[element].op {
                Op::GetTupleElement { index } => {
                    Some(index as usize) != place || is_gathered(module, users, element)
                }
                _ => false,
            })
        }
        _ => false,
    }
}
