//! Arrays whose extents are known only when the program runs.
//!
//! An array with dynamic dimensions has the memory and layout of its bounds. The actual extents are stored beside the
//! value. An operation on such arrays is compiled when it runs, for the actual extents: one fusion of slices of its
//! operands, the operation on arrays of these extents, and zero padding to the bounds of its results. So it computes
//! the same as the static program, and reads nothing beyond the extents. A `set-dimension-size` that enlarges an array
//! gives it elements that HLO does not define: here they are zeros or old bytes, so a program that reads them has no
//! meaning, and two plans of it may differ. (XLA's dynamic padder instead rewrites each operation to a masked one on
//! whole arrays.)

use std::rc::Rc;

use memplan_ir::{
    ArrayLiteral, ArrayShape, ComputationId, Cursor, Dimensions, ElementType, Fusion, FusionKind, Insert,
    InstructionId, Literal, Module, Names, Op, PaddingDimension, Shape, SliceDimension, infer_shape_given,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::Error;
use crate::compile::compile;
use crate::execute::{self as executor, Executor};
use crate::kernels::Kernel;
use crate::kernels::bytes::CopyKernel;
use crate::memory::Place;
use crate::pull::Pullable;

/// Calls within calls, beyond which there is no program but a hostile one.
const MAX_NESTING: usize = 64;

/// An instruction specialized to certain extents of its operands.
pub(crate) struct Specialized {
    pub(crate) kernel: Rc<dyn Kernel>,
    /// Extents of each leaf of the result.
    pub(crate) extents: Vec<Dimensions>,
}

/// Whether the result of an instruction, or an operand, has a dynamic dimension.
pub(crate) fn is_dynamic(module: &Module, id: InstructionId) -> bool {
    let operands = module.instructions[id].operands.iter();
    operands.chain([&id]).any(|&id| has_dynamic(module.shape(id)))
}

/// Whether an array of a shape has a dynamic dimension.
pub(crate) fn has_dynamic(shape: &Shape) -> bool {
    shape.any_array(ArrayShape::is_dynamic)
}

/// The most bytes of scratch that an instruction needs, for any extents.
pub(crate) fn scratch_bytes(module: &Module, id: InstructionId) -> u64 {
    let bounds = bounds(module, id);
    let to = match module.instructions[id].op {
        Op::DynamicReshape => module.shape(id).as_array().map(|a| a.dimensions.clone()),
        _ => None,
    };
    specialize(module, id, &bounds, to).map_or(0, |specialized| specialized.kernel.scratch_bytes() as u64)
}

/// The extents of the leaves of an instruction's operands at their bounds.
pub(crate) fn bounds(module: &Module, id: InstructionId) -> Vec<Dimensions> {
    let operands = module.instructions[id].operands.iter();
    let leaves = operands.flat_map(|&operand| module.shape(operand).leaves());
    leaves.map(|(_, shape)| shape.as_array().map(|a| a.dimensions.clone()).unwrap_or_default()).collect()
}

/// Compiles an instruction for operands of these extents, each within its bounds. Those of the result of a
/// dynamic-reshape are `to`.
pub(crate) fn specialize(
    module: &Module,
    id: InstructionId,
    extents: &[Dimensions],
    to: Option<Dimensions>,
) -> Result<Specialized, Error> {
    let mut body = Body::new(module);
    body.to = to;
    let mut operands = Vec::new();
    let instruction = &module.instructions[id];
    let takes_tuple = instruction.operands.iter().any(|&operand| module.shape(operand).is_tuple());
    if takes_tuple {
        return Err(Error::unsupported(module, id, "it takes a tuple of arrays with dynamic extents"));
    }
    for (k, (&operand, extents)) in instruction.operands.iter().zip(extents).enumerate() {
        let shape = fixed(module, operand)?;
        if shape.rank() != extents.len() {
            return Err(Error::unsupported(module, id, "a bitcast changes dynamic extents"));
        }
        operands.push(body.parameter(k, shape, extents));
    }
    let results = body.instruction(id, &operands)?;
    let extents = results.iter().map(|&r| body.extents(r).clone()).collect();
    body.finish(id, &results).map(|kernel| Specialized { kernel: kernel.into(), extents })
}

/// A value of the fusion under construction.
#[derive(Clone, Copy)]
struct Value {
    id: InstructionId,
    /// The instruction for operands at their bounds.
    whole: Option<InstructionId>,
}

struct Body<'m> {
    from: &'m Module,
    /// The fused computation, alone in its module.
    module: Module,
    names: Names,
    computation: ComputationId,
    parameters: Vec<InstructionId>,
    copies: FxHashMap<ComputationId, ComputationId>,
    /// Extents of the result of a dynamic-reshape.
    to: Option<Dimensions>,
    /// Calls within calls.
    depth: usize,
}

impl<'m> Body<'m> {
    fn new(from: &'m Module) -> Body<'m> {
        let mut module = Module::new("specialized");
        let computation = module.add_computation("body");
        Body {
            from,
            module,
            names: Names::default(),
            computation,
            parameters: Vec::new(),
            copies: FxHashMap::default(),
            to: None,
            depth: 0,
        }
    }

    fn add(&mut self, op: Op, shape: Shape, operands: &[InstructionId]) -> InstructionId {
        self.end().insert_shaped(op, operands.iter().copied(), shape)
    }

    fn end(&mut self) -> Cursor<'_> {
        Cursor::end(&mut self.module, &mut self.names, self.computation)
    }

    fn array(&self, id: InstructionId) -> &ArrayShape {
        self.module.shape(id).as_array().expect("values of the fusion are arrays")
    }

    fn extents(&self, value: Value) -> &Dimensions {
        &self.array(value.id).dimensions
    }

    fn parameter(&mut self, number: usize, shape: ArrayShape, extents: &Dimensions) -> Value {
        let whole = self.add(Op::Parameter { number: number as u32 }, shape.into(), &[]);
        self.parameters.push(whole);
        Value { id: self.cut(whole, extents), whole: Some(whole) }
    }

    /// The first elements of an array along each dimension.
    fn cut(&mut self, id: InstructionId, extents: &[i64]) -> InstructionId {
        let shape = self.array(id);
        if shape.rank() == 0 {
            return id;
        }
        // Also if nothing is cut off, and so with padding: the scratch of a plan at the bounds then suffices below
        // them.
        let shape = ArrayShape::new(shape.element_type, extents.iter().copied());
        let dimensions = extents.iter().map(|&limit| SliceDimension { start: 0, limit, stride: 1 }).collect();
        self.add(Op::Slice { dimensions }, shape.into(), &[id])
    }

    /// An array with zeros after its last elements.
    fn pad(&mut self, id: InstructionId, to: ArrayShape) -> InstructionId {
        let from = self.array(id).clone();
        if from.rank() == 0 {
            return id;
        }
        let width = from.element_type.byte_width() as usize;
        let zero = Literal::Array(ArrayLiteral::new(from.element_type, [], vec![0; width]));
        let zero = self.add(Op::Constant(zero), Shape::scalar(from.element_type), &[]);
        let pairs = from.dimensions.iter().zip(&to.dimensions);
        let dimensions = pairs.map(|(f, t)| PaddingDimension { low: 0, high: t - f, interior: 0 }).collect();
        self.add(Op::Pad { dimensions }, to.into(), &[id, zero])
    }

    /// A value with some dimensions at their bounds.
    fn widened(&mut self, value: Value, extents: &Dimensions) -> InstructionId {
        match value.whole {
            _ if self.extents(value) == extents => value.id,
            Some(whole) => self.cut(whole, extents),
            None => {
                let shape = ArrayShape::new(self.array(value.id).element_type, extents.iter().copied());
                self.pad(value.id, shape)
            }
        }
    }

    /// Appends an instruction of the program for operands of other extents than it says, and gives the leaves of its
    /// result.
    fn instruction(&mut self, id: InstructionId, operands: &[Value]) -> Result<Vec<Value>, Error> {
        let from = self.from;
        let instruction = &from.instructions[id];
        if let Op::Fusion(_) | Op::Call { .. } = instruction.op {
            return self.inlined(id, operands);
        }
        let (op, operands, given) = self.adjusted(id, operands)?;
        let called: SmallVec<[ComputationId; 1]> =
            instruction.called.iter().map(|&c| self.copy(c)).collect::<Result<_, Error>>()?;
        let shapes: Vec<&Shape> = operands.iter().map(|&operand| self.module.shape(operand)).collect();
        let shape = infer_shape_given(&self.module, &op, &shapes, &called, &given)
            .map_err(|error| Error::invalid(from, id, format!("for the extents at hand: {error}")))?;
        let n_leaves = shape.as_tuple().map(<[Shape]>::len);
        let made = self.add(op, shape.clone(), &operands);
        self.module.instructions[made].called = called;
        let element = |body: &mut Self, k: usize| {
            let shape = shape.as_tuple().expect("a tuple has elements")[k].clone();
            body.add(Op::GetTupleElement { index: k as u32 }, shape, &[made])
        };
        let ids: Vec<InstructionId> = match n_leaves {
            None => vec![made],
            Some(n) => (0..n).map(|k| element(self, k)).collect(),
        };
        if ids.iter().any(|&id| self.module.shape(id).as_array().is_none()) {
            return Err(Error::unsupported(from, id, "it gives more than arrays of dynamic extents"));
        }
        Ok(ids.into_iter().map(|id| Value { id, whole: None }).collect())
    }

    /// The operation, its operands, and what its shape takes from the program, for the operands' extents.
    fn adjusted(
        &mut self,
        id: InstructionId,
        operands: &[Value],
    ) -> Result<(Op, Vec<InstructionId>, Shape), Error> {
        let from = self.from;
        let instruction = &from.instructions[id];
        let mut op = instruction.op.clone();
        let mut ids: Vec<InstructionId> = operands.iter().map(|operand| operand.id).collect();
        let mut given = from.shape(id).clone();
        given.as_array_mut().into_iter().for_each(|array| array.dynamic.clear());
        let bounds = |k: usize| fixed(from, instruction.operands[k]).map(|shape| shape.dimensions);
        let within = || Error::unsupported(from, id, "its extents are computed within a fusion");
        match &mut op {
            Op::Slice { dimensions } => {
                let mut extents = self.extents(operands[0]).clone();
                for ((d, extent), bound) in dimensions.iter_mut().zip(&mut extents).zip(bounds(0)?) {
                    match (d.start, d.limit, d.stride) {
                        (0, limit, 1) if limit == bound => d.limit = *extent,
                        // A part of the bounds, for any extent.
                        _ => *extent = bound,
                    }
                }
                ids[0] = self.widened(operands[0], &extents);
            }
            Op::DynamicSlice { slice_sizes } => {
                ids[0] = self.sliced(operands[0], bounds(0)?, slice_sizes);
            }
            Op::Gather(gather) => ids[0] = self.sliced(operands[0], bounds(0)?, &mut gather.slice_sizes),
            Op::Broadcast { dimensions } => {
                let extents = self.extents(operands[0]).clone();
                let given = given.as_array_mut().expect("a broadcast gives an array");
                dimensions.iter().zip(extents).for_each(|(&d, extent)| given.dimensions[d as usize] = extent);
            }
            Op::Reshape { inferred_dimension } => {
                *inferred_dimension = None;
                let result = from.shape(id).as_array().expect("a reshape gives an array");
                let extents = self.extents(operands[0]);
                let (views, to) = reshaped(&bounds(0)?, extents, result).ok_or_else(|| {
                    Error::unsupported(from, id, "its extents do not follow from its operand's")
                })?;
                ids[0] = self.widened(operands[0], &views);
                given = ArrayShape::new(result.element_type, to).into();
            }
            Op::GetDimensionSize { dimension } => {
                let extent = self.extents(operands[0])[*dimension as usize] as i32;
                (op, ids) = (Op::Constant(Literal::s32(extent)), Vec::new());
            }
            Op::SetDimensionSize { .. } => return Err(within()),
            Op::DynamicReshape => {
                let to = self.to.take().ok_or_else(within)?;
                ids.truncate(1);
                op = Op::Reshape { inferred_dimension: None };
                given = ArrayShape::new(self.array(ids[0]).element_type, to).into();
            }
            _ => {}
        }
        Ok((op, ids, given))
    }

    /// The operand of a slice at computed indices: a dimension that is sliced whole has its extent, any other its bound,
    /// since starts are clamped to bounds.
    fn sliced(&mut self, operand: Value, bounds: Dimensions, sizes: &mut Dimensions) -> InstructionId {
        let mut extents = self.extents(operand).clone();
        for ((size, extent), bound) in sizes.iter_mut().zip(&mut extents).zip(bounds) {
            if *size == bound {
                *size = *extent;
            } else {
                *extent = bound;
            }
        }
        self.widened(operand, &extents)
    }

    /// The instructions of a called computation.
    fn inlined(&mut self, id: InstructionId, operands: &[Value]) -> Result<Vec<Value>, Error> {
        let from = self.from;
        let computation = from.instructions[id].called[0];
        self.descend(computation)?;
        let callee = &from.computations[computation];
        let mut values: FxHashMap<InstructionId, Vec<Value>> = FxHashMap::default();
        for &inner in &callee.instructions {
            let instruction = &from.instructions[inner];
            let given: Vec<Value> = instruction.operands.iter().flat_map(|o| values[o].clone()).collect();
            let value = match &instruction.op {
                Op::Parameter { number } => vec![operands[*number as usize]],
                Op::Tuple => given,
                Op::GetTupleElement { index } => vec![given[*index as usize]],
                Op::Constant(literal) => {
                    let shape = fixed(from, inner)?;
                    vec![Value {
                        id: self.add(Op::Constant(literal.clone()), shape.into(), &[]),
                        whole: None,
                    }]
                }
                _ => self.instruction(inner, &given)?,
            };
            values.insert(inner, value);
        }
        self.depth -= 1;
        Ok(values.remove(&callee.root).unwrap_or_default())
    }

    /// A computation that is called, with all that it calls.
    fn copy(&mut self, computation: ComputationId) -> Result<ComputationId, Error> {
        if let Some(&copy) = self.copies.get(&computation) {
            return Ok(copy);
        }
        self.descend(computation)?;
        let from = self.from;
        // Callees are copied before their callers.
        for (_, instruction) in from.instructions_of(computation) {
            for &callee in &instruction.called {
                self.copy(callee)?;
            }
        }
        let new = self.module.add_copy_of_computation(from, computation, |callee| self.copies[&callee]);
        self.copies.insert(computation, new);
        self.depth -= 1;
        Ok(new)
    }

    fn descend(&mut self, computation: ComputationId) -> Result<(), Error> {
        self.depth += 1;
        if self.depth <= MAX_NESTING {
            return Ok(());
        }
        let computation = self.from.computations[computation].name.to_string();
        Err(Error::TooDeep { computation, limit: MAX_NESTING })
    }

    /// The kernel of the fusion whose results these are, each filled up to the bounds that the program says.
    fn finish(mut self, id: InstructionId, results: &[Value]) -> Result<Box<dyn Kernel>, Error> {
        let from = self.from;
        let mut padded = Vec::new();
        for (&result, (_, shape)) in results.iter().zip(from.shape(id).leaves()) {
            let mut shape = shape.as_array().expect("results are arrays").clone();
            shape.dynamic.clear();
            padded.push(self.pad(result.id, shape));
        }
        let shapes: Vec<Shape> = padded.iter().map(|&p| self.module.shape(p).clone()).collect();
        let (root, shape) = match from.shape(id).is_tuple() {
            true => (self.add(Op::Tuple, Shape::tuple(shapes.clone()), &padded), Shape::tuple(shapes)),
            false => (padded[0], shapes[0].clone()),
        };
        let body = self.computation;
        self.module.computations[body].root = root;
        self.module.computations[body].parameters = self.parameters.clone();
        let entry = self.module.add_computation("main");
        self.computation = entry;
        self.module.entry = entry;
        let parameters: Vec<InstructionId> = (self.parameters.clone().into_iter().enumerate())
            .map(|(k, p)| {
                let shape = self.module.shape(p).clone();
                self.add(Op::Parameter { number: k as u32 }, shape, &[])
            })
            .collect();
        let op = Op::Fusion(Box::new(Fusion { kind: FusionKind::Loop, output_operand_aliasing: Vec::new() }));
        let name = from.instructions[id].name.clone();
        let fusion = self.end().named_exactly(name).insert_instruction(op, parameters, [body], Some(shape));
        compile(&self.module, &Pullable::new(&self.module), fusion)
    }
}

/// The shape of an array at its bounds, which are no longer dynamic.
fn fixed(module: &Module, id: InstructionId) -> Result<ArrayShape, Error> {
    let shape = module.shape(id).as_array();
    let mut shape =
        shape.ok_or_else(|| Error::unsupported(module, id, "a dynamic extent is inside a tuple"))?.clone();
    shape.dynamic.clear();
    Ok(shape)
}

/// Whether a call that makes an array static, or dynamic, has an array on one side, and on the other one with the same
/// bounds, and an extent for each dimension.
fn converts_extents(module: &Module, id: InstructionId) -> bool {
    let operands: Vec<&Shape> = module.instructions[id].operands.iter().map(|&o| module.shape(o)).collect();
    let results = module.shape(id).as_tuple().map(|parts| parts.iter().collect());
    let results: Vec<&Shape> = results.unwrap_or_else(|| vec![module.shape(id)]);
    let ([operand, from @ ..], [result, to @ ..]) = (&operands[..], &results[..]) else { return false };
    let (Some(a), Some(b)) = (operand.as_array(), result.as_array()) else { return false };
    let is_extent = |shape: &&Shape| {
        shape.as_array().is_some_and(|s| s.rank() == 0 && s.element_type == ElementType::S32)
    };
    let is_slice = matches!(&module.instructions[id].op, Op::CustomCall(c) if &*c.target == "SliceToDynamic");
    let (extents, others) = if is_slice { (from, to) } else { (to, from) };
    a.element_type == b.element_type
        && a.dimensions == b.dimensions
        && extents.len() == a.rank()
        && others.is_empty()
        && extents.iter().all(is_extent)
}

/// How a reshape goes on: the operand's extents, some of them raised to their bounds, and the result's.
///
/// Dimensions fall into the shortest groups of equal products, as XLA has it. A dynamic dimension of the result takes
/// what the others of its group leave; a group without one is static, and so are its dimensions of the operand.
fn reshaped(bounds: &[i64], extents: &Dimensions, result: &ArrayShape) -> Option<(Dimensions, Dimensions)> {
    let (mut views, mut to) = (extents.clone(), result.dimensions.clone());
    if bounds.contains(&0) {
        return Some((bounds.into(), to));
    }
    let (mut i, mut j) = (0, 0);
    while i < bounds.len() || j < to.len() {
        let (first_i, first_j) = (i, j);
        let (mut from_product, mut to_product) = (1i64, 1i64);
        loop {
            if from_product <= to_product && i < bounds.len() {
                from_product = from_product.checked_mul(bounds[i])?;
                i += 1;
            } else if j < result.rank() {
                to_product = to_product.checked_mul(result.dimensions[j])?;
                j += 1;
            } else {
                return None;
            }
            if from_product == to_product && (j > first_j || j == result.rank()) {
                break;
            }
        }
        let dynamic: SmallVec<[usize; 4]> =
            (first_j..j).filter(|&d| result.is_dynamic_dimension(d)).collect();
        match dynamic[..] {
            [] => views[first_i..i].copy_from_slice(&bounds[first_i..i]),
            [dynamic] => {
                let others: i64 =
                    (first_j..j).filter(|&d| d != dynamic).map(|d| result.dimensions[d]).product();
                let elements: i64 = extents[first_i..i].iter().product();
                to[dynamic] = (elements % others == 0).then_some(elements / others)?;
            }
            _ => return None,
        }
    }
    Some((views, to))
}

impl Executor<'_> {
    /// Runs an instruction that has to do with dynamic extents, and gives the leaves that it writes.
    pub(crate) fn run_dynamic(
        &mut self,
        id: InstructionId,
        operands: &[&executor::Value],
    ) -> Result<executor::Value, Error> {
        let module = self.module;
        let instruction = &module.instructions[id];
        let extents: Vec<Dimensions> = (operands.iter().copied().flatten().zip(bounds(module, id)))
            .map(|(leaf, bounds)| leaf.extents.clone().unwrap_or(bounds))
            .collect();
        match &instruction.op {
            Op::GetDimensionSize { dimension } => {
                let extent = Literal::s32(extents[0][*dimension as usize] as i32);
                Ok(vec![self.write_result(id, 0, &extent)?])
            }
            Op::SetDimensionSize { dimension } => {
                let mut extents = extents[0].clone();
                extents[*dimension as usize] =
                    self.extent(id, operands[1], bounds(module, id)[0][*dimension as usize])?;
                self.with_extents(id, operands[0], extents)
            }
            Op::CustomCall(call)
                if matches!(&*call.target, "SliceToDynamic" | "PadToStatic")
                    && !converts_extents(module, id) =>
            {
                Err(Error::invalid(module, id, "an array and its extents are expected here"))
            }
            Op::CustomCall(call) if &*call.target == "SliceToDynamic" => {
                let bounds = bounds(module, id).swap_remove(0);
                let extents =
                    operands[1..].iter().zip(bounds).map(|(operand, bound)| self.extent(id, operand, bound));
                let extents = extents.collect::<Result<_, _>>()?;
                self.with_extents(id, operands[0], extents)
            }
            Op::CustomCall(call) if &*call.target == "PadToStatic" => {
                let bounds = bounds(module, id).swap_remove(0);
                let mut value = self.with_extents(id, operands[0], bounds)?;
                for (k, &extent) in extents[0].iter().enumerate() {
                    value.push(self.write_result(id, k + 1, &Literal::s32(extent as i32))?);
                }
                Ok(value)
            }
            Op::DynamicReshape => {
                let bounds = module.shape(id).as_array().map(|a| a.dimensions.clone()).unwrap_or_default();
                let to =
                    operands[1..].iter().zip(bounds).map(|(operand, bound)| self.extent(id, operand, bound));
                let to = to.collect::<Result<Dimensions, _>>()?;
                let specialized = specialize(module, id, &extents, Some(to))?;
                self.launch_specialized(id, operands, &specialized)
            }
            _ => {
                let key = (id, extents);
                let specialized = match self.specialized.get(&key) {
                    Some(known) => known.clone(),
                    None => {
                        let made = Rc::new(specialize(module, id, &key.1, None)?);
                        self.specialized.insert(key, made.clone());
                        made
                    }
                };
                self.launch_specialized(id, operands, &specialized)
            }
        }
    }

    /// An operand's bytes as the first leaf of the result, with other extents.
    fn with_extents(
        &mut self,
        id: InstructionId,
        operand: &executor::Value,
        extents: Dimensions,
    ) -> Result<executor::Value, Error> {
        let kernel = CopyKernel { pairs: vec![(0, 0)] };
        let mut value = self.launch(id, &kernel, &[operand[0].place], 0..1)?;
        value[0].extents = Some(extents);
        Ok(value.into_iter().map(Rc::new).collect())
    }

    fn launch_specialized(
        &mut self,
        id: InstructionId,
        operands: &[&executor::Value],
        specialized: &Specialized,
    ) -> Result<executor::Value, Error> {
        let places: Vec<Place> = operands.iter().copied().flatten().map(|leaf| leaf.place).collect();
        let mut value = self.launch(id, &*specialized.kernel, &places, 0..specialized.extents.len())?;
        for (leaf, extents) in value.iter_mut().zip(&specialized.extents) {
            leaf.extents = Some(extents.clone());
        }
        Ok(value.into_iter().map(Rc::new).collect())
    }

    /// How many indices a scalar operand says there are, at most the bound.
    fn extent(&self, id: InstructionId, operand: &executor::Value, bound: i64) -> Result<i64, Error> {
        let bytes = self.memory.bytes(operand[0].place);
        let extent = bytes.first_chunk().map_or(0, |&bytes| i64::from(i32::from_le_bytes(bytes)));
        match (0..=bound).contains(&extent) {
            true => Ok(extent),
            false => {
                Err(Error::invalid(self.module, id, format!("{extent} is not an extent within 0..={bound}")))
            }
        }
    }
}
