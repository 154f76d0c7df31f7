//! The index maps of each operation.

use smallvec::SmallVec;

use super::{IndexMap, Source, Sources, Strided};
use crate::{
    ArrayShape, Convolution, Dimensions, DotDimensions, DotOperand, GatherDimensions, InstructionId, Module,
    Op, PaddingDimension, ScatterDimensions, SliceDimension, Window, WindowDimension,
};

/// The index map of each operand of an instruction. `None` for an operand that is not an array, and for operations not
/// about elements: those that pass values on, run other computations, or communicate with devices and hosts.
///
/// Results of several arrays (sorts, reductions, scatters) are read for alike, element by element. The map of a scatter of
/// several arrays is that of the result with the operand's number. Extents of dynamic arrays are their bounds.
///
/// Linear in the number of dimensions.
pub fn operands_read(module: &Module, id: InstructionId) -> SmallVec<[Option<IndexMap>; 3]> {
    let instruction = &module.instructions[id];
    let operands: SmallVec<[Option<&ArrayShape>; 4]> =
        instruction.operands.iter().map(|&operand| module.shape(operand).as_array()).collect();
    let nothing = || operands.iter().map(|_| None).collect();
    let Some(result) = module.shape(id).first_array() else { return nothing() };
    let mut table = Table { result, operands: &operands, loops: result.dimensions.clone() };
    let Some(read) = table.of(&instruction.op) else { return nothing() };
    let loops = table.loops;
    let map = |(operand, read): (&Option<&ArrayShape>, Option<Read>)| {
        let (operand, read) = ((*operand)?, read?);
        Some(IndexMap {
            rank: result.rank(),
            loops: loops.clone(),
            extents: operand.dimensions.clone(),
            sources: read.sources,
            is_exact: read.is_exact && !operand.is_dynamic() && !result.is_dynamic(),
        })
    };
    operands.iter().zip(read).map(map).collect()
}

/// How one operand is read.
struct Read {
    sources: Sources,
    is_exact: bool,
}

/// How each operand is read.
type Reads = SmallVec<[Option<Read>; 3]>;

/// Exactly there.
fn exactly(sources: impl IntoIterator<Item = Source>) -> Option<Read> {
    Some(Read { sources: sources.into_iter().collect(), is_exact: true })
}

/// There, or at some of these places.
fn at_most(sources: impl IntoIterator<Item = Source>) -> Option<Read> {
    Some(Read { sources: sources.into_iter().collect(), is_exact: false })
}

struct Table<'a> {
    result: &'a ArrayShape,
    operands: &'a [Option<&'a ArrayShape>],
    /// The result's extents, and what loops of their own have been added.
    loops: Dimensions,
}

impl<'a> Table<'a> {
    /// The table. `None` for operations not about elements, and for operands that the operation does not accept.
    fn of(&mut self, op: &Op) -> Option<Reads> {
        Some(match op {
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Compare { .. }
            | Op::Select
            | Op::Clamp
            | Op::Convert
            | Op::StochasticConvert
            | Op::Copy
            | Op::ReducePrecision { .. }
            | Op::Map { .. } => self.each(|table, operand| match operand.rank() {
                0 => exactly([]),
                rank if rank == table.result.rank() => exactly(table.same()),
                _ => None,
            }),
            Op::BitcastConvert => self.each(Table::bits),
            Op::Iota { .. } => Reads::new(),
            Op::Rng { .. } => self.each(|_, _| exactly([])),

            Op::Broadcast { dimensions } => {
                let is_spread = |(e, &d): (usize, &i64)| match self.extent(0, e) == self.loops.get(d as usize).copied() {
                    true => Source::Dim(d as usize),
                    false => Source::Any,
                };
                [exactly(dimensions.iter().enumerate().map(is_spread))].into_iter().collect()
            }
            Op::Reshape { .. } => [exactly(regrouped(self.result, self.array(0)?))].into_iter().collect(),
            Op::Transpose { dimensions } => {
                let mut sources = Sources::from_elem(Source::Any, dimensions.len());
                dimensions.iter().enumerate().for_each(|(d, &e)| sources[e as usize] = Source::Dim(d));
                [exactly(sources)].into_iter().collect()
            }
            Op::Reverse { dimensions } => {
                let source = |d: usize| match dimensions.contains(&(d as i64)) {
                    true => strided(d, self.loops[d] - 1, -1, 1),
                    false => Source::Dim(d),
                };
                [exactly((0..self.result.rank()).map(source))].into_iter().collect()
            }
            Op::Slice { dimensions } => {
                let source = |(d, slice): (usize, &SliceDimension)| strided(d, slice.start, slice.stride, 1);
                [exactly(dimensions.iter().enumerate().map(source))].into_iter().collect()
            }
            Op::Pad { dimensions } => {
                let source = |(d, padding): (usize, &PaddingDimension)| {
                    strided(d, -padding.low, 1, padding.interior + 1)
                };
                [exactly(dimensions.iter().enumerate().map(source)), exactly([])].into_iter().collect()
            }
            Op::Concatenate { dimension } => self.concatenated(*dimension as usize),
            Op::DynamicSlice { .. } => self.first(1, |table, operand| at_most(table.shifted(operand))),
            Op::DynamicUpdateSlice => self.first(2, |table, operand| at_most(table.shifted(operand))),
            Op::Gather(gather) => self.gather(gather)?,
            Op::Scatter(scatter) => self.scatter(scatter)?,

            Op::Reduce { dimensions } => self.reduce(dimensions)?,
            Op::ReduceWindow(window) => self.reduce_window(window)?,
            Op::SelectAndScatter(window) => {
                let source = |(d, window): (usize, &WindowDimension)| match window.is_still() {
                    true => Source::Dim(d),
                    false => Source::Any,
                };
                let sources: Sources = window.dimensions.iter().enumerate().map(source).collect();
                [at_most(sources.clone()), at_most(sources), exactly([])].into_iter().collect()
            }
            Op::Sort { dimension, .. } => self.mixing(*dimension as usize..*dimension as usize + 1),
            Op::TopK { .. } => self.mixing(self.result.rank().checked_sub(1)?..self.result.rank()),
            Op::Fft { lengths, .. } => {
                self.mixing(self.result.rank().checked_sub(lengths.len())?..self.result.rank())
            }
            Op::Cholesky { .. } | Op::TriangularSolve(_) => {
                self.mixing(self.result.rank().checked_sub(2)?..self.result.rank())
            }
            Op::CustomCall(call) => self.problems(call.problem_rank()?)?,
            Op::Dot(dot) => self.dot(&dot.dimensions)?,
            Op::ScaledDot(dot) => {
                let mut reads = self.dot(&dot.dimensions)?;
                reads.extend([None, None]);
                reads
            }
            Op::Convolution(convolution) => self.convolution(convolution)?,

            // Groups of unequal size, results that see all elements of a prefix or of a feature.
            Op::RaggedDot(_)
            | Op::Scan(_)
            | Op::BatchNormTraining { .. }
            | Op::BatchNormInference { .. }
            | Op::BatchNormGrad { .. }
            // A layout or extents that only a run knows decide.
            | Op::Bitcast
            | Op::DynamicReshape
            | Op::GetDimensionSize { .. }
            | Op::SetDimensionSize { .. }
            // Numbers that come in an order.
            | Op::RngBitGenerator { .. }
            | Op::RngGetAndUpdateState { .. }
            // Operations that name, pass on or delegate values.
            | Op::Parameter { .. }
            | Op::Constant(_)
            | Op::Tuple
            | Op::GetTupleElement { .. }
            | Op::AddDependency
            | Op::AfterAll
            | Op::OptimizationBarrier
            | Op::Domain(_)
            | Op::ReplicaId
            | Op::PartitionId
            | Op::While
            | Op::Conditional
            | Op::Call { .. }
            | Op::Fusion(_)
            // Memory, devices and hosts.
            | Op::CopyStart { .. }
            | Op::CopyDone
            | Op::AsyncStart(_)
            | Op::AsyncUpdate(_)
            | Op::AsyncDone(_)
            | Op::Infeed(_)
            | Op::Outfeed(_)
            | Op::Send(_)
            | Op::SendDone(_)
            | Op::Recv(_)
            | Op::RecvDone(_)
            | Op::AllGather(_)
            | Op::AllGatherStart(_)
            | Op::AllGatherDone(_)
            | Op::AllReduce(_)
            | Op::AllReduceStart(_)
            | Op::AllReduceDone(_)
            | Op::ReduceScatter(_)
            | Op::AllToAll(_)
            | Op::RaggedAllToAll(_)
            | Op::CollectiveBroadcast(_)
            | Op::CollectivePermute(_)
            | Op::CollectivePermuteStart(_)
            | Op::CollectivePermuteDone(_) => return None,
        })
    }

    // -- What rows of the table are made of.

    fn array(&self, operand: usize) -> Option<&'a ArrayShape> {
        self.operands.get(operand).copied().flatten()
    }

    fn extent(&self, operand: usize, dimension: usize) -> Option<i64> {
        self.array(operand)?.dimensions.get(dimension).copied()
    }

    /// A loop that the result does not have.
    fn add_loop(&mut self, extent: i64) -> usize {
        self.loops.push(extent);
        self.loops.len() - 1
    }

    /// The index of the result.
    fn same(&self) -> Sources {
        (0..self.result.rank()).map(Source::Dim).collect()
    }

    /// The first operands by a rule, of the others all that there is of them: they are scalars.
    fn first(&self, n: usize, rule: impl Fn(&Self, &ArrayShape) -> Option<Read>) -> Reads {
        let read = |(k, operand): (usize, &Option<&ArrayShape>)| match operand {
            Some(operand) if k < n => rule(self, operand),
            Some(operand) => exactly(operand.dimensions.iter().map(|_| Source::Any)),
            None => None,
        };
        self.operands.iter().enumerate().map(read).collect()
    }

    /// Each operand by a rule.
    fn each(&self, rule: impl Fn(&Self, &ArrayShape) -> Option<Read>) -> Reads {
        self.first(self.operands.len(), rule)
    }

    /// Bits under another type: where that has another width, the last dimension holds the parts of an element.
    fn bits(&self, operand: &ArrayShape) -> Option<Read> {
        let rank = self.result.rank();
        match operand.rank() {
            n if n == rank => exactly(self.same()),
            n if n + 1 == rank => exactly((0..n).map(Source::Dim)),
            _ => exactly((0..rank).map(Source::Dim).chain([Source::Any])),
        }
    }

    /// In each dimension at the same index if the arrays are equally long, else from a place on that data decide.
    fn shifted(&self, operand: &ArrayShape) -> Sources {
        let source = |d: usize| match operand.dimensions.get(d) == self.result.dimensions.get(d) {
            true => Source::Dim(d),
            false => Source::Shifted(d),
        };
        (0..operand.rank()).map(source).collect()
    }

    fn concatenated(&self, dimension: usize) -> Reads {
        let mut start = 0;
        let mut reads = Reads::new();
        for operand in self.operands {
            reads.push(operand.and_then(|operand| {
                let mut sources: Sources = (0..operand.rank()).map(Source::Dim).collect();
                *sources.get_mut(dimension)? = strided(dimension, -start, 1, 1);
                start += operand.dimensions[dimension];
                exactly(sources)
            }));
        }
        reads
    }

    /// Operands of which an element of the result needs everything along some dimensions, and may be anywhere in them.
    fn mixing(&mut self, mixed: std::ops::Range<usize>) -> Reads {
        self.each(|_, operand| {
            let source = |d: usize| if mixed.contains(&d) { Source::Any } else { Source::Dim(d) };
            at_most((0..operand.rank()).map(source))
        })
    }

    /// A batch of problems of a rank, the same number in each operand: a result needs all of its own problem.
    fn problems(&mut self, rank: usize) -> Option<Reads> {
        let batch = self.result.rank().checked_sub(rank)?;
        let is_batch = |operand: &Option<&ArrayShape>| {
            operand.is_some_and(|array| array.dimensions.get(..batch) == self.result.dimensions.get(..batch))
        };
        self.operands.iter().all(is_batch).then(|| self.mixing(batch..usize::MAX))
    }

    // -- Gathers and scatters.

    fn gather(&self, gather: &GatherDimensions) -> Option<Reads> {
        let (operand, indices) = (self.array(0)?, self.array(1)?);
        let result_batch: SmallVec<[usize; 6]> =
            (0..self.result.rank()).filter(|d| !gather.offset_dims.contains(&(*d as i64))).collect();
        let of_indices = batches(indices.rank(), gather.index_vector_dim, &result_batch);
        let mut offsets = gather.offset_dims.iter();
        let mut sources = Sources::new();
        for e in 0..operand.rank() {
            let number = e as i64;
            if let Some(i) = gather.operand_batching_dims.iter().position(|&d| d == number) {
                let batch = *gather.start_indices_batching_dims.get(i)? as usize;
                sources.push(of_indices.get(batch)?.clone());
            } else if gather.collapsed_slice_dims.contains(&number) {
                sources.push(Source::Any);
            } else {
                let d = *offsets.next()? as usize;
                let is_fixed = gather.slice_sizes.get(e) == operand.dimensions.get(e)
                    || !gather.start_index_map.contains(&number);
                sources.push(if is_fixed { Source::Dim(d) } else { Source::Shifted(d) });
            }
        }
        Some([at_most(sources), exactly(of_indices)].into_iter().collect())
    }

    /// The result is read for like the first arrays, which it updates. Which update goes where, data decide: there is a loop for
    /// each dimension of updates that are not of a window.
    fn scatter(&mut self, scatter: &ScatterDimensions) -> Option<Reads> {
        let n = (self.operands.len() - 1) / 2;
        let (indices, update) = (self.array(n)?, self.array(n + 1)?);
        let mut of_indices = Sources::from_elem(Source::Any, indices.rank());
        let mut of_update = Sources::from_elem(Source::Any, update.rank());
        let batch = (0..update.rank()).filter(|&u| !scatter.update_window_dims.contains(&(u as i64)));
        for (u, i) in batch.zip((0..indices.rank() as i64).filter(|&i| i != scatter.index_vector_dim)) {
            let goes_with = scatter.scatter_indices_batching_dims.iter().position(|&batching| batching == i);
            let number = match goes_with {
                Some(batching) => *scatter.input_batching_dims.get(batching)? as usize,
                None => self.add_loop(update.dimensions[u]),
            };
            (of_update[u], of_indices[i as usize]) = (Source::Dim(number), Source::Dim(number));
        }
        let is_in_window =
            |d: &i64| !scatter.inserted_window_dims.contains(d) && !scatter.input_batching_dims.contains(d);
        let window = (0..self.result.rank() as i64).filter(is_in_window);
        for (d, &u) in window.zip(&scatter.update_window_dims) {
            let (d, u) = (d as usize, u as usize);
            let is_whole = self.extent(n + 1, u)? == self.loops[d];
            of_update[u] = if is_whole { Source::Dim(d) } else { Source::Shifted(d) };
        }
        let read = |k: usize| match k {
            k if k < n => at_most(self.same()),
            k if k == n => at_most(of_indices.clone()),
            _ => at_most(of_update.clone()),
        };
        Some((0..self.operands.len()).map(read).collect())
    }

    // -- Sums and products.

    fn reduce(&mut self, dimensions: &[i64]) -> Option<Reads> {
        let array = self.array(0)?;
        let (mut sources, mut kept) = (Sources::new(), 0);
        for (e, &extent) in array.dimensions.iter().enumerate() {
            sources.push(Source::Dim(match dimensions.contains(&(e as i64)) {
                true => self.add_loop(extent),
                false => {
                    kept += 1;
                    kept - 1
                }
            }));
        }
        Some(self.first(self.operands.len() / 2, |_, _| exactly(sources.clone())))
    }

    fn reduce_window(&mut self, window: &Window) -> Option<Reads> {
        let mut sources = Sources::new();
        for (d, &dimension) in window.dimensions.iter().enumerate() {
            sources.push(self.window(d, dimension));
        }
        Some(self.first(self.operands.len() / 2, |_, _| exactly(sources.clone())))
    }

    /// The elements that a window at position `d` of the result covers.
    fn window(&mut self, d: usize, window: WindowDimension) -> Source {
        match window.is_still() {
            true => Source::Dim(d),
            false => Source::Window { dim: d, within: self.add_loop(window.size), window },
        }
    }

    /// Batch dimensions come first, then the remaining ones of the left operand, then of the right one.
    fn dot(&mut self, numbers: &DotDimensions) -> Option<Reads> {
        let [lhs, rhs] = [self.array(0)?, self.array(1)?];
        let contracted: SmallVec<[usize; 4]> =
            numbers.lhs_contracting.iter().map(|&d| self.add_loop(lhs.dimensions[d as usize])).collect();
        let mut next = numbers.lhs_batch.len();
        let reads = [(DotOperand::Lhs, lhs), (DotOperand::Rhs, rhs)].map(|(side, operand)| {
            let mut sources = Sources::from_elem(Source::Any, operand.rank());
            let batch = numbers.batch(side).iter().copied().zip(0..);
            let contracting = numbers.contracting(side).iter().copied().zip(contracted.iter().copied());
            let free = numbers.free(side, operand.rank());
            let first = next;
            next += free.len();
            for (e, number) in batch.chain(contracting).chain(free.into_iter().zip(first..)) {
                *sources.get_mut(e as usize)? = Source::Dim(number);
            }
            exactly(sources)
        });
        Some(reads.into_iter().collect())
    }

    fn convolution(&mut self, convolution: &Convolution) -> Option<Reads> {
        let Convolution { window, dimensions: labels, .. } = convolution;
        let [input, kernel] = [self.array(0)?, self.array(1)?];
        let mut of_input = Sources::from_elem(Source::Any, input.rank());
        let mut of_kernel = Sources::from_elem(Source::Any, kernel.rank());
        if convolution.batch_group_count == 1 {
            of_input[labels.input_batch as usize] = Source::Dim(labels.output_batch as usize);
        }
        of_kernel[labels.kernel_output_feature as usize] = Source::Dim(labels.output_feature as usize);
        let n_features = kernel.dimensions[labels.kernel_input_feature as usize];
        let feature = Source::Dim(self.add_loop(n_features));
        of_kernel[labels.kernel_input_feature as usize] = feature.clone();
        if convolution.feature_group_count == 1 {
            of_input[labels.input_feature as usize] = feature;
        }
        for (i, &window) in window.dimensions.iter().enumerate() {
            let (place, k) = (labels.output_spatial[i] as usize, labels.kernel_spatial[i] as usize);
            let within = self.add_loop(window.size);
            of_kernel[k] = match window.window_reversal {
                true => strided(within, window.size - 1, -1, 1),
                false => Source::Dim(within),
            };
            of_input[labels.input_spatial[i] as usize] = match window.is_still() {
                true => Source::Dim(place),
                false => Source::Window { dim: place, within, window },
            };
        }
        // A sparse operand is stored in fewer elements.
        let is_dense = convolution.sparsity.iter().all(Option::is_none);
        let is_one_group = convolution.feature_group_count == 1 && convolution.batch_group_count == 1;
        let read = |sources| if is_one_group { exactly(sources) } else { at_most(sources) };
        is_dense.then(|| [read(of_input), read(of_kernel)].into_iter().collect())
    }
}

/// `(start + stride * index) / dilation`, in its plainest form.
fn strided(dim: usize, start: i64, stride: i64, dilation: i64) -> Source {
    match (start, stride, dilation) {
        (0, 1, 1) => Source::Dim(dim),
        _ => Source::Strided(Strided { dim, start, stride, dilation }),
    }
}

/// The positions of the dimensions of an index array in the gathered result: the dimensions without the index vector,
/// in order.
fn batches(rank: usize, vector: i64, of_result: &[usize]) -> Sources {
    let mut of_result = of_result.iter();
    let source = |e: usize| match e as i64 == vector {
        true => Source::Any,
        false => of_result.next().map_or(Source::Any, |&d| Source::Dim(d)),
    };
    (0..rank).map(source).collect()
}

/// Arrays of the same elements in row-major order: dimensions are alike, or several of one are as many elements as several
/// of the other, and then each is a digit.
fn regrouped(result: &ArrayShape, operand: &ArrayShape) -> Sources {
    groups(&result.dimensions, &operand.dimensions)
        .unwrap_or_else(|| Sources::from_elem(Source::Any, operand.rank()))
}

/// `None` where there are no elements, or their number is not known.
fn groups(from: &[i64], to: &[i64]) -> Option<Sources> {
    let long = |extents: &[i64]| -> SmallVec<[usize; 6]> {
        (0..extents.len()).filter(|&d| extents[d] != 1).collect()
    };
    let (of_result, of_operand) = (long(from), long(to));
    // The only element is at index zero.
    let mut sources = Sources::from_elem(Source::Block { dims: 0..0, below: 1, count: 1 }, to.len());
    let (mut d, mut e) = (0, 0);
    while d < of_result.len() || e < of_operand.len() {
        let (first_d, first_e) = (d, e);
        let (mut n, mut m) = (1i64, 1i64);
        while d == first_d || e == first_e || n != m {
            let (product, extents, long, next) = match n <= m {
                true => (&mut n, from, &of_result, &mut d),
                false => (&mut m, to, &of_operand, &mut e),
            };
            *product = product.checked_mul(extents[*long.get(*next)?]).filter(|&product| product > 0)?;
            *next += 1;
        }
        let dims = of_result[first_d]..of_result[d - 1] + 1;
        let group = &of_operand[first_e..e];
        if d - first_d == 1 && group.len() == 1 {
            sources[group[0]] = Source::Dim(dims.start);
            continue;
        }
        let mut below = 1;
        for &dimension in group.iter().rev() {
            let count = to[dimension];
            sources[dimension] = Source::Block { dims: dims.clone(), below, count };
            below *= count;
        }
    }
    Some(sources)
}
