//! What a plan needs to know of a model: tensors with sizes, and when each is needed.

use crate::flatbuffer::Table;
use crate::{TfliteError, is_model};

/// A model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The subgraphs; the first is run, the others are branches and loops of its operators.
    pub subgraphs: Vec<Subgraph>,
}

/// A part of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subgraph {
    /// Its name.
    pub name: String,
    /// Its tensors, in the model's numbering.
    pub tensors: Vec<Tensor>,
    /// The number of its operators.
    pub n_operators: usize,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Its bytes; `None` where they are known only at run time.
    pub size: Option<u64>,
    /// When it is needed; `None` for constants, variables, and tensors that nothing writes.
    pub lifetime: Option<Lifetime>,
}

/// When a tensor is needed. Time 0 is before the first operator, which runs at 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The time at which it is written.
    pub first: usize,
    /// The last time at which it is needed.
    pub last: usize,
}

/// The fields of tables, by number.
pub(crate) mod field {
    pub(crate) const MODEL_SUBGRAPHS: usize = 2;
    pub(crate) const MODEL_BUFFERS: usize = 4;
    pub(crate) const MODEL_METADATA: usize = 6;
    pub(crate) const BUFFER_DATA: usize = 0;
    pub(crate) const BUFFER_OFFSET: usize = 1;
    pub(crate) const METADATA_NAME: usize = 0;
    pub(crate) const METADATA_BUFFER: usize = 1;
    pub(super) const SUBGRAPH_TENSORS: usize = 0;
    pub(super) const SUBGRAPH_INPUTS: usize = 1;
    pub(super) const SUBGRAPH_OUTPUTS: usize = 2;
    pub(super) const SUBGRAPH_OPERATORS: usize = 3;
    pub(super) const SUBGRAPH_NAME: usize = 4;
    pub(super) const TENSOR_SHAPE: usize = 0;
    pub(super) const TENSOR_TYPE: usize = 1;
    pub(super) const TENSOR_BUFFER: usize = 2;
    pub(super) const TENSOR_NAME: usize = 3;
    pub(super) const TENSOR_IS_VARIABLE: usize = 5;
    pub(super) const OPERATOR_INPUTS: usize = 1;
    pub(super) const OPERATOR_OUTPUTS: usize = 2;
    pub(super) const OPERATOR_INTERMEDIATES: usize = 8;
}

/// Reads a model.
///
/// # Errors
/// The bytes are no model, or a damaged one.
pub fn read(bytes: &[u8]) -> Result<Model, TfliteError> {
    if !is_model(bytes) {
        return Err(TfliteError::NotAModel);
    }
    let model = Table::root(bytes)?;
    let buffers = model.tables(field::MODEL_BUFFERS, "the buffers")?;
    let has_data = |buffer: &Table<'_>| {
        let (_, count) = buffer.vector(field::BUFFER_DATA, 1, "a buffer")?;
        let offset = buffer.number::<8>(field::BUFFER_OFFSET, "a buffer")?;
        Ok(count > 0 || offset > 1)
    };
    let constant = buffers.iter().map(has_data).collect::<Result<Vec<bool>, TfliteError>>()?;
    let subgraphs = model.tables(field::MODEL_SUBGRAPHS, "the subgraphs")?;
    let subgraphs = subgraphs.into_iter().map(|subgraph| read_subgraph(subgraph, &constant));
    Ok(Model { subgraphs: subgraphs.collect::<Result<_, _>>()? })
}

fn read_subgraph(subgraph: Table<'_>, constant: &[bool]) -> Result<Subgraph, TfliteError> {
    let tables = subgraph.tables(field::SUBGRAPH_TENSORS, "the tensors")?;
    let (mut tensors, mut is_placed) = (Vec::new(), Vec::new());
    for tensor in tables {
        let buffer = tensor.number::<4>(field::TENSOR_BUFFER, "a tensor")? as usize;
        let is_variable = tensor.number::<1>(field::TENSOR_IS_VARIABLE, "a tensor")? != 0;
        is_placed.push(!is_variable && !constant.get(buffer).copied().unwrap_or(false));
        let name = tensor.text(field::TENSOR_NAME, "the name of a tensor")?;
        tensors.push(Tensor { name, size: size(tensor)?, lifetime: None });
    }
    let operators = subgraph.tables(field::SUBGRAPH_OPERATORS, "the operators")?;
    let n_operators = operators.len();
    for input in subgraph.integers(field::SUBGRAPH_INPUTS, "the inputs")? {
        if let Some(tensor) = place(&mut tensors, &is_placed, input)? {
            tensor.lifetime.get_or_insert(Lifetime { first: 0, last: 0 });
        }
    }
    for (operator, time) in operators.iter().zip(1..) {
        for index in [field::OPERATOR_OUTPUTS, field::OPERATOR_INTERMEDIATES] {
            for output in operator.integers(index, "an operator")? {
                let Some(tensor) = place(&mut tensors, &is_placed, output)? else { continue };
                tensor.lifetime.get_or_insert(Lifetime { first: time, last: time }).last = time;
            }
        }
        for input in operator.integers(field::OPERATOR_INPUTS, "an operator")? {
            read_at(&mut tensors, &is_placed, input, time)?;
        }
    }
    for output in subgraph.integers(field::SUBGRAPH_OUTPUTS, "the outputs")? {
        read_at(&mut tensors, &is_placed, output, n_operators + 1)?;
    }
    let name = subgraph.text(field::SUBGRAPH_NAME, "the name of a subgraph")?;
    Ok(Subgraph { name, tensors, n_operators })
}

/// A tensor that the arena holds; `None` for others, and for -1, which is an input that is left out.
fn place<'t>(
    tensors: &'t mut [Tensor],
    is_placed: &[bool],
    number: i32,
) -> Result<Option<&'t mut Tensor>, TfliteError> {
    let Ok(number) = usize::try_from(number) else { return Ok(None) };
    match is_placed.get(number) {
        None => Err(TfliteError::Damaged("a tensor of an operator")),
        Some(false) => Ok(None),
        Some(true) => Ok(Some(&mut tensors[number])),
    }
}

fn read_at(tensors: &mut [Tensor], is_placed: &[bool], number: i32, time: usize) -> Result<(), TfliteError> {
    let Some(tensor) = place(tensors, is_placed, number)? else { return Ok(()) };
    match &mut tensor.lifetime {
        Some(lifetime) => lifetime.last = lifetime.last.max(time),
        None => {
            let (number, name) = (usize::try_from(number).unwrap_or(0), tensor.name.clone());
            return Err(TfliteError::Unwritten { number, name, operator: time - 1 });
        }
    }
    Ok(())
}

/// Bytes of a tensor; `None` where they are known only at run time, or do not fit 64 bits.
fn size(tensor: Table<'_>) -> Result<Option<u64>, TfliteError> {
    let shape = tensor.integers(field::TENSOR_SHAPE, "the shape of a tensor")?;
    // Bits of each element type, by number. Texts, resources and variants have none.
    const BITS: [u64; 19] = [32, 16, 32, 8, 64, 0, 8, 16, 64, 8, 64, 128, 64, 0, 0, 32, 16, 4, 16];
    let kind = tensor.number::<1>(field::TENSOR_TYPE, "the type of a tensor")? as usize;
    let Some(&bits) = BITS.get(kind).filter(|&&bits| bits > 0) else { return Ok(None) };
    let extents = shape.into_iter().map(|extent| u64::try_from(extent).ok());
    let count = extents.into_iter().try_fold(1u64, |count, extent| count.checked_mul(extent?));
    Ok(count.and_then(|count| Some(count.checked_mul(bits)?.div_ceil(8))))
}
