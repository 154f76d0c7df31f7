//! Attributes, in the order in which XLA writes them.

use std::fmt::{self, Write};

use memplan_ir::{
    Collective, ConvolutionDimensions, CustomCall, DotDimensions, Instruction, Module, Op,
    OutputOperandAlias, Precision, PrecisionAlgorithm, PrecisionConfig, Window,
};

use super::{
    integers,
    literal::{number, shaped_literal},
    notes, quoted, separated,
    shape::{Layouts, shape},
    sharding,
    sugar::Sugar,
};

/// Writes `, name=value` for each attribute.
pub(super) fn attributes<W: Write>(
    module: &Module,
    sugar: &Sugar,
    instruction: &Instruction,
    out: &mut W,
) -> fmt::Result {
    let mut printer = Attributes { module, sugar, out };
    let p = &mut printer;
    p.own(instruction)?;
    p.called(instruction)?;
    if let Some(extras) = &instruction.extras {
        if let Some(accuracy) = &extras.result_accuracy {
            p.name("result_accuracy")?;
            notes::result_accuracy(accuracy, p.out)?;
        }
        if let Some(value) = &extras.sharding {
            p.name("sharding")?;
            sharding::sharding(value, p.out)?;
        }
        if !extras.frontend_attributes.is_empty() {
            p.name("frontend_attributes")?;
            notes::frontend_attributes(&extras.frontend_attributes, p.out)?;
        }
    }
    if !instruction.control_predecessors.is_empty() {
        p.name("control-predecessors")?;
        p.out.write_char('{')?;
        separated(p.out, ", ", &instruction.control_predecessors, |out, &id| {
            write!(out, "%{}", module.instructions[id].name)
        })?;
        p.out.write_char('}')?;
    }
    if let Some(statistics) = instruction.extras.as_ref().and_then(|extras| extras.statistics.as_ref()) {
        p.name("statistics")?;
        notes::statistics(statistics, p.out)?;
    }
    Ok(())
}

struct Attributes<'a, W> {
    module: &'a Module,
    sugar: &'a Sugar,
    out: &'a mut W,
}

impl<W: Write> Attributes<'_, W> {
    fn name(&mut self, name: &str) -> fmt::Result {
        self.out.write_str(", ")?;
        self.out.write_str(name)?;
        self.out.write_char('=')
    }

    fn value(&mut self, name: &str, value: impl fmt::Display) -> fmt::Result {
        self.name(name)?;
        write!(self.out, "{value}")
    }

    fn flag(&mut self, name: &str, value: bool) -> fmt::Result {
        if value { self.value(name, true) } else { Ok(()) }
    }

    fn list(&mut self, name: &str, values: &[i64]) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('{')?;
        integers(self.out, values)?;
        self.out.write_char('}')
    }

    /// A list that is left out when empty.
    fn optional_list(&mut self, name: &str, values: &[i64]) -> fmt::Result {
        if values.is_empty() { Ok(()) } else { self.list(name, values) }
    }

    /// The attributes of the operation itself.
    fn own(&mut self, instruction: &Instruction) -> fmt::Result {
        match &instruction.op {
            Op::Parameter { .. } => match &instruction.extras {
                Some(extras) if !extras.parameter_replication.is_empty() => {
                    self.name("parameter_replication")?;
                    self.out.write_char('{')?;
                    separated(self.out, ",", &extras.parameter_replication, |out, value| {
                        write!(out, "{value}")
                    })?;
                    self.out.write_char('}')
                }
                _ => Ok(()),
            },
            Op::Compare { direction, comparison_type } => {
                self.value("direction", direction)?;
                match comparison_type {
                    Some(comparison_type) => self.value("type", comparison_type),
                    None => Ok(()),
                }
            }
            Op::Iota { dimension } => self.value("iota_dimension", dimension),
            Op::ReducePrecision { exponent_bits, mantissa_bits } => {
                self.value("exponent_bits", exponent_bits)?;
                self.value("mantissa_bits", mantissa_bits)
            }
            Op::Broadcast { dimensions }
            | Op::Transpose { dimensions }
            | Op::Reverse { dimensions }
            | Op::Reduce { dimensions }
            | Op::Map { dimensions } => self.list("dimensions", dimensions),
            Op::Reshape { inferred_dimension: Some(dimension) } => {
                self.value("inferred_dimension", dimension)
            }
            Op::Slice { dimensions } => {
                self.name("slice")?;
                self.out.write_char('{')?;
                // Strides are written for all dimensions or for none.
                let has_strides = dimensions.iter().any(|d| d.stride != 1);
                separated(self.out, ", ", dimensions, |out, d| match has_strides {
                    true => write!(out, "[{}:{}:{}]", d.start, d.limit, d.stride),
                    false => write!(out, "[{}:{}]", d.start, d.limit),
                })?;
                self.out.write_char('}')
            }
            Op::DynamicSlice { slice_sizes } => self.list("dynamic_slice_sizes", slice_sizes),
            Op::Concatenate { dimension }
            | Op::GetDimensionSize { dimension }
            | Op::SetDimensionSize { dimension } => self.list("dimensions", &[*dimension]),
            Op::Pad { dimensions } => {
                self.name("padding")?;
                // Interior padding is written for all dimensions or for none.
                let has_interior = dimensions.iter().any(|d| d.interior != 0);
                separated(self.out, "x", dimensions, |out, d| {
                    write!(out, "{}_{}", d.low, d.high)?;
                    if has_interior { write!(out, "_{}", d.interior) } else { Ok(()) }
                })
            }
            Op::Gather(g) => {
                self.list("offset_dims", &g.offset_dims)?;
                self.list("collapsed_slice_dims", &g.collapsed_slice_dims)?;
                self.list("start_index_map", &g.start_index_map)?;
                self.optional_list("operand_batching_dims", &g.operand_batching_dims)?;
                self.optional_list("start_indices_batching_dims", &g.start_indices_batching_dims)?;
                self.value("index_vector_dim", g.index_vector_dim)?;
                self.list("slice_sizes", &g.slice_sizes)?;
                self.flag("indices_are_sorted", g.indices_are_sorted)
            }
            Op::Scatter(s) => {
                self.list("update_window_dims", &s.update_window_dims)?;
                self.list("inserted_window_dims", &s.inserted_window_dims)?;
                self.list("scatter_dims_to_operand_dims", &s.scatter_dims_to_operand_dims)?;
                self.optional_list("input_batching_dims", &s.input_batching_dims)?;
                self.optional_list("scatter_indices_batching_dims", &s.scatter_indices_batching_dims)?;
                self.value("index_vector_dim", s.index_vector_dim)?;
                self.flag("indices_are_sorted", s.indices_are_sorted)?;
                self.flag("unique_indices", s.unique_indices)
            }
            Op::ReduceWindow(w) | Op::SelectAndScatter(w) => self.window(w),
            Op::Scan(scan) => {
                self.list("dimensions", &[scan.dimension])?;
                self.flag("is_reverse", scan.is_reverse)?;
                if let Some(is_associative) = scan.is_associative {
                    self.value("is_associative", is_associative)?;
                }
                self.value("num_carries", scan.num_carries)
            }
            Op::Sort { dimension, is_stable } => {
                self.list("dimensions", &[*dimension])?;
                self.flag("is_stable", *is_stable)
            }
            Op::TopK { k, largest, is_stable } => {
                self.value("k", k)?;
                self.value("largest", largest)?;
                match is_stable {
                    Some(is_stable) => self.value("is_stable", is_stable),
                    None => Ok(()),
                }
            }
            Op::Dot(dot) | Op::ScaledDot(dot) => {
                self.dot_dimensions(&dot.dimensions)?;
                self.precision(&dot.precision)
            }
            Op::RaggedDot(dot) => {
                self.dot_dimensions(&dot.dimensions)?;
                self.optional_list("lhs_ragged_dims", &dot.lhs_ragged_dims)?;
                self.optional_list("rhs_group_dims", &dot.rhs_group_dims)?;
                self.precision(&dot.precision)
            }
            Op::Convolution(c) => {
                self.window(&c.window)?;
                self.dimension_labels(&c.dimensions)?;
                self.group_counts(Some(c.feature_group_count), Some(c.batch_group_count))?;
                if c.kind != Default::default() {
                    self.value("convolution_kind", c.kind)?;
                }
                self.precision(&c.precision)?;
                self.sparsity(&c.sparsity)
            }
            Op::Fft { kind, lengths } => {
                self.value("fft_type", kind)?;
                self.list("fft_length", lengths)
            }
            Op::TriangularSolve(t) => {
                self.flag("left_side", t.left_side)?;
                self.flag("lower", t.lower)?;
                self.flag("unit_diagonal", t.unit_diagonal)?;
                self.value("transpose_a", t.transpose_a)
            }
            Op::Cholesky { lower } => self.flag("lower", *lower),
            Op::BatchNormTraining { epsilon, feature_index }
            | Op::BatchNormInference { epsilon, feature_index }
            | Op::BatchNormGrad { epsilon, feature_index } => {
                self.name("epsilon")?;
                number(self.out, f64::from(*epsilon), 9)?;
                self.value("feature_index", feature_index)
            }
            Op::Rng { distribution } => self.value("distribution", distribution),
            Op::RngBitGenerator { algorithm } => self.value("algorithm", algorithm),
            Op::RngGetAndUpdateState { delta } => self.value("delta", delta),
            Op::GetTupleElement { index } => self.value("index", index),
            Op::Fusion(fusion) => {
                self.value("kind", fusion.kind)?;
                self.aliases(&fusion.output_operand_aliasing)
            }
            Op::CustomCall(call) => self.custom_call(call),
            Op::Domain(domain) => {
                self.name("domain")?;
                self.out.write_str("{kind=\"sharding\", entry=")?;
                sharding::sharding(&domain.entry, self.out)?;
                self.out.write_str(", exit=")?;
                sharding::sharding(&domain.exit, self.out)?;
                self.out.write_char('}')
            }
            Op::Infeed(feed) => self.bytes("infeed_config", &feed.config),
            Op::Outfeed(feed) => {
                if let Some(feed_shape) = &feed.shape {
                    self.name("outfeed_shape")?;
                    shape(feed_shape, Layouts::Print, self.out)?;
                }
                self.bytes("outfeed_config", &feed.config)
            }
            Op::Send(t) | Op::SendDone(t) | Op::Recv(t) | Op::RecvDone(t) => {
                if let Some(channel) = t.channel_id {
                    self.value("channel_id", channel)?;
                }
                self.flag("is_host_transfer", t.is_host_transfer)
            }
            Op::CopyStart { cross_program_prefetch_index: Some(index) } => {
                self.value("cross_program_prefetch_index", index)
            }
            Op::CollectivePermute(c) | Op::CollectivePermuteStart(c) => self.permute(c),
            Op::AllGatherDone(_) | Op::AllReduceDone(_) | Op::CollectivePermuteDone(_) => Ok(()),
            Op::AsyncStart(start) => {
                if !start.execution_thread.is_empty() {
                    self.bytes("async_execution_thread", start.execution_thread.as_bytes())?;
                }
                self.aliases(&start.output_operand_aliasing)?;
                match instruction.called.first().and_then(|&called| self.sugar.wrapped(called)) {
                    Some(wrapped) => {
                        let wrapped = &self.module.instructions[wrapped];
                        self.own(wrapped)?;
                        self.called(wrapped)
                    }
                    None => Ok(()),
                }
            }
            op => match op.collective() {
                Some(collective) => self.collective(collective),
                None => Ok(()),
            },
        }
    }

    /// The computations that are called.
    fn called(&mut self, instruction: &Instruction) -> fmt::Result {
        let called = instruction.called.as_slice();
        match (&instruction.op, called) {
            (_, []) => Ok(()),
            (Op::While, &[body, condition]) => {
                self.computation("condition", condition)?;
                self.computation("body", body)
            }
            (Op::SelectAndScatter(_), &[select, scatter]) => {
                self.computation("select", select)?;
                self.computation("scatter", scatter)
            }
            (Op::Conditional, branches) => {
                let index = self.module.shape(instruction.operands[0]).as_array();
                match branches {
                    &[on_true, on_false]
                        if index.is_some_and(|a| a.element_type == memplan_ir::ElementType::Pred) =>
                    {
                        self.computation("true_computation", on_true)?;
                        self.computation("false_computation", on_false)
                    }
                    _ => self.computations("branch_computations", branches),
                }
            }
            (Op::CustomCall(call), &[computation]) if call.uses_to_apply => {
                self.computation("to_apply", computation)
            }
            (Op::CustomCall(_), _) => self.computations("called_computations", called),
            (Op::Fusion(_), &[computation]) => self.computation("calls", computation),
            (Op::AsyncStart(_), &[computation]) => match self.sugar.wrapped(computation) {
                Some(_) => Ok(()),
                None => self.computation("calls", computation),
            },
            (Op::AsyncUpdate(_) | Op::AsyncDone(_), _) => Ok(()),
            (op, &[computation, ..]) => {
                self.computation("to_apply", computation)?;
                self.flag("is_composite", matches!(op, Op::Call { is_composite: true }))
            }
        }
    }

    fn computation(&mut self, name: &str, id: memplan_ir::ComputationId) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('%')?;
        self.out.write_str(&self.module.computations[id].name)
    }

    fn computations(&mut self, name: &str, ids: &[memplan_ir::ComputationId]) -> fmt::Result {
        self.name(name)?;
        self.out.write_char('{')?;
        let module = self.module;
        separated(self.out, ", ", ids, |out, &id| write!(out, "%{}", module.computations[id].name))?;
        self.out.write_char('}')
    }

    fn bytes(&mut self, name: &str, bytes: &[u8]) -> fmt::Result {
        if bytes.is_empty() {
            return Ok(());
        }
        self.name(name)?;
        quoted(self.out, bytes)
    }

    fn aliases(&mut self, aliases: &[OutputOperandAlias]) -> fmt::Result {
        if aliases.is_empty() {
            return Ok(());
        }
        self.name("output_to_operand_aliasing")?;
        self.out.write_char('{')?;
        separated(self.out, ", ", aliases, |out, alias| {
            write!(out, "{}: ({}, {})", alias.output_index, alias.operand, alias.operand_index)
        })?;
        self.out.write_char('}')
    }

    fn window(&mut self, window: &Window) -> fmt::Result {
        let dimensions = &window.dimensions;
        if dimensions.is_empty() {
            return Ok(());
        }
        self.name("window")?;
        self.out.write_str("{size=")?;
        separated(self.out, "x", dimensions, |out, d| write!(out, "{}", d.size))?;
        if dimensions.iter().any(|d| d.stride != 1) {
            self.out.write_str(" stride=")?;
            separated(self.out, "x", dimensions, |out, d| write!(out, "{}", d.stride))?;
        }
        if dimensions.iter().any(|d| d.padding_low != 0 || d.padding_high != 0) {
            self.out.write_str(" pad=")?;
            separated(self.out, "x", dimensions, |out, d| {
                write!(out, "{}_{}", d.padding_low, d.padding_high)
            })?;
        }
        if dimensions.iter().any(|d| d.base_dilation != 1) {
            self.out.write_str(" lhs_dilate=")?;
            separated(self.out, "x", dimensions, |out, d| write!(out, "{}", d.base_dilation))?;
        }
        if dimensions.iter().any(|d| d.window_dilation != 1) {
            self.out.write_str(" rhs_dilate=")?;
            separated(self.out, "x", dimensions, |out, d| write!(out, "{}", d.window_dilation))?;
        }
        if dimensions.iter().any(|d| d.window_reversal) {
            self.out.write_str(" rhs_reversal=")?;
            separated(self.out, "x", dimensions, |out, d| write!(out, "{}", u8::from(d.window_reversal)))?;
        }
        self.out.write_char('}')
    }

    fn dimension_labels(&mut self, d: &ConvolutionDimensions) -> fmt::Result {
        self.name("dim_labels")?;
        self.labels([(b'b', d.input_batch), (b'f', d.input_feature)], &d.input_spatial)?;
        self.out.write_char('_')?;
        self.labels([(b'i', d.kernel_input_feature), (b'o', d.kernel_output_feature)], &d.kernel_spatial)?;
        self.out.write_str("->")?;
        self.labels([(b'b', d.output_batch), (b'f', d.output_feature)], &d.output_spatial)
    }

    /// One letter or digit per dimension; `?` where a dimension has no meaning.
    fn labels(&mut self, letters: [(u8, i64); 2], spatial: &[i64]) -> fmt::Result {
        let rank = letters.iter().map(|&(_, d)| d).chain(spatial.iter().copied()).max().unwrap_or(-1) + 1;
        let mut text = vec![b'?'; usize::try_from(rank).unwrap_or(0)];
        let spatial = spatial.iter().enumerate().map(|(i, &d)| (b'0' + i as u8, d));
        for (label, dimension) in letters.into_iter().chain(spatial) {
            if let Some(place) = usize::try_from(dimension).ok().and_then(|d| text.get_mut(d)) {
                *place = label;
            }
        }
        text.iter().try_for_each(|&b| self.out.write_char(char::from(b)))
    }

    fn group_counts(&mut self, feature: Option<i64>, batch: Option<i64>) -> fmt::Result {
        if let Some(count) = feature.filter(|&count| count != 1) {
            self.value("feature_group_count", count)?;
        }
        if let Some(count) = batch.filter(|&count| count != 1) {
            self.value("batch_group_count", count)?;
        }
        Ok(())
    }

    fn dot_dimensions(&mut self, d: &DotDimensions) -> fmt::Result {
        self.optional_list("lhs_batch_dims", &d.lhs_batch)?;
        self.list("lhs_contracting_dims", &d.lhs_contracting)?;
        self.optional_list("rhs_batch_dims", &d.rhs_batch)?;
        self.list("rhs_contracting_dims", &d.rhs_contracting)
    }

    fn precision(&mut self, precision: &PrecisionConfig) -> fmt::Result {
        if precision.operand_precision.iter().any(|&p| p != Precision::Default) {
            self.name("operand_precision")?;
            self.out.write_char('{')?;
            separated(self.out, ",", &precision.operand_precision, |out, p| write!(out, "{p}"))?;
            self.out.write_char('}')?;
        }
        match precision.algorithm {
            PrecisionAlgorithm::Unset => Ok(()),
            algorithm => self.value("algorithm", algorithm),
        }
    }

    fn sparsity(&mut self, sides: &[Option<memplan_ir::TensorSparsity>; 2]) -> fmt::Result {
        if sides.iter().all(Option::is_none) {
            return Ok(());
        }
        self.name("sparsity_config")?;
        self.out.write_char('{')?;
        let sides = ["lhs", "rhs"].into_iter().zip(sides).filter_map(|(name, side)| Some((name, (*side)?)));
        separated(self.out, " ", sides, |out, (name, s)| {
            write!(
                out,
                "{name}={{sparsity={}x{} dimension={} stride={}}}",
                s.num_non_zero, s.block_size, s.dimension, s.stride
            )
        })?;
        self.out.write_char('}')
    }

    fn custom_call(&mut self, call: &CustomCall) -> fmt::Result {
        match &call.window {
            Some(window) if window.dimensions.is_empty() => self.value("window", "{}")?,
            Some(window) => self.window(window)?,
            None => {}
        }
        if let Some(dimensions) = &call.dimensions {
            self.dimension_labels(dimensions)?;
        }
        self.group_counts(call.feature_group_count, call.batch_group_count)?;
        self.precision(&call.precision)?;
        if let Some(padding_type) = call.padding_type {
            self.value("padding_type", padding_type)?;
        }
        self.name("custom_call_target")?;
        quoted(self.out, call.target.as_bytes())?;
        if let Some(shapes) = &call.operand_layout_constraints {
            self.name("operand_layout_constraints")?;
            self.out.write_char('{')?;
            separated(self.out, ", ", shapes, |out, s| shape(s, Layouts::Print, out))?;
            self.out.write_char('}')?;
        }
        self.flag("custom_call_has_side_effect", call.has_side_effect)?;
        if let Some(literal) = &call.literal {
            self.name("literal")?;
            shaped_literal(literal, self.out)?;
        }
        self.aliases(&call.output_operand_aliasing)?;
        if call.schedule != Default::default() {
            self.value("schedule", call.schedule)?;
        }
        if call.api_version != Default::default() {
            self.value("api_version", call.api_version)?;
        }
        Ok(())
    }

    fn collective(&mut self, c: &Collective) -> fmt::Result {
        if let Some(channel) = c.channel_id {
            self.value("channel_id", channel)?;
        }
        self.name("replica_groups")?;
        sharding::replica_groups(&c.replica_groups, self.out)?;
        self.flag("constrain_layout", c.constrain_layout)?;
        if let Some(mode) = c.mode {
            self.value("mode", mode)?;
        }
        self.flag("use_global_device_ids", c.use_global_device_ids)?;
        self.flag("has_dynamic_root", c.has_dynamic_root)?;
        match c.dimension {
            Some(dimension) => self.list("dimensions", &[dimension]),
            None => Ok(()),
        }
    }

    fn permute(&mut self, c: &Collective) -> fmt::Result {
        if let Some(channel) = c.channel_id {
            self.value("channel_id", channel)?;
        }
        self.name("source_target_pairs")?;
        self.out.write_char('{')?;
        separated(self.out, ",", &c.source_target_pairs, |out, (source, target)| {
            write!(out, "{{{source},{target}}}")
        })?;
        self.out.write_char('}')?;
        if !c.slice_sizes.is_empty() {
            self.name("slice_sizes")?;
            self.out.write_char('{')?;
            separated(self.out, ",", &c.slice_sizes, |out, sizes| {
                out.write_char('{')?;
                integers(out, sizes)?;
                out.write_char('}')
            })?;
            self.out.write_char('}')?;
        }
        if let Some(mode) = c.mode {
            self.value("mode", mode)?;
        }
        Ok(())
    }
}
