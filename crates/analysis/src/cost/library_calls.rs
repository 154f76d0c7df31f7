//! Library calls: custom calls that are products, convolutions, sorts or factorizations.
//!
//! Recognizes the targets and notes that XLA's compilers and JAX write. An unknown call, or one with unknown notes,
//! costs as much as an elementwise operation.

use memplan_ir::{
    ArrayShape, Convolution, CustomCall, DotDimensions, ElementType, InstructionId, Module, Op, Shape,
};
use serde_json::Value;

use super::operations::{elements, extent};

/// The computation of a custom call.
pub(super) enum LibraryCall<'m> {
    /// A matrix product.
    Dot(Box<DotDimensions>, [&'m ArrayShape; 2]),
    /// A convolution: of a base with a kernel to a result.
    Convolution(Box<Convolution>, [&'m ArrayShape; 3]),
    /// Products that are not one alone: the number of their operations.
    Products(f64),
    /// Arithmetic of the vector units.
    Vector(f64),
}

/// The computation of a custom call, if its library is known.
pub(super) fn library_call(module: &Module, id: InstructionId) -> Option<LibraryCall<'_>> {
    let instruction = &module.instructions[id];
    let Op::CustomCall(call) = &instruction.op else { return None };
    let arrays = Arrays { module, id };
    let notes = || serde_json::from_slice::<Value>(instruction.backend_config.as_deref()?).ok();
    match &*call.target {
        "__cublas$gemm"
        | "__cublas$lt$matmul"
        | "__cublas$lt$matmul$f8"
        | "__cublas$lt$matmul$mx"
        | "__cublas$lt$groupedMatmul" => {
            let dimensions = dot_dimensions(notes()?.pointer("/gemm_backend_config/dot_dimension_numbers")?);
            Some(LibraryCall::Dot(Box::new(dimensions), [arrays.operand(0)?, arrays.operand(1)?]))
        }
        "__onednn$matmul" => {
            let (lhs, rhs) = (arrays.operand(0)?, arrays.operand(1)?);
            let dimensions = matmul_dimensions(notes()?.get("onednn_matmul_config")?, lhs, rhs)?;
            Some(LibraryCall::Dot(Box::new(dimensions), [lhs, rhs]))
        }
        // The window is always that of the convolution forward, whichever of its three arrays is the result.
        "__cudnn$convForward" | "__cudnn$convBiasActivationForward" | "__cudnn$convForwardGraph" => {
            convolution(call, [arrays.operand(0)?, arrays.operand(1)?, arrays.result()?])
        }
        "__cudnn$convBackwardInput" => {
            convolution(call, [arrays.result()?, arrays.operand(1)?, arrays.operand(0)?])
        }
        "__cudnn$convBackwardFilter" => {
            convolution(call, [arrays.operand(0)?, arrays.result()?, arrays.operand(1)?])
        }
        target if target.starts_with("__cudnn$fmha") => attention(target, &notes()?, &arrays),
        "TopK" | "__gpu$TopK" => Some(LibraryCall::Vector(elements(arrays.operand(0)))),
        target
            if target.starts_with("__cub$DeviceRadixSort") || target.starts_with("xla.gpu.ext.cub_sort") =>
        {
            Some(LibraryCall::Vector(sort(&arrays)?))
        }
        // Hand-written kernels declare their costs.
        "tpu_custom_call" | "__gpu$xla.gpu.triton" | "mosaic_gpu" | "mosaic_gpu_v2" => {
            let notes = notes()?;
            Some(LibraryCall::Products(number(notes.pointer("/custom_call_config/cost_estimate/flops")?)?))
        }
        target => factorization(target, &arrays).map(LibraryCall::Vector),
    }
}

/// Whether a result of a call, other than the first, is the working memory of NVIDIA's libraries: a row of bytes.
pub(super) fn is_workspace(module: &Module, id: InstructionId, result: &Shape) -> bool {
    let Op::CustomCall(call) = &module.instructions[id].op else { return false };
    let is_row_of_bytes = |array: &ArrayShape| {
        array.rank() == 1 && matches!(array.element_type, ElementType::U8 | ElementType::S8)
    };
    call.target.starts_with("__cu") && result.as_array().is_some_and(is_row_of_bytes)
}

/// The arrays that a call reads and writes.
struct Arrays<'m> {
    module: &'m Module,
    id: InstructionId,
}

impl<'m> Arrays<'m> {
    fn operand(&self, i: usize) -> Option<&'m ArrayShape> {
        self.module.shape(*self.module.instructions[self.id].operands.get(i)?).as_array()
    }

    /// The first result; others are workspace.
    fn result(&self) -> Option<&'m ArrayShape> {
        self.module.shape(self.id).first_array()
    }
}

fn convolution<'m>(call: &CustomCall, arrays: [&'m ArrayShape; 3]) -> Option<LibraryCall<'m>> {
    let convolution = Convolution {
        window: call.window.clone()?,
        dimensions: call.dimensions.clone()?,
        feature_group_count: call.feature_group_count.unwrap_or(1),
        batch_group_count: call.batch_group_count.unwrap_or(1),
        kind: Default::default(),
        precision: Default::default(),
        sparsity: Default::default(),
    };
    Some(LibraryCall::Convolution(Box::new(convolution), arrays))
}

/// Attention: scores of every query with every key, and sums of values; backward, the scores again and four gradients.
fn attention<'m>(target: &str, notes: &Value, arrays: &Arrays<'m>) -> Option<LibraryCall<'m>> {
    let config = notes.get("cudnn_fmha_backend_config")?;
    // Backward, gradients of the result meet values as queries meet keys, and have the same shapes.
    let (products, scores) = match target.contains("Backward") {
        false => (2.0, "/bmm1_dot_dimension_numbers"),
        true => (5.0, "/bmm2_grad_gemm2_dot_dimension_numbers"),
    };
    let dimensions = dot_dimensions(config.pointer(scores)?);
    // Several heads of queries may share the keys of one.
    let keys = arrays.operand(1);
    let in_common = dimensions.rhs_batch.iter().chain(&dimensions.rhs_contracting).map(|&d| extent(keys, d));
    let n_keys = elements(keys) / in_common.product::<f64>().max(1.0);
    // Half of the scores are unused if no query sees a later key.
    let seen = if config["mask_type"] == "CAUSAL" { 0.5 } else { 1.0 };
    Some(LibraryCall::Products(2.0 * products * seen * elements(arrays.operand(0)) * n_keys))
}

/// Comparisons of a sort along the last dimension, for each of the arrays that move.
fn sort(arrays: &Arrays<'_>) -> Option<f64> {
    let keys = arrays.operand(0)?;
    let length = keys.dimensions.last().map_or(1.0, |&n| n.max(2) as f64);
    let n_arrays = arrays.module.instructions[arrays.id].operands.len();
    Some(elements(Some(keys)) * length.log2() * n_arrays as f64)
}

/// A number of operations, by two extents.
type Operations = fn(f64, f64) -> f64;

/// Operations of LAPACK's routines on an m × n matrix of which n is the shorter side, by the name that follows the type
/// (LAPACK working note 41; Golub and Van Loan, Matrix Computations), with vectors where there are some.
const ROUTINES: [(&[&str], Operations); 9] = [
    (&["potrf", "cholesky"], |_, n| n * n * n / 3.0),
    (&["getrf", "ludecomposition"], |m, n| m * n * n - n * n * n / 3.0),
    (&["geqrf", "geqp3", "orgqr", "ungqr", "qrdecomposition", "qr"], |m, n| {
        2.0 * m * n * n - 2.0 / 3.0 * n * n * n
    }),
    (&["ormqr", "unmqr"], |m, n| 4.0 * m * n * n - 2.0 * n * n * n),
    (&["syevd", "heevd", "syev", "eigh"], |_, n| 9.0 * n * n * n),
    (&["sytrd", "hetrd"], |_, n| 4.0 / 3.0 * n * n * n),
    (&["gehrd"], |_, n| 10.0 / 3.0 * n * n * n),
    (&["gesvd", "gesdd", "gesvdj", "gesvdp"], |m, n| 4.0 * m * m * n + 8.0 * m * n * n + 9.0 * n * n * n),
    (&["geev", "gees"], |_, n| 25.0 * n * n * n),
];

/// Operations of a factorization by its routine: `lapack_sgetrf_ffi`, `cusolver_getrf_ffi`, `__cusolver$cholesky`.
fn factorization(target: &str, arrays: &Arrays<'_>) -> Option<f64> {
    let name = target.to_ascii_lowercase();
    let name = name.strip_suffix("_ffi").unwrap_or(&name);
    let is_lapack = name.starts_with("lapack_");
    let name = name.rsplit(['_', '$']).next()?;
    // LAPACK's names begin with the type.
    let name = if is_lapack { name.get(1..)? } else { name };
    let (_, operations) = ROUTINES.iter().find(|(names, _)| names.contains(&name))?;
    let matrix = arrays.operand(0)?;
    let [.., rows, columns] = matrix.dimensions.as_slice() else { return None };
    let (rows, columns) = (rows.max(&0).to_owned() as f64, columns.max(&0).to_owned() as f64);
    let (long, short) = (rows.max(columns), rows.min(columns));
    let batch = elements(Some(matrix)) / (long * short).max(1.0);
    Some(batch * operations(long, short))
}

/// Dimensions as XLA writes them into notes: lists of numbers, each a text or a number.
fn dot_dimensions(numbers: &Value) -> DotDimensions {
    let list = |key: &str| {
        let list = numbers.get(key).and_then(Value::as_array).into_iter().flatten();
        list.filter_map(number).map(|d| d as i64).collect()
    };
    DotDimensions {
        lhs_contracting: list("lhs_contracting_dimensions"),
        rhs_contracting: list("rhs_contracting_dimensions"),
        lhs_batch: list("lhs_batch_dimensions"),
        rhs_batch: list("rhs_batch_dimensions"),
    }
}

/// oneDNN multiplies the last two dimensions, either of which may be transposed.
fn matmul_dimensions(config: &Value, lhs: &ArrayShape, rhs: &ArrayShape) -> Option<DotDimensions> {
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let batch = i64::try_from(lhs.rank().min(rhs.rank())).ok()?.checked_sub(2).filter(|&n| n >= 0)?;
    let (l, r) = (lhs.rank() as i64, rhs.rank() as i64);
    let lhs = if flag("transpose_a") { l - 2 } else { l - 1 };
    let rhs = if flag("transpose_b") { r - 1 } else { r - 2 };
    Some(DotDimensions::new([lhs], [rhs]).with_batch(0..batch, 0..batch))
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}
