//! Notes of asynchronous operations: text has them once for the operation and the wrapped instruction.

use std::sync::Arc;

use memplan_ir::{Extras, FrontendAttributes, Instruction, Metadata, OriginalValue, Statistics};

/// The notes that the parser copies from an asynchronous operation to the wrapped instruction.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) struct AsyncNotes<'a> {
    metadata: Option<&'a Arc<Metadata>>,
    backend_config: Option<&'a [u8]>,
    frontend_attributes: Option<&'a FrontendAttributes>,
    statistics: Option<&'a Statistics>,
    origin: Option<&'a OriginalValue>,
}

impl<'a> AsyncNotes<'a> {
    pub(crate) fn of(instruction: &'a Instruction) -> AsyncNotes<'a> {
        let extras = instruction.extras.as_deref();
        AsyncNotes {
            metadata: instruction.metadata.as_ref(),
            backend_config: instruction.backend_config.as_deref(),
            frontend_attributes: extras.map(|e| &e.frontend_attributes).filter(|a| !a.is_empty()),
            statistics: extras.and_then(|extras| extras.statistics.as_ref()),
            origin: extras.and_then(|extras| extras.origin.as_ref()),
        }
    }

    /// These notes, with missing ones from an earlier operation.
    pub(crate) fn or(self, earlier: AsyncNotes<'a>) -> AsyncNotes<'a> {
        AsyncNotes {
            metadata: self.metadata.or(earlier.metadata),
            backend_config: self.backend_config.or(earlier.backend_config),
            frontend_attributes: self.frontend_attributes.or(earlier.frontend_attributes),
            statistics: self.statistics.or(earlier.statistics),
            origin: self.origin.or(earlier.origin),
        }
    }

    /// Writes the notes to the wrapped instruction, over its own.
    pub(crate) fn note(self, wrapped: &mut Instruction) {
        if let Some(metadata) = self.metadata {
            wrapped.metadata = Some(Arc::clone(metadata));
        }
        if let Some(config) = self.backend_config {
            wrapped.backend_config = Some(config.into());
        }
        if let Some(attributes) = self.frontend_attributes {
            wrapped.extras_mut().frontend_attributes = attributes.clone();
        }
        if let Some(statistics) = self.statistics {
            wrapped.extras_mut().statistics = Some(statistics.clone());
        }
        if let Some(origin) = self.origin {
            wrapped.extras_mut().origin = Some(origin.clone());
        }
    }

    /// Whether these are all notes that what runs has.
    pub(crate) fn are_all_of(self, wrapped: &Instruction) -> bool {
        let others = wrapped.extras.as_deref().map(|extras| Extras {
            frontend_attributes: Default::default(),
            statistics: None,
            origin: None,
            ..extras.clone()
        });
        others.is_none_or(|others| others == Extras::default()) && AsyncNotes::of(wrapped) == self
    }
}
