//! From MLIR to HLO, as XLA does it: functions and regions become computations, several results a tuple.
//!
//! Regions use values from around them; computations do not, so such values become elements of the loop's state, or
//! arguments of the branch. Constants are made again in each computation that uses them.

mod attributes;
mod chlo;
mod collectives;
mod control;
mod fold;
mod formulas;
mod liveness;
mod metadata;
mod operations;
mod sharding;

use memplan_ir::{
    ArrayLiteral, ArrayShape, BufferDonor, ComputationId, Cursor, Insert, InstructionId, Literal, Module,
    Names, Op, ProgramShape, Shape, ShapeIndex, Sharding, ShardingKind, ShardingSpec,
};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::Error;
use crate::mlir::{Attribute, Elements, LocationId, Operation, Program, Region, Type, ValueId};
use attributes::Fields;
use liveness::Liveness;
use metadata::Sources;
use sharding::Meshes;

/// Makes HLO of a program.
pub(crate) fn module(program: &Program) -> Result<Module, Error> {
    let mut functions = FxHashMap::default();
    for operation in &program.operations {
        match &*operation.name {
            "func.func" => {
                let name = operation.text("sym_name")?;
                if functions.insert(name, operation).is_some() {
                    return Err(operation.error(format!("function `{name}` already exists")));
                }
            }
            "sdy.mesh" => {}
            _ => return Err(operation.unsupported()),
        }
    }
    let main = functions.get("main").copied().or_else(|| match functions.len() {
        1 => functions.values().next().copied(),
        _ => None,
    });
    let main = main.ok_or_else(|| Error::new("the module has no function `main`"))?;
    let name = match program.name.is_empty() {
        true => sanitized(main.text("sym_name")?),
        false => sanitized(&program.name),
    };
    let meshes = Meshes::new(program)?;
    let mut converter = Converter {
        program,
        module: Module::new(name),
        names: Names::default(),
        functions,
        done: FxHashMap::default(),
        liveness: Liveness::new(program),
        sources: Sources::new(program),
        meshes,
        depth: 0,
    };
    let entry = converter.function(main, true)?;
    converter.module.entry = entry;
    converter.configure(main)?;
    // Callees are converted while their callers are.
    converter.module.compact();
    Ok(converter.module)
}

/// Functions that call each other may be this deep.
const MAX_DEPTH: u32 = 128;

pub(super) struct Converter<'p> {
    program: &'p Program,
    module: Module,
    names: Names,
    functions: FxHashMap<&'p str, &'p Operation>,
    /// Computations of functions; `None` while one is converted.
    done: FxHashMap<&'p str, Option<ComputationId>>,
    liveness: Liveness<'p>,
    sources: Sources<'p>,
    meshes: Meshes<'p>,
    depth: u32,
}

/// A computation that is made of a region.
pub(super) struct Body {
    computation: ComputationId,
    values: FxHashMap<ValueId, InstructionId>,
    /// Constants of this computation, each once.
    constants: FxHashMap<ArrayLiteral, InstructionId>,
}

impl Body {
    fn new(computation: ComputationId) -> Body {
        Body { computation, values: FxHashMap::default(), constants: FxHashMap::default() }
    }
}

impl<'p> Converter<'p> {
    /// What is said of parameters and results, and of the module as a whole.
    fn configure(&mut self, main: &'p Operation) -> Result<(), Error> {
        let root = self.module.entry_computation().root;
        let returns = main.regions.first().and_then(|body| body.operations.last());
        let n_results = returns.map_or(0, |returns| returns.operands.len());
        let config = &mut self.module.config;
        for (parameter, attributes) in main.dictionaries("arg_attrs").enumerate() {
            let parameter = parameter as u32;
            for (name, value) in attributes {
                match (&**name, value) {
                    ("tf.aliasing_output", Attribute::Integer(output, _)) => {
                        let output =
                            u32::try_from(*output).ok().filter(|&output| (output as usize) < n_results);
                        let output =
                            output.ok_or_else(|| main.error("an argument is donated to no result"))?;
                        let index =
                            if n_results == 1 { ShapeIndex::root() } else { ShapeIndex::from([output]) };
                        config.alias(index, parameter, ShapeIndex::root());
                    }
                    ("jax.buffer_donor", Attribute::Bool(true)) => {
                        config.buffer_donors.push(BufferDonor { parameter, index: ShapeIndex::root() });
                    }
                    _ => {}
                }
            }
        }
        let count = |name: &str| match crate::mlir::find(&self.program.attributes, name) {
            Some(Attribute::Integer(count, _)) if *count > 1 => Some(*count),
            _ => None,
        };
        config.num_partitions = count("mhlo.num_partitions");
        config.replica_count = count("mhlo.num_replicas");
        if let Some(meshes) = self.meshes.text() {
            config.frontend_attributes.insert("xla.sdy.meshes".into(), meshes.into());
        }
        if let Some(Attribute::Dictionary(entries)) =
            crate::mlir::find(&self.program.attributes, "mhlo.frontend_attributes")
        {
            for (name, value) in entries {
                if let Attribute::String(text) = value {
                    config.frontend_attributes.insert(name.clone(), text.clone());
                }
            }
        }
        config.stack_frames = std::mem::take(&mut self.sources.frames);
        let parameters = &self.module.computations[self.module.entry].parameters;
        let parameters = parameters.iter().map(|&id| self.module.shape(id).clone()).collect();
        let result = self.module.shape(root).clone();
        self.module.config.entry_computation_layout = Some(ProgramShape { parameters, result });
        Ok(())
    }

    /// The computation of a function, which is made once.
    fn function(&mut self, function: &'p Operation, is_entry: bool) -> Result<ComputationId, Error> {
        let name = function.text("sym_name")?;
        match self.done.get(name) {
            Some(Some(done)) => return Ok(*done),
            Some(None) => return Err(function.error(format!("function `{name}` calls itself"))),
            None => {}
        }
        let region = match &function.regions[..] {
            [region] if !region.operations.is_empty() => region,
            _ => return Err(function.error(format!("function `{name}` has no body"))),
        };
        self.done.insert(name, None);
        self.deeper(function)?;
        let computation = self.module.add_computation(self.names.fresh(&sanitized(name)));
        let mut body = Body::new(computation);
        let said: Vec<_> = function.dictionaries("arg_attrs").collect();
        for (number, argument) in region.arguments.iter().enumerate() {
            let shape = self.shape(argument.value, function)?;
            let stem = format!("Arg_{number}");
            let id = self.insert(&mut body, argument.location, &stem, |cursor| cursor.parameter(shape));
            body.values.insert(argument.value, id);
            for (name, value) in said.get(number).copied().into_iter().flatten() {
                self.note(id, name, value, is_entry, function)?;
            }
        }
        let returned = self.operations(region, &mut body)?;
        let root = match is_entry {
            true => self.entry_root(function, &returned, &mut body)?,
            false => self.result(&returned, &mut body),
        };
        self.module.computations[computation].root = root;
        self.done.insert(name, Some(computation));
        self.depth -= 1;
        Ok(computation)
    }

    /// The root of the entry computation, with the shardings of results.
    fn entry_root(
        &mut self,
        main: &'p Operation,
        returned: &[InstructionId],
        body: &mut Body,
    ) -> Result<InstructionId, Error> {
        let mut returned = returned.to_vec();
        let mut shardings: Vec<Option<Sharding>> = vec![None; returned.len()];
        let said: Vec<_> = main.dictionaries("res_attrs").collect();
        for (number, attributes) in said.iter().enumerate().take(returned.len()) {
            if let Some(Attribute::String(text)) = crate::mlir::find(attributes, "mhlo.sharding") {
                shardings[number] = Some(self.parse_sharding(text, main)?);
            }
            if let Some(Attribute::Dialect(_, text)) = crate::mlir::find(attributes, "sdy.sharding") {
                let rank = self.module.shape(returned[number]).as_array().map_or(0, ArrayShape::rank);
                shardings[number] = Some(self.meshes.sharding(text, rank, main)?);
                let text = format!("#sdy.sharding_per_value<[<{text}>]>");
                let call = self.custom_call(
                    body,
                    LocationId::default(),
                    "xla.sdy.FuncResultSharding",
                    &[returned[number]],
                    &[("xla.sdy.sharding", text)],
                );
                self.has_side_effect(call);
                let metadata = self.module.instructions[returned[number]].metadata.clone();
                self.module.instructions[call].metadata = metadata;
                returned[number] = call;
            }
        }
        let root = self.result(&returned, body);
        if shardings.iter().all(Option::is_none) {
            return Ok(root);
        }
        let replicated =
            || ShardingSpec { kind: ShardingKind::Replicated, group: None, metadata: Vec::new() };
        let specs = shardings.into_iter().map(|sharding| match sharding {
            Some(Sharding::Single(spec)) => *spec,
            _ => replicated(),
        });
        let mut specs: Vec<ShardingSpec> = specs.collect();
        let sharding = match self.module.instructions[root].op == Op::Tuple {
            true => Sharding::Tuple(specs),
            false => Sharding::Single(Box::new(specs.pop().unwrap_or_else(replicated))),
        };
        self.module.instructions[root].extras_mut().sharding = Some(sharding);
        Ok(root)
    }

    /// One value, or a tuple of several or none.
    fn result(&mut self, returned: &[InstructionId], body: &mut Body) -> InstructionId {
        match returned {
            [one] => *one,
            several => {
                let several = several.to_vec();
                self.insert(body, LocationId::default(), "tuple", |cursor| cursor.tuple(several))
            }
        }
    }

    /// Converts the operations of a region, and gives the values that it returns.
    fn operations(&mut self, region: &'p Region, body: &mut Body) -> Result<Vec<InstructionId>, Error> {
        let Some((returns, operations)) = region.operations.split_last() else {
            return Err(Error::new("a region has no operations"));
        };
        if !returns.name.ends_with(".return") {
            return Err(returns.error("a region ends without a return"));
        }
        for operation in operations {
            if self.liveness.is_live(operation) {
                self.operation(operation, body)?;
            }
        }
        returns.operands.iter().map(|&value| self.value(value, body, returns)).collect()
    }

    /// The instruction of a value.
    fn value(
        &mut self,
        value: ValueId,
        body: &mut Body,
        user: &'p Operation,
    ) -> Result<InstructionId, Error> {
        let value = self.liveness.resolve(value);
        if let Some(&found) = body.values.get(&value) {
            return Ok(found);
        }
        let Some(constant) = self.liveness.constant(value) else {
            return Err(user.error(format!("`{}` uses a value from around its region", user.name)));
        };
        let id = self.constant(constant, body)?;
        body.values.insert(value, id);
        Ok(id)
    }

    fn values(
        &mut self,
        operation: &'p Operation,
        body: &mut Body,
    ) -> Result<SmallVec<[InstructionId; 3]>, Error> {
        operation.operands.iter().map(|&value| self.value(value, body, operation)).collect()
    }

    /// The shape of a value.
    fn shape(&self, value: ValueId, user: &Operation) -> Result<Shape, Error> {
        match &self.program.types[value as usize] {
            Type::Shape(shape) => match shape.as_array().is_some_and(ArrayShape::is_unbounded) {
                true => Err(user.error(format!("`{}` has an extent that is left open (`?`)", user.name))),
                false => Ok(shape.clone()),
            },
            Type::Function(..) => Err(user.error("values cannot be functions")),
            Type::Other(name) => Err(user.error(format!("`{}`: type `{name}` is not supported", user.name))),
        }
    }

    fn array(&self, value: ValueId, user: &Operation) -> Result<ArrayShape, Error> {
        match self.shape(value, user)? {
            Shape::Array(array) => Ok(array),
            _ => Err(user.error(format!("`{}` needs an array", user.name))),
        }
    }

    /// A constant. Of a splat, one element that is broadcast, as XLA writes it.
    fn constant(&mut self, operation: &'p Operation, body: &mut Body) -> Result<InstructionId, Error> {
        let elements = match operation.attribute("value") {
            Some(Attribute::Elements(elements)) => elements.clone(),
            Some(Attribute::Resource(name, shape)) => {
                let bytes = self.program.resources.get(name);
                let bytes = bytes.ok_or_else(|| operation.error(format!("there is no resource `{name}`")))?;
                let found = crate::elements::from_raw(shape.clone(), bytes);
                found.ok_or_else(|| operation.error("the bytes of a resource do not fit its type"))?
            }
            _ => return Err(operation.error("a constant without elements")),
        };
        Ok(self.constant_of(&elements, operation.location, body))
    }

    fn constant_of(&mut self, elements: &Elements, location: LocationId, body: &mut Body) -> InstructionId {
        let Elements { shape, bytes, is_splat } = elements;
        let width = shape.element_type.byte_width() as usize;
        let count = shape.element_count().unwrap_or(0);
        // Equal elements that are listed are a splat as well.
        let is_equal =
            *is_splat || count > 1 && bytes.len() > width && bytes[width..] == bytes[..bytes.len() - width];
        let literal = match is_equal && count > 1 {
            true => ArrayLiteral::new(shape.element_type, [], &bytes[..width]),
            false if count == 0 => {
                ArrayLiteral::new(shape.element_type, shape.dimensions.clone(), Vec::new())
            }
            false => ArrayLiteral::new(shape.element_type, shape.dimensions.clone(), bytes.clone()),
        };
        let known = body.constants.get(&literal).copied();
        let constant = known.unwrap_or_else(|| {
            let made = self.insert(body, LocationId::default(), "constant", |cursor| {
                cursor.constant(Literal::Array(literal.clone()))
            });
            body.constants.insert(literal, made);
            made
        });
        match is_equal && count > 1 {
            true => {
                let extents = shape.dimensions.clone();
                self.insert(body, location, "broadcast", |cursor| cursor.broadcast(constant, extents, []))
            }
            false => constant,
        }
    }

    /// Inserts instructions at the end of a computation, with the metadata of a location and names after it.
    fn insert<T>(
        &mut self,
        body: &mut Body,
        location: LocationId,
        stem: &str,
        make: impl FnOnce(&mut Cursor<'_>) -> T,
    ) -> T {
        let metadata = self.sources.metadata(location);
        let stem = match metadata.as_ref().map(|metadata| &*metadata.op_name).filter(|name| !name.is_empty())
        {
            Some(name) => sanitized(name.rsplit('/').next().unwrap_or(name)),
            None => sanitized(stem),
        };
        let cursor = Cursor::end(&mut self.module, &mut self.names, body.computation);
        let mut cursor = cursor.with_metadata(metadata);
        cursor.named(&stem);
        make(&mut cursor)
    }

    /// One instruction of the shape of a result.
    fn emit(
        &mut self,
        body: &mut Body,
        operation: &'p Operation,
        op: Op,
        operands: &[InstructionId],
        called: &[ComputationId],
        shape: Shape,
    ) -> InstructionId {
        let stem = operation.name.rsplit('.').next().unwrap_or_default().to_owned();
        let operands = operands.to_vec();
        let called = called.to_vec();
        self.insert(body, operation.location, &stem, |cursor| {
            cursor.insert_instruction(op, operands, called, Some(shape))
        })
    }

    /// Makes an instruction the results of an operation: itself, or its elements.
    fn give(&mut self, operation: &'p Operation, id: InstructionId, body: &mut Body) {
        if let &[one] = &operation.results[..] {
            body.values.insert(one, id);
            return;
        }
        for (index, &result) in operation.results.iter().enumerate() {
            if self.liveness.is_used(result) {
                let stem = "get-tuple-element";
                let element = self.insert(body, operation.location, stem, |cursor| {
                    cursor.get_tuple_element(id, index as u32)
                });
                body.values.insert(result, element);
                let notes = self.module.instructions[id].extras.as_ref();
                if let Some(notes) =
                    notes.map(|extras| extras.frontend_attributes.clone()).filter(|it| !it.is_empty())
                {
                    self.module.instructions[element].extras_mut().frontend_attributes = notes;
                }
            }
        }
    }

    /// The shape of all results: that of the one, or a tuple.
    fn result_shape(&self, operation: &Operation) -> Result<Shape, Error> {
        if let &[one] = &operation.results[..] {
            return self.shape(one, operation);
        }
        let shapes = operation.results.iter().map(|&result| self.shape(result, operation));
        Ok(Shape::tuple(shapes.collect::<Result<Vec<_>, _>>()?))
    }

    fn deeper(&mut self, operation: &Operation) -> Result<(), Error> {
        self.depth += 1;
        match self.depth > MAX_DEPTH {
            true => Err(operation.error(format!("more than {MAX_DEPTH} calls within each other"))),
            false => Ok(()),
        }
    }
}

/// A name as HLO allows it.
fn sanitized(name: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let mut found: String = name.chars().map(|c| if fits(c) { c } else { '_' }).collect();
    if !found.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        found.insert(0, '_');
    }
    found
}
