//! The module's interface: entry layout, aliases of inputs and outputs, donated inputs.

use rustc_hash::FxHashSet;

use crate::infer::{Agreement, brief, compatible};
use crate::{ArrayShape, EntityRef, Shape, ShapeIndex};

use super::{EntryPart, ModuleError, Verifier, shapes::check_shape};

impl<'a> Verifier<'a> {
    pub(super) fn check_interface(&mut self) {
        let Some((parameters, result)) = self.entry_shapes() else { return };
        self.check_entry_layout(&parameters, result);
        // Sizes are in the caller's layouts.
        let layout = self.module.config.entry_computation_layout.as_ref();
        match layout.filter(|layout| layout.parameters.len() == parameters.len()) {
            Some(layout) => self.check_aliases(&layout.parameters.iter().collect::<Vec<_>>(), &layout.result),
            None => self.check_aliases(&parameters, result),
        }
    }

    /// Shapes of parameters and root; `None` when the entry is broken.
    fn entry_shapes(&self) -> Option<(Vec<&'a Shape>, &'a Shape)> {
        let module = self.module;
        let shape = |id| module.shapes.get_index(module.instructions.get(id)?.shape.index());
        let entry = module.computations.get(module.entry)?;
        let parameters = entry.parameters.iter().map(|&p| shape(p)).collect::<Option<_>>()?;
        Some((parameters, shape(entry.root)?))
    }

    fn check_entry_layout(&mut self, parameters: &[&Shape], result: &Shape) {
        let Some(layout) = &self.module.config.entry_computation_layout else { return };
        if layout.parameters.len() != parameters.len() {
            let (expected, found) = (parameters.len(), layout.parameters.len());
            return self.report_module(ModuleError::EntryParameterCount { expected, found });
        }
        let pairs = layout.parameters.iter().zip(parameters.iter().copied()).enumerate();
        let pairs = pairs.map(|(i, (found, expected))| (EntryPart::Parameter(i), found, expected));
        for (part, found, expected) in pairs.chain([(EntryPart::Result, &layout.result, result)]) {
            if let Err(source) = check_shape(found) {
                self.report_module(ModuleError::EntryShapeInvalid { part, source });
            } else if !compatible(found, expected, Agreement::Exact) {
                let (expected, found) = (brief(expected), brief(found));
                self.report_module(ModuleError::EntryShape { part, expected, found });
            }
        }
    }

    /// Each output aliases at most one parameter and vice versa, of equal size; an aliased parameter is not donated as
    /// well.
    fn check_aliases(&mut self, parameters: &[&Shape], result: &Shape) {
        let config = &self.module.config;
        let mut outputs: FxHashSet<&ShapeIndex> = FxHashSet::default();
        let mut inputs: FxHashSet<(u32, &ShapeIndex)> = FxHashSet::default();
        for alias in &config.input_output_alias {
            const ATTRIBUTE: &str = "input_output_alias";
            let (index, parameter) = (&alias.parameter_index, alias.parameter);
            let output = self.find_array(ATTRIBUTE, EntryPart::Result, result, &alias.output_index);
            let input = self.find_parameter(ATTRIBUTE, parameters, parameter, index);
            if let (Some(output), Some(input)) = (output, input) {
                let space = |array: &ArrayShape| array.layout.as_ref().map_or(0, |l| l.memory_space);
                if space(output) != space(input) {
                    self.report_module(ModuleError::AliasedSpaces {
                        output: alias.output_index.clone(),
                        parameter,
                        index: index.clone(),
                    });
                }
                let [output_bytes, parameter_bytes] = [output, input].map(byte_size);
                if output_bytes != parameter_bytes {
                    self.report_module(ModuleError::AliasedSizes {
                        output: alias.output_index.clone(),
                        output_bytes,
                        parameter,
                        index: index.clone(),
                        parameter_bytes,
                    });
                }
            }
            if !outputs.insert(&alias.output_index) {
                self.report_module(ModuleError::OutputAliasedTwice(alias.output_index.clone()));
            }
            if !inputs.insert((parameter, index)) {
                self.report_module(ModuleError::ParameterUsedTwice { parameter, index: index.clone() });
            }
        }
        for donor in &config.buffer_donors {
            self.find_parameter("buffer_donor", parameters, donor.parameter, &donor.index);
            if !inputs.insert((donor.parameter, &donor.index)) {
                let (parameter, index) = (donor.parameter, donor.index.clone());
                self.report_module(ModuleError::ParameterUsedTwice { parameter, index });
            }
        }
    }

    fn find_parameter<'s>(
        &mut self,
        attribute: &'static str,
        parameters: &[&'s Shape],
        parameter: u32,
        index: &ShapeIndex,
    ) -> Option<&'s ArrayShape> {
        let Some(shape) = parameters.get(parameter as usize) else {
            self.report_module(ModuleError::NoSuchParameter {
                attribute,
                parameter,
                count: parameters.len(),
            });
            return None;
        };
        self.find_array(attribute, EntryPart::Parameter(parameter as usize), shape, index)
    }

    fn find_array<'s>(
        &mut self,
        attribute: &'static str,
        part: EntryPart,
        shape: &'s Shape,
        index: &ShapeIndex,
    ) -> Option<&'s ArrayShape> {
        let array = shape.subshape(index).and_then(Shape::as_array);
        if array.is_none() {
            let (index, shape) = (index.clone(), brief(shape));
            self.report_module(ModuleError::NotAnArray { attribute, part, index, shape });
        }
        array
    }
}

/// Bytes of an array in its layout: the minor-most extents rounded up to the first tile, elements packed to the given
/// width. Shapes were checked, so only an absurd tile can overflow, and then the size saturates.
fn byte_size(array: &ArrayShape) -> u64 {
    let layout = array.layout.as_ref();
    let tile = layout.and_then(|l| l.tiles.first()).map_or(&[][..], |t| &t.dimensions);
    let minor_to_major = array.minor_to_major();
    let extent = |i: usize| {
        minor_to_major.get(i).and_then(|&d| array.dimensions.get(d as usize)).copied().unwrap_or(1)
    };
    let elements = (0..array.rank().max(tile.len())).fold(1u64, |n, i| {
        let size = u64::try_from(extent(i)).unwrap_or(0);
        let unit = tile.iter().rev().nth(i).map_or(1, |&t| u64::try_from(t).unwrap_or(1).max(1));
        n.saturating_mul(size.checked_next_multiple_of(unit).unwrap_or(u64::MAX))
    });
    let alignment = layout.map_or(1, |l| l.tail_padding_alignment_in_elements()).max(1) as u64;
    let elements = elements.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    match layout.map_or(0, |l| l.element_size_in_bits) {
        bits if bits > 0 => elements.saturating_mul(bits as u64).div_ceil(8),
        _ => elements.saturating_mul(u64::from(array.element_type.byte_width())),
    }
}
