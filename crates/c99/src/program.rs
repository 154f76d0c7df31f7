//! The functions of a program: one for each computation that runs step by step, which calls kernels in the plan's order.

use std::fmt::Write;

use indexmap::{IndexMap, IndexSet};
use memplan_analysis::Sources;
use memplan_ir::{ArrayShape, ComputationId, ElementType, InstructionId, Op, Position, Role, Shape};
use memplan_memory::Slice;

use crate::Program;
use crate::cmsis_nn::{self, Rounding, Source};
use crate::constants;
use crate::error::{Refusal, refusal};
use crate::kernel::{Given, Kernel, Leaves};
use crate::lower::ArrayPlace;
use crate::names::{Identifiers, identifier};
use crate::runtime::{Runtime, memory_type};
use crate::schedule::body;
use crate::storage::{Memory, Storage};
use crate::tiling::Limits;

/// The parts of a file.
pub(crate) struct Parts {
    pub(crate) storage: Storage,
    pub(crate) runtime: Runtime,
    /// Arrays of constants, with their names.
    pub(crate) constants: Vec<(String, String)>,
    /// Functions of kernels.
    pub(crate) kernels: Vec<String>,
    /// Functions of computations, and the statements of the entry.
    pub(crate) functions: Vec<String>,
    pub(crate) entry: String,
    /// Bytes of the arrays of the kernel that has most: kernels do not call each other.
    pub(crate) stack: u64,
    pub(crate) library: Library,
}

/// The use of CMSIS-NN.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Library {
    /// Kernels of the library that are called.
    pub(crate) calls: usize,
    /// All kernels that are called.
    pub(crate) of: usize,
    /// How it must be compiled; `None`: in any way.
    pub(crate) rounding: Option<Rounding>,
}

impl Parts {
    /// Whether a text is in a function that runs step by step.
    pub(crate) fn mentions(&self, text: &str) -> bool {
        self.functions.iter().chain([&self.entry]).any(|function| function.contains(text))
    }

    /// Whether an array of the file is read or written.
    pub(crate) fn reaches(&self, name: &str) -> bool {
        self.mentions(&format!(", {name}, ")) || self.mentions(&format!(", {name}.bytes, "))
    }
}

/// Writes everything that the program runs.
pub(crate) fn parts(program: &Program<'_>) -> Result<Parts, Refusal> {
    let mut writer = Writer {
        program,
        sources: Sources::new(program.module),
        storage: Storage::new(program),
        runtime: Runtime::default(),
        constants: Vec::new(),
        inner_constants: IndexSet::new(),
        kernels: IndexMap::new(),
        stack: 0,
        library: Library::default(),
        identifiers: Identifiers::default(),
        computations: IndexMap::new(),
    };
    writer.take_names();
    writer.constants()?;
    let mut functions = Vec::new();
    let mut entry = String::new();
    for &id in program.facts.graph.sequential() {
        let statements = writer.computation(id)?;
        if id == program.module.entry {
            entry = statements;
        } else {
            let name = writer.identifiers.function(&program.module.computations[id].name, "steps");
            functions.push(format!("static void {name}(void)\n{{\n{statements}}}\n"));
            writer.computations.insert(id, name);
        }
    }
    entry = writer.copies_in()? + &entry + &writer.copies_out()?;
    let Writer { storage, runtime, constants, kernels, stack, library, .. } = writer;
    Ok(Parts {
        storage,
        runtime,
        constants,
        kernels: kernels.into_values().map(|k| k.text).collect(),
        functions,
        entry,
        stack,
        library,
    })
}

struct Writer<'p> {
    program: &'p Program<'p>,
    sources: Sources<'p>,
    storage: Storage,
    runtime: Runtime,
    constants: Vec<(String, String)>,
    /// Constants within kernels.
    inner_constants: IndexSet<InstructionId>,
    /// Kernels by what follows their names, so that equal ones are one function.
    kernels: IndexMap<String, Function>,
    stack: u64,
    library: Library,
    identifiers: Identifiers,
    computations: IndexMap<ComputationId, String>,
}

struct Function {
    name: String,
    text: String,
}

/// Where an array is: its address, whether it is constant, and its bytes in the plan.
type Place = (String, bool, Option<Slice>);

/// An array that a function takes: its name there, its type, what points to it, and whether that is constant.
struct Passed {
    name: String,
    is_written: bool,
    element_type: ElementType,
    address: String,
    is_const: bool,
    /// Its bytes in the plan; `None` for constants of the code.
    slice: Option<Slice>,
}

impl Passed {
    /// Whether another array has some of its bytes.
    fn overlaps(&self, other: &Passed) -> bool {
        match (self.slice, other.slice) {
            (Some(a), Some(b)) => a.allocation == b.allocation && a.offset < b.end() && b.offset < a.end(),
            _ => false,
        }
    }
}

impl<'p> Writer<'p> {
    /// Takes the names of the interface and of memory, before functions get theirs.
    fn take_names(&mut self) {
        let name = self.program.name;
        self.identifiers.unique(name);
        self.identifiers.unique(&format!("{name}_run"));
        for memory in self.storage.memory.values().flatten() {
            if let Memory::Constant(name) | Memory::Static(name) = memory {
                self.identifiers.unique(name);
            }
        }
    }

    /// The arrays of constants that have memory.
    fn constants(&mut self) -> Result<(), Refusal> {
        let Program { module, plan, .. } = *self.program;
        let mut written = IndexSet::new();
        for (position, slice) in &plan.slices {
            let Op::Constant(literal) = &module.instructions[position.instruction].op else { continue };
            let Some(Memory::Constant(name)) = &self.storage.memory[slice.allocation] else { continue };
            let shape =
                module.shape(position.instruction).subshape(&position.index).and_then(Shape::as_array);
            let (Some(shape), Some(data)) = (shape, constants::part(literal, &position.index.0)) else {
                continue;
            };
            if written.insert(slice.allocation) {
                let name = name.clone();
                let text = constants::array(module, position.instruction, data, shape, &name)?;
                self.constants.push((name, text));
            }
        }
        Ok(())
    }

    /// The statements of a computation.
    fn computation(&mut self, id: ComputationId) -> Result<String, Refusal> {
        let Program { module, schedule, .. } = *self.program;
        let mut sequence = schedule.sequence(id);
        if sequence.is_empty() {
            sequence = &module.computations[id].instructions;
        }
        let mut text = String::new();
        for &id in sequence {
            text.push_str(&self.instruction(id)?);
        }
        Ok(text)
    }

    fn instruction(&mut self, id: InstructionId) -> Result<String, Refusal> {
        let module = self.program.module;
        let instruction = &module.instructions[id];
        let called = |writer: &Self, k: usize| writer.computations[&instruction.called[k]].clone();
        Ok(match &instruction.op {
            Op::Copy if module.shape(id).is_tuple() => String::new(),
            Op::Call { .. } | Op::AsyncStart(_) => {
                format!("{}    {}();\n", self.comment(id, &[id]), called(self, 0))
            }
            Op::While => {
                let condition = module.computations[instruction.called[1]].root;
                let goes_on = self.scalar(condition)?;
                let (body, condition) = (called(self, 0), called(self, 1));
                format!(
                    "{}    for (;;) {{\n        {condition}();\n        if ({goes_on} == 0) {{\n            break;\n        }}\n        {body}();\n    }}\n",
                    self.comment(id, &[id])
                )
            }
            Op::Conditional => self.conditional(id)?,
            Op::CopyStart { .. } => self.launch(id, 1)?,
            Op::CopyDone | Op::AsyncDone(_) | Op::AsyncUpdate(_) | Op::AfterAll => String::new(),
            op if op.is_allocation() => String::new(),
            op => match op.traits().role {
                Role::Provides | Role::PassesOn | Role::Regroups | Role::Orders => String::new(),
                Role::Computes | Role::Queries => self.launch(id, module.shape(id).leaf_count())?,
                _ => return Err(refusal(module, id, "there is no C for it")),
            },
        })
    }

    /// The scalar that an instruction makes, as C reads it.
    fn scalar(&self, id: InstructionId) -> Result<String, Refusal> {
        let module = self.program.module;
        let shape = module.shape(id).as_array().ok_or_else(|| refusal(module, id, "it is not a scalar"))?;
        match self.given(id, 0) {
            Given::Constant(constant) => {
                let Op::Constant(literal) = &module.instructions[constant].op else {
                    unreachable!("constants are given by their instructions")
                };
                let value = literal.as_array().map(|a| i64::from(a.bytes()[0]));
                value.map(|v| v.to_string()).ok_or_else(|| refusal(module, id, "it is not a scalar"))
            }
            _ => {
                let slice = self.slice(id, 0).ok_or_else(|| refusal(module, id, "it has no place"))?;
                let (address, is_const) = self.storage.address(slice);
                let at = if is_const { "FROM" } else { "AT" };
                Ok(format!("*{at}({}, {address})", memory_type(shape.element_type)))
            }
        }
    }

    fn conditional(&mut self, id: InstructionId) -> Result<String, Refusal> {
        let module = self.program.module;
        let instruction = &module.instructions[id];
        let branches: Vec<String> =
            instruction.called.iter().map(|called| self.computations[called].clone()).collect();
        let index = instruction.operands[0];
        let is_pred = module.shape(index).as_array().is_some_and(|a| a.element_type == ElementType::Pred);
        let scalar = self.scalar(index)?;
        let comment = self.comment(id, &[id]);
        let mut text = comment + &format!("    switch ({scalar}) {{\n");
        let last = branches.len() - 1;
        for (k, branch) in branches.iter().enumerate() {
            // A predicate selects the first branch if it holds; an index out of range the last.
            let label = match (is_pred, k == last) {
                (_, true) => "default".to_string(),
                (true, _) => "case 1".to_string(),
                (false, _) => format!("case {k}"),
            };
            let _ = write!(text, "    {label}:\n        {branch}();\n        break;\n");
        }
        Ok(text + "    }\n")
    }

    fn slice(&self, id: InstructionId, leaf: usize) -> Option<Slice> {
        let (index, _) = self.program.module.shape(id).leaves().swap_remove(leaf);
        self.program.plan.slices.get(&Position { instruction: id, index }).copied()
    }

    /// Where a leaf of an instruction is.
    fn given(&self, id: InstructionId, leaf: usize) -> Given {
        let Program { module, facts, .. } = *self.program;
        if let Some(slice) = self.slice(id, leaf) {
            return Given::Bytes((slice.allocation.as_u32(), slice.offset.0, slice.end().0));
        }
        let (index, _) = module.shape(id).leaves().swap_remove(leaf);
        let value = facts.flow.find(id, &index);
        let definition =
            value.map(|value| facts.flow.positions.instruction(facts.flow.values[value].definition));
        match definition {
            Some(definition) if matches!(module.instructions[definition].op, Op::Constant(_)) => {
                Given::Constant(definition)
            }
            _ => Given::Nothing,
        }
    }

    /// The call of an instruction's kernel, of which `n_written` leaves of the result are written.
    fn launch(&mut self, id: InstructionId, n_written: usize) -> Result<String, Refusal> {
        let module = self.program.module;
        let mut operands = Vec::new();
        let mut operand_slices = Vec::new();
        for &operand in &module.instructions[id].operands {
            for leaf in 0..module.shape(operand).leaf_count() {
                operands.push(self.given(operand, leaf));
                operand_slices.push(self.slice(operand, leaf));
            }
        }
        let result_slices: Vec<Option<Slice>> = (0..n_written).map(|leaf| self.slice(id, leaf)).collect();
        let fused = match &module.instructions[id].op {
            Op::Fusion(_) => &*module.computations[module.instructions[id].called[0]].instructions,
            _ => &[id],
        };
        if let Some(call) = self.library_call(id, &operands, &operand_slices)? {
            return Ok(self.comment(id, fused) + &call);
        }
        let bytes = |slice: Slice| (slice.allocation.as_u32(), slice.offset.0, slice.end().0);
        let results = result_slices.iter().map(|slice| slice.map(bytes)).collect();
        let limits = Limits::of(self.program.target);
        let kernel = Kernel::new(module, id, &Leaves { operands, results }, n_written, limits)?;
        let place = |place: ArrayPlace| match place {
            ArrayPlace::Operand(k) => operand_slices[k],
            ArrayPlace::Result(k) => result_slices[k],
            ArrayPlace::Constant(_) => None,
        };
        if kernel.nests.is_empty() {
            return Ok(String::new());
        }
        self.library.of += 1;
        let call = self.call(id, &kernel, &|writer, array| {
            let array = &kernel.arrays[array];
            if let ArrayPlace::Constant(constant) = array.place {
                let address = writer.inner_constant(constant)?;
                return Ok((address, true, None));
            }
            let slice =
                place(array.place).ok_or_else(|| refusal(module, id, "an array of it has no place"))?;
            let (address, is_const) = writer.storage.address(slice);
            Ok((address, is_const, Some(slice)))
        })?;
        Ok(self.comment(id, fused) + &call)
    }

    /// The call of a kernel of CMSIS-NN that computes exactly what an instruction does, if there is one.
    fn library_call(
        &mut self,
        id: InstructionId,
        operands: &[Given],
        operand_slices: &[Option<Slice>],
    ) -> Result<Option<String>, Refusal> {
        let module = self.program.module;
        let found = self.program.cmsis_nn.then(|| cmsis_nn::find(module, id)).flatten();
        let Some(found) = found else { return Ok(None) };
        // The library rounds in one way in all of a program: the first.
        if found.rounding.is_some() && self.library.rounding.is_some_and(|it| found.rounding != Some(it)) {
            return Ok(None);
        }
        let mut passed = Vec::new();
        for &(name, source) in &found.arrays {
            let slice = match source {
                Source::Operand(k) => operand_slices[k],
                Source::Result => self.slice(id, 0),
                Source::Constant(_) => None,
            };
            let (address, is_const) = match (source, slice) {
                (_, Some(slice)) => self.storage.address(slice),
                (Source::Constant(constant), None) => (self.inner_constant(constant)?, true),
                (Source::Operand(k), None) => match operands[k] {
                    Given::Constant(constant) => (self.inner_constant(constant)?, true),
                    _ => return Ok(None),
                },
                (Source::Result, None) => return Ok(None),
            };
            let is_sum = matches!(name, "bias" | "multiplier" | "shift");
            let element_type = if is_sum { ElementType::S32 } else { ElementType::S8 };
            let is_written = source == Source::Result;
            passed.push(Passed {
                name: name.to_string(),
                is_written,
                element_type,
                address,
                is_const,
                slice,
            });
        }
        // Its kernels write results before they have read all operands.
        let result = passed.iter().find(|it| it.is_written).expect("every kernel has a result");
        if passed.iter().any(|it| !it.is_written && it.overlaps(result)) {
            return Ok(None);
        }
        self.library.calls += 1;
        self.library.of += 1;
        self.library.rounding = self.library.rounding.or(found.rounding);
        self.stack = self.stack.max(found.stack);
        Ok(Some(self.function(self.base(id), &passed, &found.text())))
    }

    /// The name of an array of a constant within kernels, as an address.
    fn inner_constant(&mut self, id: InstructionId) -> Result<String, Refusal> {
        let module = self.program.module;
        let name = format!("inner_{}_{}", identifier(&module.instructions[id].name), id.as_u32());
        if self.inner_constants.insert(id) {
            self.identifiers.unique(&name);
            let Op::Constant(literal) = &module.instructions[id].op else {
                unreachable!("constants are given by their instructions")
            };
            let data = constants::part(literal, &[]).ok_or_else(|| refusal(module, id, "it is a tuple"))?;
            let dense = ArrayShape::new(data.element_type, data.dimensions.iter().copied());
            let text = constants::array(module, id, data, &dense, &name)?;
            self.constants.push((name.clone(), text));
        }
        Ok(format!("{name}, 0"))
    }

    /// A call of the function of a kernel, whose arrays are where `place` says.
    fn call(
        &mut self,
        id: InstructionId,
        kernel: &Kernel,
        place: &dyn Fn(&mut Self, crate::dag::ArrayId) -> Result<Place, Refusal>,
    ) -> Result<String, Refusal> {
        let body = body(kernel, &mut self.runtime);
        self.stack = self.stack.max(body.stack);
        let written: IndexSet<_> =
            kernel.nests.iter().flat_map(|n| n.stores.iter().map(|s| s.array)).collect();
        let mut passed = Vec::new();
        for (array, name) in body.arrays {
            let (address, is_const, slice) = place(self, array)?;
            let element_type = kernel.arrays[array].element_type;
            let is_written = written.contains(&array);
            passed.push(Passed { name, is_written, element_type, address, is_const, slice });
        }
        let base = if kernel.is_relayout { "relayout" } else { self.base(id) };
        Ok(self.function(base, &passed, &body.text))
    }

    /// What the function of an instruction is named after.
    fn base(&self, id: InstructionId) -> &'p str {
        let module = self.program.module;
        match &module.instructions[id].op {
            Op::Fusion(_) => &module.computations[module.instructions[id].called[0]].name,
            _ => &module.instructions[id].name,
        }
    }

    /// A call of a function with these statements, which is written unless there is an equal one.
    fn function(&mut self, base: &str, arrays: &[Passed], statements: &str) -> String {
        let mut parameters = Vec::new();
        let mut arguments = Vec::new();
        for (k, it) in arrays.iter().enumerate() {
            let (t, name) = (memory_type(it.element_type), &it.name);
            let is_alone = arrays.iter().enumerate().all(|(other, array)| other == k || !it.overlaps(array));
            parameters.push(match (it.is_written, is_alone) {
                (false, _) => format!("const {t} *{name}"),
                // No other pointer of the kernel leads to its bytes.
                (true, true) => format!("{t} *restrict {name}"),
                (true, false) => format!("{t} *{name}"),
            });
            arguments.push(format!("{}({t}, {})", if it.is_const { "FROM" } else { "AT" }, it.address));
        }
        let key = format!("({})\n{{\n{statements}}}\n", parameters.join(", "));
        if !self.kernels.contains_key(&key) {
            let name = self.identifiers.function(base, "kernel");
            let text = format!("static void {name}{key}");
            self.kernels.insert(key.clone(), Function { name, text });
        }
        format!("    {}({});\n", self.kernels[&key].name, arguments.join(", "))
    }

    /// The operation and the line of the user's program.
    fn comment(&self, id: InstructionId, parts: &[InstructionId]) -> String {
        let module = self.program.module;
        let mut lines: IndexSet<String> = IndexSet::new();
        for &part in parts.iter().rev() {
            let is_named = !matches!(module.instructions[part].op, Op::Parameter { .. } | Op::Constant(_));
            lines.extend(self.sources.user(part).filter(|_| is_named).map(|frame| frame.to_string()));
        }
        let lines: Vec<String> = lines.into_iter().take(3).collect();
        let name = &module.instructions[id].name;
        let shape = match module.shape(id) {
            Shape::Array(a) => {
                let extents: Vec<String> = a.dimensions.iter().map(i64::to_string).collect();
                format!(" {}[{}]", a.element_type, extents.join(","))
            }
            _ => String::new(),
        };
        let lines = if lines.is_empty() { String::new() } else { format!(", {}", lines.join(", ")) };
        format!("    /* {name}{shape}{lines} */\n").replace("*/ */", "*/")
    }

    /// Copies of arguments that the program overwrites, or has in another layout.
    fn copies_in(&mut self) -> Result<String, Refusal> {
        let mut text = String::new();
        for (k, allocation) in self.storage.copied_in.clone() {
            let port = self.storage.arguments[k].clone();
            let Some(slice) = port.slice else { continue };
            let (to, _) = self.storage.address(slice);
            if !port.is_plain() {
                text.push_str(&self.relayout(&port, &format!("argument[{k}], 0"), &to, true)?);
                continue;
            }
            let bytes = port.bytes();
            let target = format!("AT(mem_u8, {to})");
            let _ = allocation;
            let _ = write!(
                text,
                "    /* {} is overwritten */\n    if ((const void *){target} != argument[{k}]) {{\n        memcpy({target}, argument[{k}], {bytes});\n    }}\n",
                port.name
            );
        }
        Ok(text)
    }

    /// Copies of results that end elsewhere.
    fn copies_out(&mut self) -> Result<String, Refusal> {
        let mut text = String::new();
        for (k, port) in self.storage.results.clone().into_iter().enumerate() {
            if port.bytes() == 0 {
                continue;
            }
            let Some(slice) = port.slice else {
                text.push_str(&self.embedded_result(k, &port)?);
                continue;
            };
            if self.storage.memory[slice.allocation] == Some(Memory::Result(k)) && slice.offset.0 == 0 {
                continue;
            }
            let (from, is_const) = self.storage.address(slice);
            if !port.is_plain() {
                text.push_str(&self.relayout(&port, &from, &format!("result[{k}], 0"), is_const)?);
                continue;
            }
            let at = if is_const { "FROM" } else { "AT" };
            let _ = writeln!(text, "    memcpy(result[{k}], {at}(u8, {from}), {});", port.bytes());
        }
        Ok(text)
    }

    /// A result that is a constant of the code.
    fn embedded_result(&mut self, k: usize, port: &crate::storage::Port) -> Result<String, Refusal> {
        let Program { module, facts, .. } = *self.program;
        let id = port.position.instruction;
        let value = facts.flow.find(id, &port.position.index);
        let definition =
            value.map(|value| facts.flow.positions.position(facts.flow.values[value].definition));
        let constant =
            definition.filter(|p| matches!(module.instructions[p.instruction].op, Op::Constant(_)));
        let constant = constant.ok_or_else(|| refusal(module, id, "a result of the program has no place"))?;
        let address = self.inner_constant(constant.instruction)?;
        Ok(format!("    memcpy(result[{k}], FROM(mem_u8, {address}), {});\n", port.bytes()))
    }

    /// Loops that bring an array into the layout of the program, or out of it.
    fn relayout(
        &mut self,
        port: &crate::storage::Port,
        from: &str,
        to: &str,
        is_const: bool,
    ) -> Result<String, Refusal> {
        let module = self.program.module;
        let id = port.position.instruction;
        let is_argument =
            matches!(module.instructions[id].op, Op::Parameter { .. }) && from.starts_with("argument");
        let (source, target) =
            if is_argument { (&port.shape, &port.inside) } else { (&port.inside, &port.shape) };
        let kernel = Kernel::relayout(module, id, source, target)?;
        self.call(id, &kernel, &|_, array| {
            let is_source = matches!(kernel.arrays[array].place, ArrayPlace::Operand(_));
            let address = if is_source { from } else { to }.to_string();
            Ok((address, is_source && is_const, None))
        })
    }
}
