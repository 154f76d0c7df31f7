//! Inputs and outputs as NumPy's `.npz` archives: arrays `p0`, `p1`, ... for the leaves of the parameters in order, and
//! `o0`, `o1`, ... for the leaves of the result.
//!
//! Types that NumPy lacks are stored as their bits: `bf16` as `uint16`, the small floats as `uint8`, integers of fewer
//! than eight bits as `int8` or `uint8`. With several devices, a first dimension counts them.

use std::io::{Read, Seek, Write};

use memplan_ir::{ArrayLiteral, ArrayShape, ElementType, Literal, Module, Shape};
use rustc_hash::FxHashMap;

use crate::Error;
use crate::execute::flatten;
use crate::npy::Header;

/// One array of an archive.
struct NpyArray {
    dtype: String,
    shape: Vec<i64>,
    /// In row-major order.
    data: Vec<u8>,
}

/// Reads the inputs of a module.
///
/// # Errors
/// When the archive cannot be read, lacks an array or has one too many, or when an array has another type or shape than
/// its parameter.
pub fn read_inputs(module: &Module, archive: impl Read + Seek) -> Result<Vec<Literal>, Error> {
    Ok(read_inputs_on(module, 1, archive)?.swap_remove(0))
}

/// Reads the inputs of a module for each of several devices. An array that has the shape of its parameter goes to all
/// devices; one with a dimension before those has a part for each device, in order.
///
/// # Errors
/// As [`read_inputs`].
pub fn read_inputs_on(
    module: &Module,
    n_devices: usize,
    archive: impl Read + Seek,
) -> Result<Vec<Vec<Literal>>, Error> {
    let mut arrays = read_archive(archive)?;
    let given = arrays.len();
    let parameters = &module.entry_computation().parameters;
    let mut number = 0;
    let mut inputs = vec![Vec::new(); n_devices];
    for &parameter in parameters {
        let mut leaves = vec![Vec::new(); n_devices];
        for (index, shape) in module.shape(parameter).leaves() {
            let Some(expected) = shape.as_array() else {
                leaves.iter_mut().for_each(|leaves| leaves.push(Literal::Token));
                continue;
            };
            let mut name = module.instructions[parameter].name.to_string();
            if !index.is_root() {
                name.push_str(&index.to_string());
            }
            let Some(array) = arrays.remove(&format!("p{number}")) else {
                return Err(Error::MissingInput { number, name, expected: crate::describe(shape) });
            };
            let parts = to_literals(array, expected, n_devices, number, &name)?;
            leaves.iter_mut().zip(parts).for_each(|(leaves, part)| leaves.push(part));
            number += 1;
        }
        for (inputs, leaves) in inputs.iter_mut().zip(leaves) {
            inputs.push(crate::nest(module.shape(parameter), &mut leaves.into_iter()));
        }
    }
    let first = arrays.into_keys().min();
    match first {
        None => Ok(inputs),
        Some(first) => Err(Error::ExtraInput { given, expected: number, first }),
    }
}

/// Reads the arrays of an archive that [`write_outputs`] could have written for a result like this one.
///
/// # Errors
/// As [`read_inputs`].
pub fn read_outputs(like: &Literal, archive: impl Read + Seek) -> Result<Literal, Error> {
    let mut arrays = read_archive(archive)?;
    let mut leaves = Vec::new();
    flatten(like, &mut leaves);
    let mut read = Vec::new();
    for (number, leaf) in leaves.into_iter().filter_map(Literal::as_array).enumerate() {
        let expected = ArrayShape::new(leaf.element_type, leaf.dimensions.iter().copied());
        let name = format!("o{number}");
        let Some(array) = arrays.remove(&name) else {
            return Err(Error::MissingInput {
                number,
                name,
                expected: crate::describe(&Shape::Array(expected)),
            });
        };
        read.extend(to_literals(array, &expected, 1, number, &name)?);
    }
    Ok(rebuild(like, &mut read.into_iter()))
}

/// Rebuilds a literal with new arrays in the places of the old ones.
fn rebuild(like: &Literal, arrays: &mut impl Iterator<Item = Literal>) -> Literal {
    match like {
        Literal::Tuple(elements) => Literal::Tuple(elements.iter().map(|e| rebuild(e, arrays)).collect()),
        Literal::Array(_) => arrays.next().expect("as many arrays as the literal has"),
        Literal::Token => Literal::Token,
    }
}

/// Writes the result of a module.
///
/// # Errors
/// When the archive cannot be written.
pub fn write_outputs(result: &Literal, archive: impl Write + Seek) -> Result<(), Error> {
    write_outputs_of(std::slice::from_ref(result), archive)
}

/// Writes the results of a module on several devices: each array has one more dimension, the first, for the devices.
/// With one device there is no such dimension.
///
/// # Errors
/// When the archive cannot be written, and when the devices' results have other extents than each other.
pub fn write_outputs_of(results: &[Literal], archive: impl Write + Seek) -> Result<(), Error> {
    let arrays_of = |result| {
        let mut leaves = Vec::new();
        flatten(result, &mut leaves);
        leaves.into_iter().filter_map(Literal::as_array).collect::<Vec<_>>()
    };
    let arrays: Vec<Vec<&ArrayLiteral>> = results.iter().map(arrays_of).collect();
    let mut zip = zip::ZipWriter::new(archive);
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Deflated)
        .large_file(true);
    for (k, array) in arrays[0].iter().enumerate() {
        let mut shape: Vec<u64> = array.dimensions.iter().map(|&d| d as u64).collect();
        if arrays.iter().any(|others| others[k].dimensions != array.dimensions) {
            return Err(broken(format!("o{k} has other extents on other devices")));
        }
        if results.len() > 1 {
            shape.insert(0, results.len() as u64);
        }
        zip.start_file(format!("o{k}.npy"), options).map_err(broken)?;
        let dtype = dtype_of(array.element_type).to_string();
        Header { dtype, is_fortran: false, shape }.write(&mut zip).map_err(broken)?;
        for others in &arrays {
            zip.write_all(&others[k].bytes()).map_err(broken)?;
        }
    }
    zip.finish().map_err(broken)?.flush().map_err(broken)
}

/// The NumPy type that holds elements of a type.
fn dtype_of(t: ElementType) -> &'static str {
    use ElementType::*;
    match t {
        Pred => "|b1",
        S1 | S2 | S4 | S8 => "|i1",
        S16 => "<i2",
        S32 => "<i4",
        S64 => "<i8",
        U16 | Bf16 => "<u2",
        U32 => "<u4",
        U64 => "<u8",
        F16 => "<f2",
        F32 => "<f4",
        F64 => "<f8",
        C64 => "<c8",
        C128 => "<c16",
        _ => "|u1",
    }
}

/// The literal for each device.
fn to_literals(
    array: NpyArray,
    expected: &ArrayShape,
    n_devices: usize,
    number: usize,
    name: &str,
) -> Result<Vec<Literal>, Error> {
    let t = expected.element_type;
    let (extents, n_parts) = match &array.shape[..] {
        [parts, extents @ ..]
            if n_devices > 1 && *parts == n_devices as i64 && extents.len() == expected.rank() =>
        {
            (extents, n_devices)
        }
        extents => (extents, 1),
    };
    if array.dtype != dtype_of(t) || !crate::extents_fit(extents, expected) {
        let found: Vec<String> = array.shape.iter().map(i64::to_string).collect();
        let mut parts = expected.clone();
        parts.dimensions.insert(0, n_devices as i64);
        parts.dynamic.clear();
        let alternative = match n_devices {
            1 => String::new(),
            _ => format!(", or {} with a part for each device,", crate::describe(&Shape::Array(parts))),
        };
        let expected = crate::describe(&Shape::Array(expected.clone()));
        return Err(Error::WrongInput {
            number,
            name: name.to_string(),
            expected: format!("{expected} (NumPy {}){alternative}", dtype_of(t)),
            found: format!("NumPy {}[{}]", array.dtype, found.join(",")),
        });
    }
    let count = ArrayShape::new(t, extents.iter().copied()).element_count().unwrap_or(u64::MAX);
    let size = count.saturating_mul(t.byte_width() as u64).saturating_mul(n_parts as u64);
    if array.data.len() as u64 != size {
        return Err(broken(format!(
            "the array of parameter {number} has {} bytes instead of {size}",
            array.data.len()
        )));
    }
    let part = array.data.len() / n_parts;
    let literal = |data: &[u8]| Literal::Array(ArrayLiteral::new(t, extents.iter().copied(), data));
    Ok((0..n_devices).map(|d| d % n_parts).map(|k| literal(&array.data[k * part..(k + 1) * part])).collect())
}

fn read_archive(archive: impl Read + Seek) -> Result<FxHashMap<String, NpyArray>, Error> {
    let mut zip = zip::ZipArchive::new(archive).map_err(broken)?;
    let mut arrays = FxHashMap::default();
    for at in 0..zip.len() {
        let mut file = zip.by_index(at).map_err(broken)?;
        let name = file.name().trim_end_matches(".npy").to_string();
        let Header { dtype, is_fortran, shape } =
            Header::read(&mut file).map_err(|error| broken(format!("{name}: {error}")))?;
        let width: u64 = dtype.trim_start_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0);
        let shape: Option<Vec<i64>> = shape.into_iter().map(|extent| i64::try_from(extent).ok()).collect();
        let count = shape
            .as_ref()
            .and_then(|shape| ArrayShape::new(ElementType::U8, shape.iter().copied()).element_count());
        let (Some(shape), Some(promised)) = (shape, count.and_then(|count| count.checked_mul(width))) else {
            return Err(broken(format!("{name} claims more than 2^64 bytes")));
        };
        // The header's size is trusted only as far as there are bytes.
        let mut data = Vec::new();
        file.take(promised).read_to_end(&mut data).map_err(broken)?;
        if is_fortran && promised > 0 && data.len() as u64 == promised {
            data = to_row_major(&data, &shape, width as usize);
        }
        arrays.insert(name, NpyArray { dtype, shape, data });
    }
    Ok(arrays)
}

/// Rearranges elements whose first index varies fastest.
fn to_row_major(data: &[u8], shape: &[i64], width: usize) -> Vec<u8> {
    let mut strides = vec![width as i64; shape.len()];
    for d in 1..shape.len() {
        strides[d] = strides[d - 1] * shape[d - 1];
    }
    let mut row_major = Vec::with_capacity(data.len());
    crate::transfer::for_each_index(shape, |index| {
        let at = index.iter().zip(&strides).map(|(i, s)| i * s).sum::<i64>() as usize;
        row_major.extend_from_slice(&data[at..at + width]);
    });
    row_major
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::Archive(error.to_string())
}
