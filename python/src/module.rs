//! Programs: read, verified, and written.

use std::sync::Arc;

use memplan::{hlo, ir};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::{exception, input};
use crate::work;

/// A program, read and verified.
#[pyclass(frozen, module = "memplan")]
pub(crate) struct Module(pub(crate) Arc<ir::Module>);

#[pymethods]
impl Module {
    /// Reads HLO text or protobuf, told apart by content. Errors point into `name`.
    #[staticmethod]
    fn parse(py: Python<'_>, data: &[u8], name: String) -> PyResult<Module> {
        let data = data.to_vec();
        let module = work::run(py, "reading", move || memplan_cli::parse_module(data, &name))?;
        Ok(Module(Arc::new(module.map_err(|failure| exception(&failure))?)))
    }

    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// How many instructions it has, in all computations.
    fn __len__(&self) -> usize {
        self.0.instructions.len()
    }

    /// HLO text.
    fn to_text(&self, py: Python<'_>) -> PyResult<String> {
        let module = Arc::clone(&self.0);
        work::run(py, "printing", move || hlo::print(&module))
    }

    /// A serialized `HloModuleProto`.
    fn to_proto<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let module = Arc::clone(&self.0);
        let bytes = work::run(py, "printing", move || hlo::proto::write_module(&module))?;
        Ok(PyBytes::new(py, &bytes.map_err(|error| input(&error))?))
    }

    /// Equal for equal programs, wherever their instructions come from.
    fn fingerprint(&self) -> String {
        format!("{:016x}", ir::fingerprint(&self.0))
    }

    /// What in it talks to the host while it runs, sorted: callbacks by their targets, transfers by opcode.
    fn host_contacts(&self) -> Vec<String> {
        let contacts = self.0.instructions.values().filter_map(|instruction| match &instruction.op {
            ir::Op::CustomCall(call) if call.target.contains("callback") => Some(call.target.to_string()),
            op => HOST.contains(&op.opcode()).then(|| op.opcode().to_string()),
        });
        let mut contacts: Vec<String> = contacts.collect();
        contacts.sort_unstable();
        contacts
    }

    /// Whether parts of it are written for each of several devices in the form of GSPMD, in which no rewritten program of one
    /// device can be handed back.
    fn has_parts_by_gspmd(&self) -> bool {
        let begins_one =
            |op: &ir::Op| matches!(op, ir::Op::CustomCall(call) if &*call.target == "SPMDFullToShardShape");
        self.0.instructions.values().any(|instruction| begins_one(&instruction.op))
    }

    fn __repr__(&self) -> String {
        format!("<memplan.Module `{}`, {} instructions>", self.0.name, self.0.instructions.len())
    }
}

/// Operations that talk to the host.
const HOST: [ir::Opcode; 4] = [ir::Opcode::Send, ir::Opcode::Recv, ir::Opcode::Infeed, ir::Opcode::Outfeed];
