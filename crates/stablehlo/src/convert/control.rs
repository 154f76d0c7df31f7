//! Loops, conditionals, calls and operations with a computation of scalars.

use memplan_ir::{ComputationId, Insert, InstructionId, Op, Shape};

use super::attributes::{Fields, print};
use super::liveness::captured;
use super::{Body, Converter, sanitized};
use crate::Error;
use crate::mlir::{Attribute, LocationId, Operation, Region, ValueId};

impl<'p> Converter<'p> {
    /// The computation of a region that uses nothing but its arguments and constants.
    pub(super) fn region(&mut self, operation: &'p Operation, number: usize) -> Result<ComputationId, Error> {
        let region = operation.region(number)?;
        self.deeper(operation)?;
        let computation = self.module.add_computation(self.names.fresh("region"));
        let mut body = Body::new(computation);
        for (number, argument) in region.arguments.iter().enumerate() {
            let shape = self.shape(argument.value, operation)?;
            let id = self.insert(&mut body, argument.location, &format!("Arg_{number}"), |cursor| {
                cursor.parameter(shape)
            });
            body.values.insert(argument.value, id);
        }
        let returned = self.operations(region, &mut body)?;
        let root = self.result(&returned, &mut body);
        self.module.computations[computation].root = root;
        self.depth -= 1;
        Ok(computation)
    }

    /// The computation of a region whose arguments, and values that it uses from around it, are the elements of one
    /// parameter; or that parameter itself, where there is one. `more` is returned behind what the region returns.
    fn region_of_state(
        &mut self,
        operation: &'p Operation,
        region: &'p Region,
        arguments: &[ValueId],
        shapes: &[Shape],
        returns_state: Option<&[ValueId]>,
    ) -> Result<ComputationId, Error> {
        self.deeper(operation)?;
        let computation = self.module.add_computation(self.names.fresh("region"));
        let mut body = Body::new(computation);
        let at = LocationId::default();
        if let ([argument], [shape]) = (arguments, shapes) {
            let id = self.insert(&mut body, at, "Arg_", |cursor| cursor.parameter(shape.clone()));
            body.values.insert(*argument, id);
        } else {
            let shape = Shape::tuple(shapes);
            let state = self.insert(&mut body, at, "arg_tuple", |cursor| cursor.parameter(shape));
            for (index, &argument) in arguments.iter().enumerate() {
                // XLA takes all elements of a loop's state; what is not used goes when the program is simplified.
                if self.liveness.is_used(argument) {
                    let element = self.insert(&mut body, at, "get-tuple-element", |cursor| {
                        cursor.get_tuple_element(state, index as u32)
                    });
                    body.values.insert(argument, element);
                } else if returns_state.is_some() {
                    let element = self.insert(&mut body, at, "get-tuple-element", |cursor| {
                        cursor.get_tuple_element(state, index as u32)
                    });
                    body.values.insert(argument, element);
                }
            }
        }
        let mut returned = Vec::new();
        let all = self.operations(region, &mut body)?;
        match returns_state {
            None => returned = all,
            Some(state) => {
                // Of what the region returns, those that are state; then the values from around it, as they are.
                let returns =
                    region.operations.last().map(|returns| &returns.operands[..]).unwrap_or_default();
                for &value in state {
                    let position = region.arguments.iter().position(|argument| argument.value == value);
                    match position.and_then(|position| returns.get(position)) {
                        Some(&next) => returned.push(self.value(next, &mut body, operation)?),
                        None => returned.push(self.value(value, &mut body, operation)?),
                    }
                }
            }
        }
        let root = self.result(&returned, &mut body);
        self.module.computations[computation].root = root;
        self.depth -= 1;
        Ok(computation)
    }

    pub(super) fn while_loop(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let (condition, step) = (operation.region(0)?, operation.region(1)?);
        let n = operation.operands.len();
        let returned = step.operations.last().map_or(0, |returns| returns.operands.len());
        let counts = [condition.arguments.len(), step.arguments.len(), operation.results.len(), returned];
        if counts.iter().any(|&count| count != n) {
            return Err(operation.error("a loop's state has another number of values in its regions"));
        }
        // State that no step changes is used as a value from around the loop.
        let is_state =
            |i: &usize| self.liveness.resolve(step.arguments[*i].value) == step.arguments[*i].value;
        let state: Vec<usize> = (0..n).filter(is_state).collect();
        let outer = captured(&self.liveness, &[condition, step]);
        let mut operands = Vec::new();
        for &i in &state {
            operands.push(self.value(operation.operands[i], body, operation)?);
        }
        for &value in &outer {
            operands.push(self.value(value, body, operation)?);
        }
        let shapes: Vec<Shape> = operands.iter().map(|&id| self.module.shape(id).clone()).collect();
        let arguments = |region: &Region| {
            let state = state.iter().map(|&i| region.arguments[i].value);
            state.chain(outer.iter().copied()).collect::<Vec<ValueId>>()
        };
        let in_step = arguments(step);
        let step_id = self.region_of_state(operation, step, &in_step, &shapes, Some(&in_step))?;
        let condition_id =
            self.region_of_state(operation, condition, &arguments(condition), &shapes, None)?;
        let initial = match operands[..] {
            [one] => one,
            _ => {
                let operands = operands.clone();
                self.insert(body, operation.location, "while", |cursor| cursor.tuple(operands))
            }
        };
        let shape = self.module.shape(initial).clone();
        let id = self.emit(body, operation, Op::While, &[initial], &[step_id, condition_id], shape);
        for (index, &i) in state.iter().enumerate() {
            let result = operation.results[i];
            let element = match operands.len() {
                1 => id,
                _ if !self.liveness.is_used(result) => continue,
                _ => self.insert(body, operation.location, "while", |cursor| {
                    cursor.get_tuple_element(id, index as u32)
                }),
            };
            body.values.insert(result, element);
        }
        Ok(())
    }

    /// `if`: the first region is for true. `case`: regions by number.
    pub(super) fn conditional(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let &[selector] = &operation.operands[..] else {
            return Err(operation.error("a conditional has one operand"));
        };
        if operation.regions.is_empty() || &*operation.name == "stablehlo.if" && operation.regions.len() != 2
        {
            return Err(operation.error("a conditional has another number of regions"));
        }
        let selector = self.value(selector, body, operation)?;
        let (mut operands, mut called) = (vec![selector], Vec::new());
        for number in 0..operation.regions.len() {
            let region = operation.region(number)?;
            let outer = captured(&self.liveness, &[region]);
            let mut given = Vec::new();
            for &value in &outer {
                given.push(self.value(value, body, operation)?);
            }
            let shapes: Vec<Shape> = given.iter().map(|&id| self.module.shape(id).clone()).collect();
            called.push(self.region_of_state(operation, region, &outer, &shapes, None)?);
            operands.push(match given[..] {
                [one] => one,
                _ => self.insert(body, operation.location, "tuple", |cursor| cursor.tuple(given)),
            });
        }
        let shape = self.result_shape(operation)?;
        let id = self.emit(body, operation, Op::Conditional, &operands, &called, shape);
        self.give(operation, id, body);
        Ok(())
    }

    pub(super) fn call(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let name = operation.text("callee")?;
        let callee = self.functions.get(name).copied();
        let callee = callee.ok_or_else(|| operation.error(format!("there is no function `{name}`")))?;
        let computation = self.function(callee, false)?;
        let operands = self.values(operation, body)?;
        let shape = self.result_shape(operation)?;
        let id =
            self.emit(body, operation, Op::Call { is_composite: false }, &operands, &[computation], shape);
        if let Some(Attribute::Dictionary(entries)) = operation.attribute("mhlo.frontend_attributes") {
            for (name, value) in entries {
                if let Attribute::String(text) = value {
                    self.frontend(id, name, text);
                }
            }
        }
        self.give(operation, id, body);
        Ok(())
    }

    /// A call of what an operation of another library does, with its name.
    pub(super) fn composite(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let name = operation.text("name")?;
        if name.starts_with("chlo.") && self.recomposed(operation, name, body)? {
            return Ok(());
        }
        let decomposition = operation.text("decomposition")?;
        let callee = self.functions.get(decomposition).copied();
        let callee =
            callee.ok_or_else(|| operation.error(format!("there is no function `{decomposition}`")))?;
        let computation = self.function(callee, false)?;
        let operands = self.values(operation, body)?;
        let shape = self.result_shape(operation)?;
        let id =
            self.emit(body, operation, Op::Call { is_composite: true }, &operands, &[computation], shape);
        let mut text = String::new();
        let none = Attribute::Dictionary(Vec::new());
        print(operation.attribute("composite_attributes").unwrap_or(&none), &mut text);
        self.frontend(id, "composite.attributes", &text);
        self.frontend(id, "composite.name", name);
        let version = operation.integer("version")?.unwrap_or(0);
        self.frontend(id, "composite.version", &version.to_string());
        self.give(operation, id, body);
        Ok(())
    }

    /// A part that is written for each of several devices.
    pub(super) fn manual_computation(
        &mut self,
        operation: &'p Operation,
        body: &mut Body,
    ) -> Result<(), Error> {
        let text_of = |name: &str| match operation.attribute(name) {
            Some(Attribute::Dialect(kind, text)) => Ok(format!("#{kind}<{text}>")),
            _ => Err(operation.missing(name)),
        };
        let [inputs, outputs, axes] =
            [text_of("in_shardings")?, text_of("out_shardings")?, text_of("manual_axes")?];
        let region = operation.region(0)?;
        if region.arguments.len() != operation.operands.len()
            || !captured(&self.liveness, &[region]).is_empty()
        {
            return Err(operation.error("a manual computation uses values from around it"));
        }
        let operands = self.values(operation, body)?;
        let shapes = region.arguments.iter().map(|argument| self.shape(argument.value, operation));
        let local: Vec<Shape> = shapes.collect::<Result<_, _>>()?;
        let given: Vec<InstructionId> = match operands.is_empty() {
            true => Vec::new(),
            false => {
                let notes = [("xla.sdy.in_shardings", inputs), ("xla.sdy.manual_axes", axes.clone())];
                let shape = match &local[..] {
                    [one] => one.clone(),
                    several => Shape::tuple(several),
                };
                let call = self.custom_call(
                    body,
                    operation.location,
                    "xla.sdy.GlobalToLocalShape",
                    &operands,
                    &notes,
                );
                self.has_side_effect(call);
                self.module.set_shape(call, shape);
                self.elements(call, local.len(), operation, body)
            }
        };
        self.deeper(operation)?;
        let computation = self.module.add_computation(self.names.fresh("xla.sdy.manual_computation_body"));
        let mut inner = Body::new(computation);
        for (argument, shape) in region.arguments.iter().zip(local) {
            let id = self.insert(&mut inner, operation.location, "Arg_", |cursor| cursor.parameter(shape));
            inner.values.insert(argument.value, id);
        }
        let returned = self.operations(region, &mut inner)?;
        let root = self.result(&returned, &mut inner);
        self.module.computations[computation].root = root;
        self.depth -= 1;
        let shape = self.module.shape(root).clone();
        let call =
            self.emit(body, operation, Op::Call { is_composite: false }, &given, &[computation], shape);
        self.frontend(call, "inlineable", "xla_late");
        let results = self.elements(call, operation.results.len(), operation, body);
        if results.is_empty() {
            return Ok(());
        }
        let notes = [("xla.sdy.manual_axes", axes), ("xla.sdy.out_shardings", outputs)];
        let id = self.custom_call(body, operation.location, "xla.sdy.LocalToGlobalShape", &results, &notes);
        self.has_side_effect(id);
        let shape = self.result_shape(operation)?;
        self.module.set_shape(id, shape);
        self.give(operation, id, body);
        Ok(())
    }

    /// An instruction as several values: itself, or its elements.
    fn elements(
        &mut self,
        id: InstructionId,
        count: usize,
        operation: &'p Operation,
        body: &mut Body,
    ) -> Vec<InstructionId> {
        match count {
            1 => vec![id],
            _ => {
                let of =
                    |index| move |cursor: &mut memplan_ir::Cursor<'_>| cursor.get_tuple_element(id, index);
                let stem = sanitized("get-tuple-element");
                (0..count as u32).map(|i| self.insert(body, operation.location, &stem, of(i))).collect()
            }
        }
    }
}
