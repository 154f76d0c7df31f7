//! Operations, each as the instructions that XLA makes of it.

use memplan_ir::*;
use smallvec::SmallVec;

use super::attributes::{Fields, print};
use super::{Body, Converter};
use crate::Error;
use crate::mlir::{Attribute, Operation, Type};
use crate::text;

/// Operations that are called as in HLO, of one operand or two.
const PLAIN: &[(&str, Op)] = &[
    ("abs", Op::Unary(UnaryOp::Abs)),
    ("acos", Op::Unary(UnaryOp::Acos)),
    ("add", Op::Binary(BinaryOp::Add)),
    ("and", Op::Binary(BinaryOp::And)),
    ("atan2", Op::Binary(BinaryOp::Atan2)),
    ("bitcast_convert", Op::BitcastConvert),
    ("cbrt", Op::Unary(UnaryOp::Cbrt)),
    ("ceil", Op::Unary(UnaryOp::Ceil)),
    ("complex", Op::Binary(BinaryOp::Complex)),
    ("convert", Op::Convert),
    ("cosine", Op::Unary(UnaryOp::Cosine)),
    ("count_leading_zeros", Op::Unary(UnaryOp::CountLeadingZeros)),
    ("divide", Op::Binary(BinaryOp::Divide)),
    ("dynamic_update_slice", Op::DynamicUpdateSlice),
    ("exponential", Op::Unary(UnaryOp::Exponential)),
    ("exponential_minus_one", Op::Unary(UnaryOp::Expm1)),
    ("floor", Op::Unary(UnaryOp::Floor)),
    ("imag", Op::Unary(UnaryOp::Imag)),
    ("is_finite", Op::Unary(UnaryOp::IsFinite)),
    ("log", Op::Unary(UnaryOp::Log)),
    ("log_plus_one", Op::Unary(UnaryOp::Log1p)),
    ("logistic", Op::Unary(UnaryOp::Logistic)),
    ("maximum", Op::Binary(BinaryOp::Maximum)),
    ("minimum", Op::Binary(BinaryOp::Minimum)),
    ("multiply", Op::Binary(BinaryOp::Multiply)),
    ("negate", Op::Unary(UnaryOp::Negate)),
    ("not", Op::Unary(UnaryOp::Not)),
    ("or", Op::Binary(BinaryOp::Or)),
    ("popcnt", Op::Unary(UnaryOp::PopulationCount)),
    ("power", Op::Binary(BinaryOp::Power)),
    ("real", Op::Unary(UnaryOp::Real)),
    ("remainder", Op::Binary(BinaryOp::Remainder)),
    ("reshape", Op::Reshape { inferred_dimension: None }),
    ("round_nearest_afz", Op::Unary(UnaryOp::RoundNearestAwayFromZero)),
    ("round_nearest_even", Op::Unary(UnaryOp::RoundNearestEven)),
    ("rsqrt", Op::Unary(UnaryOp::Rsqrt)),
    ("shift_left", Op::Binary(BinaryOp::ShiftLeft)),
    ("shift_right_arithmetic", Op::Binary(BinaryOp::ShiftRightArithmetic)),
    ("shift_right_logical", Op::Binary(BinaryOp::ShiftRightLogical)),
    ("sign", Op::Unary(UnaryOp::Sign)),
    ("sine", Op::Unary(UnaryOp::Sine)),
    ("sqrt", Op::Unary(UnaryOp::Sqrt)),
    ("subtract", Op::Binary(BinaryOp::Subtract)),
    ("tan", Op::Unary(UnaryOp::Tan)),
    ("tanh", Op::Unary(UnaryOp::Tanh)),
    ("xor", Op::Binary(BinaryOp::Xor)),
    ("after_all", Op::AfterAll),
    ("create_token", Op::AfterAll),
    ("partition_id", Op::PartitionId),
    ("replica_id", Op::ReplicaId),
];

impl<'p> Converter<'p> {
    /// Adds the instructions of an operation.
    pub(super) fn operation(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let Some((dialect, name)) = operation.name.split_once('.') else {
            return Err(operation.unsupported());
        };
        match (dialect, name) {
            // Made where they are used.
            ("stablehlo" | "chlo", "constant") => return Ok(()),
            ("stablehlo", "while") => return self.while_loop(operation, body),
            ("stablehlo", "if" | "case") => return self.conditional(operation, body),
            ("func", "call") => return self.call(operation, body),
            ("stablehlo", "composite") => return self.composite(operation, body),
            // Between dialects of portable bytecode.
            ("builtin", "unrealized_conversion_cast") => {
                for (&from, &to) in operation.operands.iter().zip(&operation.results) {
                    let id = self.value(from, body, operation)?;
                    body.values.insert(to, id);
                }
                return Ok(());
            }
            ("sdy", "manual_computation") => return self.manual_computation(operation, body),
            ("sdy", "sharding_constraint") => return self.sharding_constraint(operation, body),
            ("chlo", name) => return self.chlo(operation, name, body),
            (
                "stablehlo",
                "all_reduce"
                | "reduce_scatter"
                | "all_gather"
                | "all_to_all"
                | "collective_broadcast"
                | "collective_permute",
            ) => return self.collective(operation, body),
            ("stablehlo", _) => {}
            _ => return Err(operation.unsupported()),
        }
        let operands = self.values(operation, body)?;
        let id = match name {
            "clamp" => self.clamp(operation, operands, body)?,
            "select" => self.select(operation, operands, body)?,
            "iota" => self.iota(operation, body)?,
            "broadcast_in_dim" => self.broadcast_in_dim(operation, &operands, body)?,
            "optimization_barrier" => self.barrier(operation, &operands, body)?,
            "custom_call" => match self.custom(operation, &operands, body)? {
                Some(id) => id,
                None => return Ok(()),
            },
            _ => {
                let plain = PLAIN.iter().find(|(plain, _)| *plain == name).map(|(_, op)| op.clone());
                let shape = self.result_shape(operation)?;
                let (mut op, called) = match plain {
                    Some(op) => (op, Vec::new()),
                    None => self.structured(operation, name, &operands)?,
                };
                let expected = op.opcode().traits().operands;
                if !expected.allows(operands.len()) {
                    return Err(operation.error(format!(
                        "`{}` has {} operands",
                        operation.name,
                        operands.len()
                    )));
                }
                let mut operands = operands;
                self.shortened(&mut op, &mut operands);
                if let Some(known) = self.folded(&op, &operands, &shape, operation.location, body) {
                    self.give(operation, known, body);
                    return Ok(());
                }
                // Functions of complex numbers, which HLO has and jaxlib writes of their parts.
                match self.formula(operation, name, &operands, &shape, body) {
                    Some(id) => id,
                    None => self.emit(body, operation, op, &operands, &called, shape),
                }
            }
        };
        if self.module.instructions.keys().next_back() == Some(id) {
            // What was there before has its own notes.
            self.note_all(id, operation)?;
        }
        self.give(operation, id, body);
        Ok(())
    }

    /// Notes about shardings and the like.
    pub(super) fn note_all(&mut self, id: InstructionId, operation: &'p Operation) -> Result<(), Error> {
        for (name, value) in &operation.attributes {
            self.note(id, name, value, false, operation)?;
        }
        self.accuracy(id, operation)
    }

    /// How exact a function must be, where that is said.
    fn accuracy(&mut self, id: InstructionId, operation: &'p Operation) -> Result<(), Error> {
        let fields = match operation.attribute("result_accuracy") {
            Some(Attribute::Dialect(_, body)) => text::fields(body),
            Some(Attribute::Dictionary(entries)) => Some(entries.clone()),
            _ => return Ok(()),
        };
        let fields = fields.ok_or_else(|| operation.missing("result_accuracy"))?;
        let float = |name: &str| match crate::mlir::find(&fields, name) {
            Some(Attribute::Float(value, _)) => *value,
            Some(Attribute::Integer(value, _)) => *value as f64,
            _ => 0.0,
        };
        let mode = match crate::mlir::find(&fields, "mode") {
            Some(Attribute::Word(word)) => &**word,
            _ => "DEFAULT",
        };
        let ulps = match crate::mlir::find(&fields, "ulps") {
            Some(Attribute::Integer(value, _)) => *value,
            _ => 0,
        };
        let accuracy = match mode {
            "HIGHEST" => ResultAccuracy::Highest,
            "TOLERANCE" => ResultAccuracy::Tolerance { rtol: float("rtol"), atol: float("atol"), ulps },
            _ => return Ok(()),
        };
        self.module.instructions[id].extras_mut().result_accuracy = Some(accuracy);
        Ok(())
    }

    /// Operations with attributes that HLO has one operation for, and what they call.
    fn structured(
        &mut self,
        operation: &'p Operation,
        name: &str,
        operands: &[InstructionId],
    ) -> Result<(Op, Vec<ComputationId>), Error> {
        let integer = |name: &str| operation.integer(name)?.ok_or_else(|| operation.missing(name));
        let mut called = Vec::new();
        let op = match name {
            "compare" => {
                let direction = operation.word("comparison_direction")?.and_then(|word| word.parse().ok());
                let direction = direction.ok_or_else(|| operation.missing("comparison_direction"))?;
                let comparison_type = match operation.word("compare_type")? {
                    None | Some("NOTYPE") => None,
                    Some(word) => Some(word.parse().map_err(|_| operation.missing("compare_type"))?),
                };
                Op::Compare { direction, comparison_type }
            }
            "broadcast" => {
                let sizes = operation.dimensions("broadcast_sizes")?.len() as i64;
                let rank = self.array(operation.operands[0], operation)?.rank() as i64;
                Op::Broadcast { dimensions: (sizes..sizes + rank).collect() }
            }
            "transpose" => Op::Transpose { dimensions: operation.dimensions("permutation")? },
            "reverse" => Op::Reverse { dimensions: operation.dimensions("dimensions")? },
            "concatenate" => Op::Concatenate { dimension: integer("dimension")? },
            "dynamic_slice" => Op::DynamicSlice { slice_sizes: operation.dimensions("slice_sizes")? },
            "slice" => {
                let lists =
                    ["start_indices", "limit_indices", "strides"].map(|name| operation.dimensions(name));
                let [starts, limits, strides] = lists;
                let (starts, limits, strides) = (starts?, limits?, strides?);
                if starts.len() != limits.len() || starts.len() != strides.len() {
                    return Err(operation.error("the ranges of a slice differ in number"));
                }
                let dimension =
                    |i: usize| SliceDimension { start: starts[i], limit: limits[i], stride: strides[i] };
                Op::Slice { dimensions: (0..starts.len()).map(dimension).collect() }
            }
            "pad" => {
                let lists = ["edge_padding_low", "edge_padding_high", "interior_padding"]
                    .map(|name| operation.dimensions(name));
                let [low, high, interior] = lists;
                let (low, high, interior) = (low?, high?, interior?);
                if low.len() != high.len() || low.len() != interior.len() {
                    return Err(operation.error("the paddings differ in number"));
                }
                let dimension =
                    |i: usize| PaddingDimension { low: low[i], high: high[i], interior: interior[i] };
                Op::Pad { dimensions: (0..low.len()).map(dimension).collect() }
            }
            "gather" => Op::Gather(Box::new(GatherDimensions {
                offset_dims: self.field(operation, "offset_dims")?,
                collapsed_slice_dims: self.field(operation, "collapsed_slice_dims")?,
                start_index_map: self.field(operation, "start_index_map")?,
                index_vector_dim: self.field_integer(operation, "index_vector_dim")?,
                operand_batching_dims: self.field(operation, "operand_batching_dims")?,
                start_indices_batching_dims: self.field(operation, "start_indices_batching_dims")?,
                slice_sizes: operation.dimensions("slice_sizes")?,
                indices_are_sorted: operation.flag("indices_are_sorted")?,
            })),
            "scatter" => {
                called.push(self.region(operation, 0)?);
                Op::Scatter(Box::new(ScatterDimensions {
                    update_window_dims: self.field(operation, "update_window_dims")?,
                    inserted_window_dims: self.field(operation, "inserted_window_dims")?,
                    scatter_dims_to_operand_dims: self.field(operation, "scatter_dims_to_operand_dims")?,
                    index_vector_dim: self.field_integer(operation, "index_vector_dim")?,
                    input_batching_dims: self.field(operation, "input_batching_dims")?,
                    scatter_indices_batching_dims: self.field(operation, "scatter_indices_batching_dims")?,
                    indices_are_sorted: operation.flag("indices_are_sorted")?,
                    unique_indices: operation.flag("unique_indices")?,
                }))
            }
            "reduce" => {
                called.push(self.region(operation, 0)?);
                Op::Reduce { dimensions: operation.dimensions("dimensions")? }
            }
            "map" => {
                called.push(self.region(operation, 0)?);
                Op::Map { dimensions: operation.dimensions("dimensions")? }
            }
            "reduce_window" => {
                called.push(self.region(operation, 0)?);
                Op::ReduceWindow(Box::new(self.window(operation)?))
            }
            "select_and_scatter" => {
                called.extend([self.region(operation, 0)?, self.region(operation, 1)?]);
                Op::SelectAndScatter(Box::new(self.window(operation)?))
            }
            "sort" => {
                called.push(self.region(operation, 0)?);
                let rank = self.array(operation.operands[0], operation)?.rank() as i64;
                let dimension = operation.integer("dimension")?.unwrap_or(-1);
                let dimension = if dimension < 0 { dimension + rank } else { dimension };
                Op::Sort { dimension, is_stable: operation.flag("is_stable")? }
            }
            "dot_general" => Op::Dot(Box::new(Dot {
                dimensions: DotDimensions {
                    lhs_contracting: self.field(operation, "lhs_contracting_dimensions")?,
                    rhs_contracting: self.field(operation, "rhs_contracting_dimensions")?,
                    lhs_batch: self.field(operation, "lhs_batching_dimensions")?,
                    rhs_batch: self.field(operation, "rhs_batching_dimensions")?,
                },
                precision: precision(operation)?,
            })),
            "dot" => {
                let rank = self.array(operation.operands[0], operation)?.rank() as i64;
                let dimensions = DotDimensions::new([(rank - 1).max(0)], [0]);
                Op::Dot(Box::new(Dot { dimensions, precision: precision(operation)? }))
            }
            "convolution" => Op::Convolution(Box::new(self.convolution(operation)?)),
            "fft" => {
                let kind = operation.word("fft_type")?.and_then(|word| word.parse().ok());
                let kind = kind.ok_or_else(|| operation.missing("fft_type"))?;
                Op::Fft { kind, lengths: operation.dimensions("fft_length")? }
            }
            "cholesky" => Op::Cholesky { lower: operation.flag("lower")? },
            "triangular_solve" => Op::TriangularSolve(TriangularSolve {
                left_side: operation.flag("left_side")?,
                lower: operation.flag("lower")?,
                unit_diagonal: operation.flag("unit_diagonal")?,
                transpose_a: match operation.word("transpose_a")? {
                    None | Some("TRANSPOSE_INVALID") => TriangularTranspose::NoTranspose,
                    Some(word) => word.parse().map_err(|_| operation.missing("transpose_a"))?,
                },
            }),
            "batch_norm_training" | "batch_norm_inference" | "batch_norm_grad" => {
                let epsilon = match operation.attribute("epsilon") {
                    Some(Attribute::Float(value, _)) => *value as f32,
                    _ => return Err(operation.missing("epsilon")),
                };
                let feature_index = integer("feature_index")?;
                match name {
                    "batch_norm_training" => Op::BatchNormTraining { epsilon, feature_index },
                    "batch_norm_inference" => Op::BatchNormInference { epsilon, feature_index },
                    _ => Op::BatchNormGrad { epsilon, feature_index },
                }
            }
            "rng" => {
                let distribution = match operation.word("rng_distribution")? {
                    Some("UNIFORM") => RngDistribution::RngUniform,
                    Some("NORMAL") => RngDistribution::RngNormal,
                    _ => return Err(operation.missing("rng_distribution")),
                };
                // HLO has the extents in the shape alone.
                let _ = operands;
                return Err(operation.error(format!(
                    "operation `stablehlo.rng` ({}) is not supported",
                    <&str>::from(distribution)
                )));
            }
            "rng_bit_generator" => {
                let algorithm = match operation.word("rng_algorithm")? {
                    Some("DEFAULT") => RngAlgorithm::RngDefault,
                    Some("THREE_FRY") => RngAlgorithm::RngThreeFry,
                    Some("PHILOX") => RngAlgorithm::RngPhilox,
                    _ => return Err(operation.missing("rng_algorithm")),
                };
                Op::RngBitGenerator { algorithm }
            }
            "reduce_precision" => {
                let bits = |name| i32::try_from(integer(name)?).map_err(|_| operation.missing(name));
                Op::ReducePrecision {
                    exponent_bits: bits("exponent_bits")?,
                    mantissa_bits: bits("mantissa_bits")?,
                }
            }
            "get_dimension_size" => Op::GetDimensionSize { dimension: integer("dimension")? },
            "set_dimension_size" => Op::SetDimensionSize { dimension: integer("dimension")? },
            "get_tuple_element" => {
                let index = u32::try_from(integer("index")?).map_err(|_| operation.missing("index"))?;
                Op::GetTupleElement { index }
            }
            "tuple" => Op::Tuple,
            _ => return Err(operation.unsupported()),
        };
        Ok((op, called))
    }

    /// A field of dimension numbers: an attribute of its own in portable bytecode, within one in text.
    fn field(&self, operation: &'p Operation, name: &str) -> Result<Dimensions, Error> {
        if operation.attribute(name).is_some() {
            return operation.dimensions(name);
        }
        let Some(value) = grouped(operation, name)? else { return Ok(Dimensions::default()) };
        let found = super::attributes::list(&value).ok_or_else(|| operation.missing(name))?;
        Ok(found.into_iter().collect())
    }

    fn field_integer(&self, operation: &'p Operation, name: &str) -> Result<i64, Error> {
        Ok(self.field(operation, name)?.first().copied().unwrap_or(0))
    }

    /// The window of a reduction.
    fn window(&mut self, operation: &'p Operation) -> Result<Window, Error> {
        let rank = self.array(operation.operands[0], operation)?.rank();
        let of = |name: &str, default: i64| {
            let list = operation.numbers(name)?.unwrap_or_else(|| vec![default; rank]);
            match list.len() == rank {
                true => Ok(list),
                false => Err(operation.missing(name)),
            }
        };
        let sizes = of("window_dimensions", 1)?;
        let (strides, base, window) =
            (of("window_strides", 1)?, of("base_dilations", 1)?, of("window_dilations", 1)?);
        let padding = operation.rows("padding")?.unwrap_or_else(|| vec![vec![0, 0]; rank]);
        let dimension = |i: usize| {
            let [padding_low, padding_high] = padding.get(i).map(Vec::as_slice).unwrap_or_default() else {
                return Err(operation.missing("padding"));
            };
            Ok(WindowDimension {
                size: sizes[i],
                stride: strides[i],
                padding_low: *padding_low,
                padding_high: *padding_high,
                window_dilation: window[i],
                base_dilation: base[i],
                window_reversal: false,
            })
        };
        Ok(Window { dimensions: (0..rank).map(dimension).collect::<Result<_, _>>()? })
    }

    fn convolution(&mut self, operation: &'p Operation) -> Result<Convolution, Error> {
        let dimensions = ConvolutionDimensions {
            input_batch: self.label(operation, "input_batch_dimension")?,
            input_feature: self.label(operation, "input_feature_dimension")?,
            input_spatial: self.labels(operation, "input_spatial_dimensions")?,
            kernel_input_feature: self.label(operation, "kernel_input_feature_dimension")?,
            kernel_output_feature: self.label(operation, "kernel_output_feature_dimension")?,
            kernel_spatial: self.labels(operation, "kernel_spatial_dimensions")?,
            output_batch: self.label(operation, "output_batch_dimension")?,
            output_feature: self.label(operation, "output_feature_dimension")?,
            output_spatial: self.labels(operation, "output_spatial_dimensions")?,
        };
        let kernel = self.array(operation.operands[1], operation)?;
        let n = dimensions.kernel_spatial.len();
        let of = |name: &str, default: i64| {
            let list = operation.numbers(name)?.filter(|list| !list.is_empty());
            let list = list.unwrap_or_else(|| vec![default; n]);
            match list.len() == n {
                true => Ok(list),
                false => Err(operation.missing(name)),
            }
        };
        let (strides, base, window, reversal) = (
            of("window_strides", 1)?,
            of("lhs_dilation", 1)?,
            of("rhs_dilation", 1)?,
            of("window_reversal", 0)?,
        );
        let padding = operation.rows("padding")?.filter(|rows| rows.len() == n);
        let padding = padding.unwrap_or_else(|| vec![vec![0, 0]; n]);
        let dimension = |i: usize| {
            let size = usize::try_from(dimensions.kernel_spatial[i]).ok();
            let size = size.and_then(|d| kernel.dimensions.get(d).copied());
            let [padding_low, padding_high] = padding[i][..] else {
                return Err(operation.missing("padding"));
            };
            Ok(WindowDimension {
                size: size.ok_or_else(|| operation.missing("kernel_spatial_dimensions"))?,
                stride: strides[i],
                padding_low,
                padding_high,
                window_dilation: window[i],
                base_dilation: base[i],
                window_reversal: reversal[i] != 0,
            })
        };
        let window = Window { dimensions: (0..n).map(dimension).collect::<Result<_, _>>()? };
        Ok(Convolution {
            window,
            dimensions,
            feature_group_count: operation.integer("feature_group_count")?.unwrap_or(1),
            batch_group_count: operation.integer("batch_group_count")?.unwrap_or(1),
            kind: ConvolutionKind::Unset,
            precision: precision(operation)?,
            sparsity: [None, None],
        })
    }

    fn labels(&self, operation: &'p Operation, name: &str) -> Result<Dimensions, Error> {
        if operation.attribute(name).is_some() {
            return operation.dimensions(name);
        }
        // `#stablehlo.conv<[b, 0, f]x[0, i, o]->[b, 0, f]>` of the generic form.
        let Some(Attribute::Dialect(_, body)) = operation.attribute("dimension_numbers") else {
            return Err(operation.missing(name));
        };
        let all = text::convolution_dimensions(body).ok_or_else(|| operation.missing("dimension_numbers"))?;
        let found = crate::mlir::find(&all, name).and_then(super::attributes::list);
        Ok(found.ok_or_else(|| operation.missing(name))?.into_iter().collect())
    }

    fn label(&self, operation: &'p Operation, name: &str) -> Result<i64, Error> {
        self.labels(operation, name)?.first().copied().ok_or_else(|| operation.missing(name))
    }

    /// Scalar bounds are broadcast.
    fn clamp(
        &mut self,
        operation: &'p Operation,
        mut operands: SmallVec<[InstructionId; 3]>,
        body: &mut Body,
    ) -> Result<InstructionId, Error> {
        if operands.len() != 3 {
            return Err(operation.error("`stablehlo.clamp` has three operands"));
        }
        let shape = self.result_shape(operation)?;
        for bound in [0, 2] {
            operands[bound] = self.spread(operands[bound], &shape, operation, body);
        }
        Ok(self.emit(body, operation, Op::Clamp, &operands, &[], shape))
    }

    /// A scalar predicate is broadcast.
    fn select(
        &mut self,
        operation: &'p Operation,
        mut operands: SmallVec<[InstructionId; 3]>,
        body: &mut Body,
    ) -> Result<InstructionId, Error> {
        if operands.len() != 3 {
            return Err(operation.error("`stablehlo.select` has three operands"));
        }
        let shape = self.result_shape(operation)?;
        if let Some(known) = self.folded(&Op::Select, &operands, &shape, operation.location, body) {
            return Ok(known);
        }
        operands[0] = self.spread(operands[0], &shape, operation, body);
        Ok(self.emit(body, operation, Op::Select, &operands, &[], shape))
    }

    /// A scalar as large as another shape.
    fn spread(
        &mut self,
        scalar: InstructionId,
        like: &Shape,
        operation: &'p Operation,
        body: &mut Body,
    ) -> InstructionId {
        let (Some(array), Some(like)) = (self.module.shape(scalar).as_array(), like.as_array()) else {
            return scalar;
        };
        if array.rank() != 0 || like.rank() == 0 {
            return scalar;
        }
        let extents = like.dimensions.clone();
        self.insert(body, operation.location, "broadcast", |cursor| cursor.broadcast(scalar, extents, []))
    }

    /// A count along one of several dimensions is a count that is broadcast.
    fn iota(&mut self, operation: &'p Operation, body: &mut Body) -> Result<InstructionId, Error> {
        let &[result] = &operation.results[..] else { return Err(operation.error("an iota has one result")) };
        let array = self.array(result, operation)?;
        let dimension = operation.integer("iota_dimension")?.unwrap_or(0);
        let extent = usize::try_from(dimension).ok().and_then(|d| array.dimensions.get(d).copied());
        let extent =
            extent.ok_or_else(|| operation.error("an iota counts along a dimension that is not there"))?;
        if extent == 1 {
            let zero = Scalar::integer(array.element_type, 0);
            return Ok(self.repeat(zero, &array, operation.location, body));
        }
        if array.rank() == 1 {
            return Ok(
                self.insert(body, operation.location, "iota", |cursor| cursor.iota(Shape::Array(array), 0))
            );
        }
        let line = Shape::array(array.element_type, [extent]);
        let count = self.insert(body, operation.location, "iota", |cursor| cursor.iota(line, 0));
        let is_line = array.element_count() == u64::try_from(extent).ok();
        let extents = array.dimensions;
        Ok(self.insert(body, operation.location, "broadcast", |cursor| match is_line {
            true => cursor.reshape(count, extents),
            false => cursor.broadcast(count, extents, [dimension]),
        }))
    }

    /// Dimensions of extent 1 that become longer are taken away first, as HLO repeats no elements of a dimension.
    fn broadcast_in_dim(
        &mut self,
        operation: &'p Operation,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<InstructionId, Error> {
        let (&[operand], &[result]) = (operands, &operation.results[..]) else {
            return Err(operation.error("`stablehlo.broadcast_in_dim` has one operand and one result"));
        };
        let dimensions = operation.dimensions("broadcast_dimensions")?;
        let (from, to) = (self.array(operation.operands[0], operation)?, self.array(result, operation)?);
        let fits = |&d: &i64| usize::try_from(d).is_ok_and(|d| d < to.rank());
        if dimensions.len() != from.rank() || !dimensions.iter().all(fits) {
            return Err(
                operation.error("the dimensions of `stablehlo.broadcast_in_dim` do not fit its shapes")
            );
        }
        if from.dimensions == to.dimensions && dimensions.iter().enumerate().all(|(i, &d)| d == i as i64) {
            return Ok(operand);
        }
        let op = Op::Broadcast { dimensions: dimensions.clone() };
        if let Some(known) = self.folded(&op, operands, &Shape::Array(to.clone()), operation.location, body) {
            return Ok(known);
        }
        // What adds only dimensions of extent 1 is a reshape.
        let ascending = dimensions.windows(2).all(|pair| pair[0] < pair[1]);
        if ascending && from.element_count() == to.element_count() {
            let mut operands = SmallVec::from_slice(&[operand]);
            let mut op = Op::Reshape { inferred_dimension: None };
            self.shortened(&mut op, &mut operands);
            let shape = Shape::Array(to);
            let known = self.folded(&op, &operands, &shape, operation.location, body);
            return Ok(known.unwrap_or_else(|| self.emit(body, operation, op, &operands, &[], shape)));
        }
        let mut within = to.dimensions.clone();
        for (i, &d) in dimensions.iter().enumerate() {
            within[d as usize] = from.dimensions[i];
        }
        let location = operation.location;
        let wide = {
            let (extents, dimensions) = (within.clone(), dimensions.clone());
            self.insert(body, location, "broadcast", |cursor| cursor.broadcast(operand, extents, dimensions))
        };
        if within == to.dimensions {
            return Ok(wide);
        }
        let kept: Vec<i64> =
            (0..to.rank()).filter(|&d| within[d] == to.dimensions[d]).map(|d| d as i64).collect();
        let extents: Vec<i64> = kept.iter().map(|&d| within[d as usize]).collect();
        let narrow = self.insert(body, location, "reshape", |cursor| cursor.reshape(wide, extents));
        let extents = to.dimensions;
        Ok(self.insert(body, location, "broadcast", |cursor| cursor.broadcast(narrow, extents, kept)))
    }

    fn barrier(
        &mut self,
        operation: &'p Operation,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<InstructionId, Error> {
        let shape = self.result_shape(operation)?;
        let together = match *operands {
            [one] => one,
            _ => {
                let operands = operands.to_vec();
                self.insert(body, operation.location, "tuple", |cursor| cursor.tuple(operands))
            }
        };
        Ok(self.emit(body, operation, Op::OptimizationBarrier, &[together], &[], shape))
    }

    fn sharding_constraint(&mut self, operation: &'p Operation, body: &mut Body) -> Result<(), Error> {
        let (&[operand], Some(Attribute::Dialect(_, text))) =
            (&self.values(operation, body)?[..], operation.attribute("sharding"))
        else {
            return Err(operation.missing("sharding"));
        };
        let rank = self.module.shape(operand).as_array().map_or(0, ArrayShape::rank);
        let sharding = self.meshes.sharding(text, rank, operation)?;
        let note = format!("#sdy.sharding_per_value<[<{text}>]>");
        let id =
            self.custom_call(body, operation.location, "Sharding", &[operand], &[("xla.sdy.sharding", note)]);
        self.module.instructions[id].extras_mut().sharding = Some(sharding);
        self.give(operation, id, body);
        Ok(())
    }

    /// A call of a library; `None` where it was an operation of HLO under another name.
    fn custom(
        &mut self,
        operation: &'p Operation,
        operands: &[InstructionId],
        body: &mut Body,
    ) -> Result<Option<InstructionId>, Error> {
        let target = operation.text("call_target_name")?;
        if let Some(name) = target.strip_prefix("mhlo.")
            && self.recomposed_call(operation, name, operands, body)?
        {
            return Ok(None);
        }
        let mut called = Vec::new();
        if let Some(Attribute::Array(names)) = operation.attribute("called_computations") {
            for name in names {
                let (Attribute::Symbol(name) | Attribute::String(name)) = name else {
                    return Err(operation.missing("called_computations"));
                };
                let callee = self.functions.get(&**name).copied();
                let callee =
                    callee.ok_or_else(|| operation.error(format!("there is no function `{name}`")))?;
                called.push(self.function(callee, false)?);
            }
        }
        let api_version = match operation.attribute("api_version") {
            Some(Attribute::Integer(version, _)) => *version,
            Some(Attribute::Word(word)) => {
                let versions =
                    ["UNSPECIFIED", "ORIGINAL", "STATUS_RETURNING", "STATUS_RETURNING_UNIFIED", "TYPED_FFI"];
                let plain = word.trim_start_matches("API_VERSION_");
                versions.iter().position(|version| *version == plain).unwrap_or(1) as i64
            }
            _ => 1,
        };
        let api_version = match api_version {
            0 => CustomCallApiVersion::ApiVersionUnspecified,
            1 => CustomCallApiVersion::ApiVersionOriginal,
            2 => CustomCallApiVersion::ApiVersionStatusReturning,
            3 => CustomCallApiVersion::ApiVersionStatusReturningUnified,
            4 => CustomCallApiVersion::ApiVersionTypedFfi,
            _ => return Err(operation.missing("api_version")),
        };
        let typed = operation.attribute("mhlo.backend_config");
        let config = match typed.or_else(|| operation.attribute("backend_config")) {
            Some(Attribute::String(text)) => text.to_string(),
            Some(dictionary @ Attribute::Dictionary(_)) => {
                let mut text = String::new();
                print(dictionary, &mut text);
                text
            }
            _ => String::new(),
        };
        let api_version = match typed {
            Some(Attribute::Dictionary(_)) => CustomCallApiVersion::ApiVersionTypedFfi,
            _ => api_version,
        };
        let mut shape = self.result_shape(operation)?;
        let call = CustomCall {
            target: target.into(),
            has_side_effect: operation.flag("has_side_effect")?,
            operand_layout_constraints: self.layouts_of_operands(operation, &mut shape)?,
            output_operand_aliasing: output_aliases(operation)?,
            api_version,
            ..CustomCall::default()
        };
        let id = self.emit(body, operation, Op::CustomCall(Box::new(call)), operands, &called, shape);
        if !config.is_empty() {
            self.module.instructions[id].backend_config = Some(config.into_bytes().into());
        }
        Ok(Some(id))
    }

    /// Layouts that a call asks for, of operands and results.
    fn layouts_of_operands(
        &self,
        operation: &'p Operation,
        result: &mut Shape,
    ) -> Result<Option<Vec<Shape>>, Error> {
        let (Some(Attribute::Array(operands)), Some(Attribute::Array(results))) =
            (operation.attribute("operand_layouts"), operation.attribute("result_layouts"))
        else {
            return Ok(None);
        };
        // Portable bytecode has empty lists where nothing was said.
        if operands.len() != operation.operands.len() || results.len() != operation.results.len() {
            return Ok(None);
        }
        let with_layout = |shape: &mut Shape, layout: &Attribute| {
            let order =
                super::attributes::list(layout).ok_or_else(|| operation.missing("operand_layouts"))?;
            if let Some(array) = shape.as_array_mut() {
                let mut sorted = order.clone();
                sorted.sort_unstable();
                if sorted.iter().copied().ne(0..array.rank() as i64) {
                    return Err(operation.missing("operand_layouts"));
                }
                array.layout = Some(Layout::with_order(order));
            }
            Ok(())
        };
        let mut constraints = Vec::new();
        for (&operand, layout) in operation.operands.iter().zip(operands) {
            let mut shape = self.shape(operand, operation)?;
            with_layout(&mut shape, layout)?;
            constraints.push(shape);
        }
        let mut shapes: Vec<Shape> = match &*result {
            Shape::Tuple(elements) if operation.results.len() != 1 => elements.to_vec(),
            one => vec![one.clone()],
        };
        for (shape, layout) in shapes.iter_mut().zip(results) {
            with_layout(shape, layout)?;
        }
        *result = match operation.results.len() {
            1 => shapes.swap_remove(0),
            _ => Shape::tuple(shapes),
        };
        Ok(Some(constraints))
    }
}

/// `result i is operand j`, of a custom call.
fn output_aliases(operation: &Operation) -> Result<Vec<OutputOperandAlias>, Error> {
    let name = "output_operand_aliases";
    let Some(Attribute::Array(entries)) = operation.attribute(name) else { return Ok(Vec::new()) };
    let wrong = || operation.missing(name);
    let one = |entry: &Attribute| {
        let fields = match entry {
            Attribute::Dictionary(fields) => fields.clone(),
            Attribute::Dialect(_, body) => text::fields(body).ok_or_else(wrong)?,
            _ => return Err(wrong()),
        };
        let index = |name| {
            let list =
                crate::mlir::find(&fields, name).and_then(super::attributes::list).ok_or_else(wrong)?;
            let steps = list.into_iter().map(u32::try_from).collect::<Result<_, _>>();
            steps.map(ShapeIndex).map_err(|_| wrong())
        };
        let operand = match crate::mlir::find(&fields, "operand_index") {
            Some(Attribute::Integer(number, _)) => u32::try_from(*number).map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        Ok(OutputOperandAlias {
            output_index: index("output_tuple_indices")?,
            operand,
            operand_index: index("operand_tuple_indices")?,
        })
    };
    entries.iter().map(one).collect()
}

/// A field of the dimension numbers of an operation in text: `#stablehlo.gather<offset_dims = [1], ...>`.
fn grouped(operation: &Operation, name: &str) -> Result<Option<Attribute>, Error> {
    for group in [
        "dimension_numbers",
        "scatter_dimension_numbers",
        "dot_dimension_numbers",
        "ragged_dot_dimension_numbers",
    ] {
        if let Some(Attribute::Dialect(_, body)) = operation.attribute(group) {
            let fields = text::fields(body).ok_or_else(|| operation.missing(group))?;
            return Ok(crate::mlir::find(&fields, name).cloned());
        }
    }
    Ok(None)
}

/// The precision of a product, and its algorithm.
pub(super) fn precision(operation: &Operation) -> Result<PrecisionConfig, Error> {
    let mut found = PrecisionConfig::default();
    if let Some(Attribute::Array(words)) = operation.attribute("precision_config") {
        for word in words {
            let precision = match word {
                Attribute::Word(word) => word.to_lowercase().parse().ok(),
                _ => None,
            };
            found.operand_precision.push(precision.ok_or_else(|| operation.missing("precision_config"))?);
        }
    }
    if found.operand_precision.iter().all(|&precision| precision == Precision::Default) {
        found.operand_precision.clear();
    }
    if let Some(algorithm) = algorithm(operation)? {
        found.algorithm = algorithm;
    }
    Ok(found)
}

/// The algorithm of a product, which StableHLO names by the types of its parts.
fn algorithm(operation: &Operation) -> Result<Option<PrecisionAlgorithm>, Error> {
    let fields = match operation.attribute("algorithm") {
        Some(Attribute::Dialect(_, body)) => {
            text::fields(body).ok_or_else(|| operation.missing("algorithm"))?
        }
        // Portable bytecode has the parts as attributes, and a type of nothing where there is none.
        None if matches!(
            operation.attribute("lhs_precision_type"),
            Some(Attribute::Type(Type::Shape(_)))
        ) =>
        {
            operation.attributes.clone()
        }
        _ => return Ok(None),
    };
    let type_of = |name: &str| match crate::mlir::find(&fields, name) {
        Some(Attribute::Type(Type::Shape(Shape::Array(array)))) => Some(array.element_type),
        Some(Attribute::Type(Type::Other(text))) if &**text == "tf32" => None,
        _ => None,
    };
    let is_tf32 = |name: &str| {
        matches!(crate::mlir::find(&fields, name), Some(Attribute::Type(Type::Other(text))) if text.contains("tf32"))
            || matches!(crate::mlir::find(&fields, name), Some(Attribute::Word(word)) if &**word == "tf32")
    };
    let number = |name: &str| match crate::mlir::find(&fields, name) {
        Some(Attribute::Integer(value, _)) => *value,
        _ => 1,
    };
    let imprecise =
        matches!(crate::mlir::find(&fields, "allow_imprecise_accumulation"), Some(Attribute::Bool(true)));
    use ElementType::{Bf16, F16, F32, F64};
    use PrecisionAlgorithm as A;
    let lhs = type_of("lhs_precision_type");
    let accumulation = type_of("accumulation_type");
    let count = number("num_primitive_operations");
    let is_f8 = lhs.is_some_and(|element| element.is_floating() && element.bits() == 8);
    let found = match (lhs, accumulation, count) {
        _ if is_tf32("lhs_precision_type") => match count {
            3 => Some(A::Tf32Tf32F32X3),
            _ => Some(A::Tf32Tf32F32),
        },
        _ if is_f8 && imprecise => Some(A::AnyF8AnyF8F32FastAccum),
        _ if is_f8 => Some(A::AnyF8AnyF8F32),
        (Some(F16), Some(F16), _) => Some(A::F16F16F16),
        (Some(F16), Some(F32), _) => Some(A::F16F16F32),
        (Some(Bf16), Some(Bf16), _) => Some(A::Bf16Bf16Bf16),
        (Some(Bf16), Some(F32), 3) => Some(A::Bf16Bf16F32X3),
        (Some(Bf16), Some(F32), 6) => Some(A::Bf16Bf16F32X6),
        (Some(Bf16), Some(F32), 9) => Some(A::Bf16Bf16F32X9),
        (Some(Bf16), Some(F32), _) => Some(A::Bf16Bf16F32),
        (Some(F32), Some(F32), _) => Some(A::F32F32F32),
        (Some(F64), Some(F64), _) => Some(A::F64F64F64),
        _ => None,
    };
    found.map(Some).ok_or_else(|| operation.error("this algorithm of a product is not supported"))
}
