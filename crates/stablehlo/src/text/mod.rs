//! Text of StableHLO: modules, functions and operations, in the forms that MLIR prints.

mod attributes;
mod cursor;
mod forms;
mod locations;

use memplan_ir::Shape;
use rustc_hash::FxHashMap;

pub(crate) use attributes::{fields, integers_of, parse_attribute, parse_type, with_bounds};
use cursor::{Cursor, Parsed};
pub(crate) use forms::convolution_dimensions;

use crate::Error;
use crate::mlir::{Argument, Attribute, LocationId, Operation, Program, Region, Type, ValueId};

/// How deep regions, types and attributes may be within each other.
const MAX_DEPTH: u32 = 64;

/// Reads a program.
pub(crate) fn parse(source: &str) -> Result<Program, Error> {
    Parser::new(source).program().map_err(|error| *error)
}

/// Values by name, in each region around the place. A name has as many values as its operation has results.
type Scope<'s> = FxHashMap<&'s str, (ValueId, u32)>;

struct Parser<'s> {
    cursor: Cursor<'s>,
    depth: u32,
    program: Program,
    scopes: Vec<Scope<'s>>,
    aliases: FxHashMap<&'s str, Attribute>,
    locations: FxHashMap<&'s str, LocationId>,
    /// Locations that are written out, each once.
    interned: FxHashMap<String, LocationId>,
}

impl<'s> Parser<'s> {
    fn new(source: &'s str) -> Parser<'s> {
        Parser {
            cursor: Cursor::new(source),
            depth: 0,
            program: Program { locations: vec![Default::default()], ..Program::default() },
            scopes: vec![Scope::default()],
            aliases: FxHashMap::default(),
            locations: FxHashMap::default(),
            interned: FxHashMap::default(),
        }
    }

    fn program(mut self) -> Parsed<Program> {
        let mut found_module = false;
        while self.cursor.peek().is_some() {
            if self.cursor.is_at("#") {
                self.alias()?;
            } else if self.cursor.eat("{-#") {
                self.resources()?;
            } else if self.cursor.eat_word("module") || self.cursor.eat_word("builtin.module") {
                if found_module {
                    return Err(self.cursor.unexpected("the end of the module"));
                }
                found_module = true;
                self.module()?;
            } else {
                // A function may be alone, without a module around it.
                let operation = self.operation()?;
                self.program.operations.push(operation);
            }
        }
        if let [module] = &mut self.program.operations[..]
            && &*module.name == "builtin.module"
        {
            // The generic form of the module itself.
            let mut module = std::mem::take(module);
            self.program.operations.clear();
            for (name, value) in std::mem::take(&mut module.attributes) {
                match (&*name, value) {
                    ("sym_name", Attribute::String(found)) => self.program.name = found,
                    (_, value) => self.program.attributes.push((name, value)),
                }
            }
            self.program.operations.extend(module.regions.into_iter().flat_map(|region| region.operations));
        }
        Ok(self.program)
    }

    /// `@name attributes {...} { operations }`, after the first word.
    fn module(&mut self) -> Parsed<()> {
        if self.cursor.is_at("@") {
            self.program.name = self.symbol()?;
        }
        if self.cursor.eat_word("attributes") {
            self.cursor.expect("{")?;
            self.program.attributes = self.dictionary()?;
        }
        self.cursor.expect("{")?;
        while !self.cursor.eat("}") {
            let operation = self.operation()?;
            self.program.operations.push(operation);
        }
        self.trailing_location()?;
        Ok(())
    }

    /// `#name = attribute`.
    fn alias(&mut self) -> Parsed<()> {
        self.cursor.expect("#")?;
        let name = self.cursor.take(cursor::is_word);
        self.cursor.expect("=")?;
        if self.cursor.is_at("loc(") {
            self.cursor.expect("loc(")?;
            let location = self.location()?;
            self.cursor.expect(")")?;
            self.define_location(name, location);
            return Ok(());
        }
        let value = match self.cursor.is_at("affine_map<") {
            true => {
                self.cursor.expect("affine_map<")?;
                Attribute::Dialect("affine_map".into(), self.cursor.balanced('>')?.into())
            }
            false => self.attribute()?,
        };
        self.aliases.insert(name, value);
        Ok(())
    }

    /// `dialect_resources: { builtin: { name: "0x..." } } #-}`, of which the names and bytes are taken.
    fn resources(&mut self) -> Parsed<()> {
        while !self.cursor.eat("#-}") {
            if self.cursor.eat("{") || self.cursor.eat("}") || self.cursor.eat(",") {
                continue;
            }
            let name = self.cursor.word()?;
            self.cursor.expect(":")?;
            if self.cursor.is_at("\"") {
                let start = self.cursor.at;
                let text = self.cursor.string()?;
                let Some(bytes) = attributes::resource(&text) else {
                    return Err(self.cursor.error(start..start + 1, "this is no resource"));
                };
                self.program.resources.insert(name.into(), bytes);
            }
        }
        Ok(())
    }

    /// One operation, with its results before it and its location behind it.
    fn operation(&mut self) -> Parsed<Operation> {
        self.nested(|parser| parser.operation_within())
    }

    fn operation_within(&mut self) -> Parsed<Operation> {
        self.cursor.space();
        let begin = self.cursor.at;
        let mut names: Vec<(&'s str, u32, usize)> = Vec::new();
        if self.cursor.is_at("%") {
            loop {
                let at = self.cursor.at;
                let name = self.value_name()?;
                let count = match self.cursor.eat(":") {
                    true => self.cursor.integer()?,
                    false => 1,
                };
                let fits = u32::try_from(count).ok().filter(|count| (1..=1 << 16).contains(count));
                let Some(count) = fits else {
                    return Err(self.cursor.error(at..self.cursor.at, "that many results cannot be"));
                };
                names.push((name, count, at));
                if !self.cursor.eat(",") {
                    break;
                }
            }
            self.cursor.expect("=")?;
        }
        self.cursor.space();
        let start = self.cursor.at;
        let n_results = names.iter().map(|&(_, count, _)| count as usize).sum();
        let (mut operation, mut types) = match self.cursor.is_at("\"") {
            true => self.generic_operation()?,
            false => self.pretty_operation(n_results)?,
        };
        operation.span = start..start + operation.span.end;
        let types_given = types.len();
        if n_results == 0 {
            // Results that nobody uses have no names.
            for r#type in types.drain(..) {
                let value = self.new_value(r#type);
                operation.results.push(value);
            }
        } else if types.is_empty() {
            return Err(self.cursor.unexpected("`:` and a type"));
        }
        // Types of operands come first in the lists of some forms.
        let Some(skipped) = types_given.checked_sub(n_results) else {
            let message = format!("`{}` has {types_given} results, not {n_results}", operation.name);
            return Err(self.cursor.error(begin..start, message));
        };
        let mut types = types.into_iter().skip(if n_results == 0 { 0 } else { skipped });
        for (name, count, at) in names {
            let first = self.program.types.len() as ValueId;
            for r#type in types.by_ref().take(count as usize) {
                let value = self.new_value(r#type);
                operation.results.push(value);
            }
            let scope = self.scopes.last_mut().expect("the module is a scope");
            if scope.insert(name, (first, count)).is_some() {
                return Err(self.cursor.error(at..at + name.len(), format!("`{name}` already exists")));
            }
        }
        let location = self.trailing_location()?;
        if location != LocationId::default() {
            operation.location = location;
        }
        if &*operation.name == "stablehlo.reduce" {
            // What is written as `applies stablehlo.add` is where the reduction is.
            for inner in operation.regions.iter_mut().flat_map(|region| &mut region.operations) {
                if inner.span.is_empty() {
                    inner.location = operation.location;
                }
            }
        }
        Ok(operation)
    }

    fn new_value(&mut self, r#type: Type) -> ValueId {
        self.program.types.push(r#type);
        (self.program.types.len() - 1) as ValueId
    }

    /// `%name`, without what follows.
    fn value_name(&mut self) -> Parsed<&'s str> {
        self.cursor.space();
        let start = self.cursor.at;
        self.cursor.expect("%")?;
        self.cursor.take(|c| cursor::is_word(c) || c == '-');
        Ok(&self.cursor.source[start..self.cursor.at])
    }

    /// `%name` or `%name#1`.
    fn value(&mut self) -> Parsed<ValueId> {
        let name = self.value_name()?;
        let end = self.cursor.at;
        let number = match self.cursor.rest().starts_with('#') {
            true => {
                self.cursor.expect("#")?;
                self.cursor.integer()?
            }
            false => 0,
        };
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        let message = match found {
            Some(&(first, count)) if (0..i64::from(count)).contains(&number) => {
                return Ok(first + number as u32);
            }
            Some(_) => format!("`{name}` has no result {number}"),
            None => format!("there is no value `{name}`"),
        };
        Err(self.cursor.error(end - name.len()..end, message))
    }

    /// Values with commas between them, none where there is no `%`.
    fn values(&mut self) -> Parsed<Vec<ValueId>> {
        let mut values = Vec::new();
        while self.cursor.is_at("%") {
            values.push(self.value()?);
            if !self.cursor.eat(",") {
                break;
            }
        }
        Ok(values)
    }

    /// `"name"(%a, %b) <{properties}> ({regions}) {attributes} : (types) -> types`.
    fn generic_operation(&mut self) -> Parsed<(Operation, Vec<Type>)> {
        let start = self.cursor.at;
        let name = self.cursor.string()?;
        let mut operation =
            Operation { name: name.into(), span: 0..self.cursor.at - start, ..Operation::default() };
        self.cursor.expect("(")?;
        operation.operands = self.values()?.into();
        self.cursor.expect(")")?;
        if self.cursor.eat("<{") {
            operation.attributes = self.dictionary()?;
            self.cursor.expect(">")?;
        }
        if self.cursor.eat("(") {
            while !self.cursor.eat(")") {
                if !operation.regions.is_empty() {
                    self.cursor.expect(",")?;
                }
                operation.regions.push(self.region()?);
            }
        }
        if self.cursor.eat("{") {
            operation.attributes.extend(self.dictionary()?);
        }
        self.cursor.expect(":")?;
        self.cursor.space();
        let at = self.cursor.at;
        match self.r#type()? {
            Type::Function(_, results) => Ok((operation, results.to_vec())),
            _ => Err(self.cursor.error(at..self.cursor.at, "expected the type of a function")),
        }
    }

    /// `{ ^bb0(%a: type): operations }`, in a scope of its own.
    fn region(&mut self) -> Parsed<Region> {
        self.scopes.push(Scope::default());
        self.cursor.expect("{")?;
        let mut region = Region::default();
        if self.cursor.is_at("^") {
            self.cursor.expect("^")?;
            self.cursor.word()?;
            if self.cursor.eat("(") {
                region.arguments = self.arguments()?;
            }
            self.cursor.expect(":")?;
        }
        self.operations_until_brace(&mut region)?;
        self.scopes.pop();
        Ok(region)
    }

    fn operations_until_brace(&mut self, region: &mut Region) -> Parsed<()> {
        while !self.cursor.eat("}") {
            if self.cursor.is_at("^") {
                return Err(self
                    .cursor
                    .unexpected("the end of the region; regions of several blocks are not supported"));
            }
            let operation = self.operation()?;
            region.operations.push(operation);
        }
        Ok(())
    }

    /// `%a: type loc(...), ...)`, after the opening parenthesis.
    fn arguments(&mut self) -> Parsed<Vec<Argument>> {
        let mut arguments = Vec::new();
        while !self.cursor.eat(")") {
            if !arguments.is_empty() {
                self.cursor.expect(",")?;
            }
            arguments.push(self.argument()?.0);
        }
        Ok(arguments)
    }

    /// `%a: type {attributes} loc(...)`.
    fn argument(&mut self) -> Parsed<(Argument, Attribute)> {
        self.cursor.space();
        let at = self.cursor.at;
        let name = self.value_name()?;
        self.cursor.expect(":")?;
        let r#type = self.r#type()?;
        let attributes = match self.cursor.eat("{") {
            true => self.dictionary()?,
            false => Vec::new(),
        };
        let value = self.new_value(r#type);
        let scope = self.scopes.last_mut().expect("the module is a scope");
        if scope.insert(name, (value, 1)).is_some() {
            return Err(self.cursor.error(at..at + name.len(), format!("`{name}` already exists")));
        }
        let location = self.trailing_location()?;
        Ok((Argument { value, location }, Attribute::Dictionary(attributes)))
    }

    /// Adds an argument without a name, as reductions written in one line have them.
    fn unnamed_argument(&mut self, shape: Shape, region: &mut Region) -> ValueId {
        let value = self.new_value(Type::Shape(shape));
        region.arguments.push(Argument { value, location: LocationId::default() });
        value
    }
}
