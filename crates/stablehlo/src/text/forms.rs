//! The forms in which operations are printed. Most are operands, words and `name = value` with commas between them, then
//! attributes in braces and types; the others have a function each.

use memplan_ir::{ElementType, Shape};

use super::Parser;
use super::cursor::{Parsed, is_word};
use crate::mlir::{Argument, Attribute, Attributes, LocationId, Operation, Region, Type};

impl<'s> Parser<'s> {
    /// An operation in a form of its own, and its types. Without results, those may be the types of operands.
    pub(super) fn pretty_operation(&mut self, n_results: usize) -> Parsed<(Operation, Vec<Type>)> {
        self.cursor.space();
        let start = self.cursor.at;
        let word = self.cursor.word()?;
        // `cross-replica-sum`, and the short names of functions and modules within.
        let word = match word {
            "call" => "func.call",
            "return" => "func.return",
            "func" => "func.func",
            "module" => "builtin.module",
            _ => word,
        };
        let mut operation =
            Operation { name: word.into(), span: 0..self.cursor.at - start, ..Operation::default() };
        let types = match word {
            "func.func" => self.function(&mut operation)?,
            "func.call" => {
                operation.attributes.push(("callee".into(), Attribute::Symbol(self.symbol()?)));
                self.cursor.expect("(")?;
                operation.operands = self.values()?.into();
                self.cursor.expect(")")?;
                self.ending(&mut operation)?
            }
            "func.return" | "stablehlo.return" | "sdy.return" | "mhlo.return" => {
                operation.operands = self.values()?.into();
                self.ending(&mut operation)?;
                Vec::new()
            }
            "stablehlo.constant" | "chlo.constant" => {
                if self.cursor.eat("{") {
                    operation.attributes = self.dictionary()?;
                }
                self.cursor.eat("(");
                self.cursor.eat(")");
                self.cursor.space();
                let at = self.cursor.at;
                let value = self.attribute()?;
                let shape = match &value {
                    Attribute::Elements(elements) => elements.shape.clone(),
                    Attribute::Resource(_, shape) => shape.clone(),
                    _ => return Err(self.cursor.error(at..self.cursor.at, "a constant has elements")),
                };
                operation.attributes.push(("value".into(), value));
                vec![Type::Shape(Shape::Array(shape))]
            }
            "stablehlo.reduce" => self.reduce(&mut operation)?,
            "stablehlo.while" => self.while_loop(&mut operation)?,
            "stablehlo.convolution" => self.convolution(&mut operation)?,
            "stablehlo.custom_call" => {
                operation.attributes.push(("call_target_name".into(), Attribute::String(self.symbol()?)));
                self.cursor.expect("(")?;
                operation.operands = self.values()?.into();
                self.cursor.expect(")")?;
                self.ending(&mut operation)?
            }
            "stablehlo.composite" => {
                let name = self.cursor.string()?;
                operation.attributes.push(("name".into(), Attribute::String(name.into())));
                operation.operands = self.values()?.into();
                self.ending(&mut operation)?
            }
            "sdy.mesh" => {
                operation.attributes.push(("sym_name".into(), Attribute::String(self.symbol()?)));
                self.cursor.expect("=")?;
                self.cursor.expect("<")?;
                let mesh = Attribute::Dialect("sdy.mesh".into(), self.cursor.balanced('>')?.into());
                operation.attributes.push(("mesh".into(), mesh));
                self.ending(&mut operation)?
            }
            "sdy.sharding_constraint" => {
                operation.operands = self.values()?.into();
                self.cursor.expect("<")?;
                let sharding = Attribute::Dialect("sdy.sharding".into(), self.cursor.balanced('>')?.into());
                operation.attributes.push(("sharding".into(), sharding));
                self.ending(&mut operation)?
            }
            "sdy.manual_computation" => self.manual_computation(&mut operation)?,
            _ => self.items(&mut operation, n_results)?,
        };
        Ok((operation, types))
    }

    /// `public @name(arguments) -> (results) attributes {...} { body }`.
    fn function(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        for visibility in ["public", "private", "nested"] {
            if self.cursor.eat_word(visibility) {
                operation.attributes.push(("sym_visibility".into(), Attribute::String(visibility.into())));
            }
        }
        operation.attributes.push(("sym_name".into(), Attribute::String(self.symbol()?)));
        self.scopes.push(Default::default());
        self.cursor.expect("(")?;
        let (mut arguments, mut argument_attributes) = (Vec::new(), Vec::new());
        while !self.cursor.eat(")") {
            if !arguments.is_empty() {
                self.cursor.expect(",")?;
            }
            let (argument, attributes) = self.argument()?;
            arguments.push(argument);
            argument_attributes.push(attributes);
        }
        let mut result_attributes = Vec::new();
        if self.cursor.eat("->") {
            if self.cursor.eat("(") {
                while !self.cursor.eat(")") {
                    if !result_attributes.is_empty() {
                        self.cursor.expect(",")?;
                    }
                    self.r#type()?;
                    let attributes = match self.cursor.eat("{") {
                        true => self.dictionary()?,
                        false => Vec::new(),
                    };
                    result_attributes.push(Attribute::Dictionary(attributes));
                }
            } else {
                self.r#type()?;
                result_attributes.push(Attribute::Dictionary(Vec::new()));
            }
        }
        operation.attributes.push(("arg_attrs".into(), Attribute::Array(argument_attributes)));
        operation.attributes.push(("res_attrs".into(), Attribute::Array(result_attributes)));
        if self.cursor.eat_word("attributes") {
            self.cursor.expect("{")?;
            let more = self.dictionary()?;
            operation.attributes.extend(more);
        }
        if self.cursor.eat("{") {
            let mut body = Region { arguments, operations: Vec::new() };
            self.operations_until_brace(&mut body)?;
            operation.regions.push(body);
        }
        self.scopes.pop();
        Ok(Vec::new())
    }

    /// Attributes in braces, and the types of the results: `{...} : (types) -> types`, or a list of types.
    fn ending(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        if self.cursor.eat("{") {
            let attributes = self.dictionary()?;
            operation.attributes.extend(attributes);
        }
        match self.cursor.eat(":") {
            true => self.result_types(),
            false => Ok(Vec::new()),
        }
    }

    /// Types behind a colon: those of the results, or a list in which they come last.
    fn result_types(&mut self) -> Parsed<Vec<Type>> {
        let mut types = Vec::new();
        loop {
            match self.r#type()? {
                Type::Function(_, results) => return Ok(results.to_vec()),
                r#type => types.push(r#type),
            }
            if self.cursor.eat("->") {
                return match self.cursor.eat("(") {
                    true => self.types_until(")"),
                    false => Ok(vec![self.r#type()?]),
                };
            }
            if !self.cursor.eat(",") {
                return Ok(types);
            }
        }
    }

    /// Operands, words and named values with commas between them, and the ending.
    fn items(&mut self, operation: &mut Operation, n_results: usize) -> Parsed<Vec<Type>> {
        let has_parentheses = self.cursor.eat("(");
        let mut words = Vec::new();
        loop {
            match self.cursor.peek() {
                Some('%') => {
                    let value = self.value()?;
                    operation.operands.push(value);
                    if self.cursor.eat("[") {
                        self.index(operation)?;
                    }
                }
                Some(c) if c.is_ascii_alphabetic() => {
                    let word = self.cursor.word()?;
                    match self.cursor.eat("=") {
                        true => self.named_item(operation, word)?,
                        false => words.push(Attribute::Word(word.into())),
                    }
                }
                _ => {}
            }
            if !self.cursor.eat(",") {
                break;
            }
        }
        if has_parentheses {
            self.cursor.expect(")")?;
        }
        if &*operation.name == "stablehlo.compare" {
            for (word, name) in words.into_iter().zip(["comparison_direction", "compare_type"]) {
                operation.attributes.push((name.into(), word));
            }
        } else if let Some(Attribute::Word(word)) = words.first() {
            let (at, name) = (self.cursor.at, &operation.name);
            let message = format!("the form of `{name}` with `{word}` is not supported");
            return Err(self.cursor.error(at - word.len()..at, message));
        }
        let types = self.ending(operation)?;
        Ok(match types.len() > n_results && n_results > 0 {
            true => types[types.len() - n_results..].to_vec(),
            false => types,
        })
    }

    /// What is in brackets behind an operand: the index into a tuple, or the ranges of a slice.
    fn index(&mut self, operation: &mut Operation) -> Parsed<()> {
        if &*operation.name == "stablehlo.get_tuple_element" {
            let index = self.cursor.integer()?;
            operation.attributes.push(("index".into(), Attribute::Integer(index, "i32".into())));
            return self.cursor.expect("]");
        }
        let (mut starts, mut limits, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        while !self.cursor.eat("]") {
            if !starts.is_empty() {
                self.cursor.expect(",")?;
            }
            starts.push(self.cursor.integer()?);
            self.cursor.expect(":")?;
            limits.push(self.cursor.integer()?);
            strides.push(if self.cursor.eat(":") { self.cursor.integer()? } else { 1 });
        }
        for (name, numbers) in [("start_indices", starts), ("limit_indices", limits), ("strides", strides)] {
            operation.attributes.push((name.into(), Attribute::Integers(numbers, "i64".into())));
        }
        Ok(())
    }

    /// `name = value`, where names differ from those of the attributes.
    fn named_item(&mut self, operation: &mut Operation, word: &str) -> Parsed<()> {
        let name = match (&*operation.name, word) {
            ("stablehlo.broadcast_in_dim" | "stablehlo.dynamic_broadcast_in_dim", "dims") => {
                "broadcast_dimensions"
            }
            ("stablehlo.transpose", "dims") => "permutation",
            ("stablehlo.reverse", "dims") => "dimensions",
            ("stablehlo.dynamic_slice", "sizes") => "slice_sizes",
            ("stablehlo.broadcast", "sizes") => "broadcast_sizes",
            ("stablehlo.iota" | "stablehlo.dynamic_iota", "dim") => "iota_dimension",
            (_, "dim") => "dimension",
            ("stablehlo.pad", "low") => "edge_padding_low",
            ("stablehlo.pad", "high") => "edge_padding_high",
            ("stablehlo.pad", "interior") => "interior_padding",
            ("stablehlo.fft", "type") => "fft_type",
            ("stablehlo.fft", "length") => "fft_length",
            ("stablehlo.rng", "distribution") => "rng_distribution",
            ("stablehlo.rng_bit_generator", "algorithm") => "rng_algorithm",
            ("stablehlo.einsum" | "stablehlo.unary_einsum", "config") => "einsum_config",
            (_, "precision") => "precision_config",
            (_, "batching_dims" | "contracting_dims") => {
                let kind = if word == "batching_dims" { "batching" } else { "contracting" };
                for (number, side) in ["lhs", "rhs"].into_iter().enumerate() {
                    if number == 1 {
                        self.cursor.expect("x")?;
                    }
                    let list = self.attribute()?;
                    operation.attributes.push((format!("{side}_{kind}_dimensions").into(), list));
                }
                return Ok(());
            }
            (_, "format") => {
                // `e5m10`
                let format = self.cursor.word()?;
                let bits = format.strip_prefix('e').and_then(|rest| rest.split_once('m'));
                let parsed = bits.and_then(|(e, m)| Some((e.parse().ok()?, m.parse().ok()?)));
                let Some((exponent, mantissa)) = parsed else {
                    return Err(self.cursor.unexpected("a format such as `e5m10` before this"));
                };
                for (name, bits) in [("exponent_bits", exponent), ("mantissa_bits", mantissa)] {
                    operation.attributes.push((name.into(), Attribute::Integer(bits, "i32".into())));
                }
                return Ok(());
            }
            (_, other) => other,
        };
        let value = self.attribute()?;
        operation.attributes.push((name.into(), value));
        Ok(())
    }

    /// `(%a init: %z), (%b init: %y) applies stablehlo.add across dimensions = [0] : types`, or with a region behind.
    fn reduce(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        let mut initial = Vec::new();
        while self.cursor.eat("(") {
            operation.operands.push(self.value()?);
            self.cursor.expect("init")?;
            self.cursor.expect(":")?;
            initial.push(self.value()?);
            self.cursor.expect(")")?;
            self.cursor.eat(",");
        }
        operation.operands.extend(initial.iter().copied());
        let applied = match self.cursor.eat_word("applies") {
            true => Some(self.cursor.word()?),
            false => None,
        };
        self.cursor.expect("across")?;
        self.cursor.expect("dimensions")?;
        self.cursor.expect("=")?;
        operation.attributes.push(("dimensions".into(), self.attribute()?));
        let types = self.ending(operation)?;
        let mut region = Region::default();
        if let Some(applied) = applied {
            let element = match initial.first().map(|&value| &self.program.types[value as usize]) {
                Some(Type::Shape(Shape::Array(array))) => array.element_type,
                _ => ElementType::F32,
            };
            let scalar = || Shape::scalar(element);
            let operands = [0, 1].map(|_| self.unnamed_argument(scalar(), &mut region));
            let result = self.new_value(Type::Shape(scalar()));
            let inner = |name: &str| Operation { name: name.into(), ..Operation::default() };
            region.operations.push(Operation {
                operands: operands.as_slice().into(),
                results: [result].as_slice().into(),
                ..inner(applied)
            });
            region
                .operations
                .push(Operation { operands: [result].as_slice().into(), ..inner("stablehlo.return") });
            operation.regions.push(region);
            return Ok(types);
        }
        // Arguments are written in pairs, but the accumulated values come first.
        self.cursor.expect("reducer")?;
        self.scopes.push(Default::default());
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while self.cursor.eat("(") {
            left.push(self.argument()?.0);
            self.cursor.expect(",")?;
            right.push(self.argument()?.0);
            self.cursor.expect(")")?;
        }
        region.arguments = left.into_iter().chain(right).collect();
        // The location of the operation may come before the region.
        operation.location = self.trailing_location()?;
        self.cursor.expect("{")?;
        self.operations_until_brace(&mut region)?;
        self.scopes.pop();
        operation.regions.push(region);
        Ok(types)
    }

    /// `(%a = %b, ...) : types attributes {...} cond {...} do {...}`.
    fn while_loop(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        self.cursor.expect("(")?;
        let mut names = Vec::new();
        while !self.cursor.eat(")") {
            if !names.is_empty() {
                self.cursor.expect(",")?;
            }
            names.push(self.value_name()?);
            self.cursor.expect("=")?;
            let value = self.value()?;
            operation.operands.push(value);
        }
        let types = match self.cursor.eat(":") {
            true => self.result_types()?,
            false => Vec::new(),
        };
        if types.len() != names.len() {
            let (at, found) = (self.cursor.at, types.len());
            return Err(self
                .cursor
                .error(at - 1..at, format!("expected {} types, found {found}", names.len())));
        }
        if self.cursor.eat_word("attributes") {
            self.cursor.expect("{")?;
            let attributes = self.dictionary()?;
            operation.attributes.extend(attributes);
        }
        for keyword in ["cond", "do"] {
            self.cursor.expect(keyword)?;
            self.cursor.expect("{")?;
            self.scopes.push(Default::default());
            let mut region = Region::default();
            for (&name, r#type) in names.iter().zip(&types) {
                let value = self.new_value(r#type.clone());
                region.arguments.push(Argument { value, location: LocationId::default() });
                self.scopes.last_mut().expect("just pushed").insert(name, (value, 1));
            }
            self.operations_until_brace(&mut region)?;
            self.scopes.pop();
            operation.regions.push(region);
        }
        Ok(types)
    }

    /// `(%a, %b) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f], window = {...} {...} : types`.
    fn convolution(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        self.cursor.expect("(")?;
        operation.operands = self.values()?.into();
        self.cursor.expect(")")?;
        self.cursor.expect("dim_numbers")?;
        self.cursor.expect("=")?;
        self.cursor.space();
        let start = self.cursor.at;
        self.cursor.take(|c| is_word(c) || matches!(c, '[' | ']' | ',' | ' ' | '-' | '>' | '?'));
        // The list ends with the comma before `window`.
        let text = &self.cursor.source[start..self.cursor.at];
        let Some(end) = text.rfind(']') else {
            return Err(self.cursor.error(start..start + 1, "expected dimension numbers"));
        };
        let dimensions = convolution_dimensions(&text[..=end]);
        let Some(dimensions) = dimensions else {
            return Err(self.cursor.error(start..start + end + 1, "these are no dimension numbers"));
        };
        operation.attributes.extend(dimensions);
        self.cursor.at = start + end + 1;
        self.cursor.expect(",")?;
        self.cursor.expect("window")?;
        self.cursor.expect("=")?;
        self.cursor.expect("{")?;
        while !self.cursor.eat("}") {
            self.cursor.eat(",");
            let name = match self.cursor.word()? {
                "stride" => "window_strides",
                "pad" => "padding",
                "lhs_dilate" => "lhs_dilation",
                "rhs_dilate" => "rhs_dilation",
                "reverse" => "window_reversal",
                _ => return Err(self.cursor.unexpected("a part of a window before this")),
            };
            self.cursor.expect("=")?;
            operation.attributes.push((name.into(), self.attribute()?));
        }
        self.ending(operation)
    }

    /// `(%a) in_shardings=[...] out_shardings=[...] manual_axes={...} (%b: type) {...} : types`.
    fn manual_computation(&mut self, operation: &mut Operation) -> Parsed<Vec<Type>> {
        self.cursor.expect("(")?;
        operation.operands = self.values()?.into();
        self.cursor.expect(")")?;
        for name in ["in_shardings", "out_shardings"] {
            self.cursor.expect(name)?;
            self.cursor.expect("=")?;
            self.cursor.expect("[")?;
            let body = format!("[{}]", self.cursor.balanced(']')?);
            let shardings = Attribute::Dialect("sdy.sharding_per_value".into(), body.into());
            operation.attributes.push((name.into(), shardings));
        }
        self.cursor.expect("manual_axes")?;
        self.cursor.expect("=")?;
        self.cursor.expect("{")?;
        let axes = format!("manual_axes{{{}}}", self.cursor.balanced('}')?);
        operation.attributes.push(("manual_axes".into(), Attribute::Dialect("sdy".into(), axes.into())));
        self.scopes.push(Default::default());
        let mut region = Region::default();
        if self.cursor.eat("(") {
            region.arguments = self.arguments()?;
        }
        self.cursor.expect("{")?;
        self.operations_until_brace(&mut region)?;
        self.scopes.pop();
        operation.regions.push(region);
        self.ending(operation)
    }
}

/// The dimension numbers of `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`, by the names of portable bytecode.
pub(crate) fn convolution_dimensions(text: &str) -> Option<Attributes> {
    let (input, rest) = text.split_once('x')?;
    let (kernel, output) = rest.split_once("->")?;
    let sides = [("input", input, 'b', 'f'), ("kernel", kernel, 'i', 'o'), ("output", output, 'b', 'f')];
    let mut found = Attributes::new();
    for (side, list, first, second) in sides {
        let list = list.trim().strip_prefix('[')?.strip_suffix(']')?;
        let mut spatial: Vec<(i64, i64)> = Vec::new();
        for (position, label) in list.split(',').enumerate() {
            let position = position as i64;
            let name = match (label.trim(), side) {
                (label, "kernel") if label.starts_with(first) => "input_feature",
                (label, "kernel") if label.starts_with(second) => "output_feature",
                (label, _) if label.starts_with(first) => "batch",
                (label, _) if label.starts_with(second) => "feature",
                (label, _) => {
                    spatial.push((label.parse().ok()?, position));
                    continue;
                }
            };
            found.push((
                format!("{side}_{name}_dimension").into(),
                Attribute::Integer(position, "i64".into()),
            ));
        }
        spatial.sort_unstable();
        let spatial = spatial.into_iter().map(|(_, position)| position).collect();
        found.push((format!("{side}_spatial_dimensions").into(), Attribute::Integers(spatial, "i64".into())));
    }
    Some(found)
}
