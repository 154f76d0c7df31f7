//! Errors as Python exceptions, with the text that the command shows.

use memplan_cli::Failure;
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyException;

create_exception!(
    memplan,
    Error,
    PyException,
    "Something that memplan could not do; the text says what and where."
);
create_exception!(
    memplan,
    InputError,
    Error,
    "The input is wrong: file, line and column, with a caret where there is text."
);
create_exception!(
    memplan,
    DoesNotFit,
    Error,
    "The program does not fit into the memory asked for; the text says by how much, and what holds the peak."
);
create_exception!(memplan, Refuted, Error, "A plan is wrong for its module.");

/// The exception for a failure of the command.
pub(crate) fn exception(failure: &Failure) -> PyErr {
    let text = failure.text().trim_start_matches("error: ").to_string();
    match failure {
        Failure::Input(_) | Failure::Usage(_) => InputError::new_err(text),
        Failure::DoesNotFit(_) => DoesNotFit::new_err(text),
        Failure::Refuted(_) | Failure::Grew(_) => Refuted::new_err(text),
    }
}

/// The exception for an error of the library, with everything that led to it.
pub(crate) fn input(error: &(dyn std::error::Error + 'static)) -> PyErr {
    exception(&Failure::input(error))
}
