//! The interface of a program (parameters and results), for passes that change it.

use memplan_ir::{InputOutputAlias, Module, ProgramShape};

/// Sets the program's interface to the current parameters and root of its entry.
pub fn set_interface(module: &mut Module) {
    let entry = module.entry_computation();
    let parameters = entry.parameters.iter().map(|&id| module.shape(id).clone()).collect();
    let result = module.shape(entry.root).clone();
    module.config.entry_computation_layout = Some(ProgramShape { parameters, result });
}

/// The numbers of the results that live in some parameters, given by number. Results within results are left out.
pub fn results_in(module: &Module, parameters: &[usize]) -> Vec<usize> {
    let aliases = module.config.input_output_alias.iter();
    let of = aliases.filter(|alias| parameters.contains(&(alias.parameter as usize)));
    let number = |alias: &InputOutputAlias| {
        (alias.output_index.0.len() == 1).then(|| alias.output_index.0[0] as usize)
    };
    of.filter_map(number).collect()
}
