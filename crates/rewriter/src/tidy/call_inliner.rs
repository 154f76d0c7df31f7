//! `call-inliner`: replaces a call by the instructions of the called computation; `single-call-inliner`: only where no other
//! instruction calls it.
//!
//! ```text
//! square { p = f32[4] parameter(0)
//!          ROOT s = f32[4] multiply(p, p) }
//! ENTRY main {                                    ENTRY main {
//!   a = f32[4] parameter(0)                         a = f32[4] parameter(0)
//!   ROOT c = f32[4] call(a), to_apply=square   =>   ROOT s.1 = f32[4] multiply(a, a)
//! }                                               }
//! ```
//!
//! A computation with several callers is copied into each. Framework names nest: the name of the call prefixes those of
//! the callee's instructions.
//!
//! Leaves alone: calls with control dependencies, calls marked `inlineable="false"` or for another kind of processor
//! (`_xla_compute_type`), callees of another execution thread, and calls that would grow the module beyond
//! [`MAX_INLINED_PER_INSTRUCTION`]. Requires nothing. *Changed* means that a call was inlined.

use std::sync::Arc;

use memplan_ir::{ComputationId, InstructionId, Metadata, Module, Op};
use rustc_hash::FxHashMap;

use crate::rewrite::Rewriter;
use crate::{Context, PassError, PassFn};

/// Puts callees in place of calls.
pub const CALL_INLINER: PassFn =
    PassFn { name: "call-inliner", description: "replace calls by the called computations", run };

/// Puts callees that have one caller in place of the call.
pub const SINGLE_CALL_INLINER: PassFn = PassFn {
    name: "single-call-inliner",
    description: "replace calls by the called computations that nothing else calls",
    run: run_single,
};

/// Most copies made for each instruction of the module. JAX programs copy each function a handful of times; a chain
/// of functions that each call the next one twice doubles with every link.
pub const MAX_INLINED_PER_INSTRUCTION: usize = 64;

fn run(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    inline_calls(module, |_| true)
}

fn run_single(module: &mut Module, _: &Context<'_>) -> Result<bool, PassError> {
    let mut n_callers: FxHashMap<ComputationId, u32> = FxHashMap::default();
    for callee in module.instructions.values().flat_map(|instruction| &instruction.called) {
        *n_callers.entry(*callee).or_default() += 1;
    }
    inline_calls(module, |callee| n_callers[&callee] == 1)
}

/// Inlines the calls of some computations.
fn inline_calls(module: &mut Module, is_inlined: impl Fn(ComputationId) -> bool) -> Result<bool, PassError> {
    let mut budget = MAX_INLINED_PER_INSTRUCTION * (module.instruction_count() + 1024);
    let mut rewriter = Rewriter::new(module);
    // Callees come first, so a computation is copied into its caller after inlining in it.
    rewriter.sweep(|r, id| {
        if !may_inline(r, id) {
            return None;
        }
        let callee = r.get(id).called[0];
        if !is_inlined(callee) {
            return None;
        }
        budget = budget.checked_sub(r.module().computations[callee].instructions.len())?;
        let arguments = r.operands(id).to_vec();
        Some(inline(r, id, callee, &arguments))
    });
    Ok(rewriter.finish())
}

fn may_inline(r: &Rewriter<'_>, id: InstructionId) -> bool {
    let call = r.get(id);
    matches!(call.op, Op::Call { .. })
        && !r.has_control_dependencies(id)
        && call.frontend_attribute("inlineable") != Some("false")
        && call.frontend_attribute("_xla_compute_type").is_none()
        && {
            let threads = &r.module().computations;
            threads[call.called[0]].execution_thread == threads[call.parent].execution_thread
        }
}

/// Copies a computation to the position of `site`, with arguments for parameters, and returns the copy of its root.
/// `site`, which nothing waits for, will be replaced by it, whether or not the callee has side effects: those are
/// copied too.
pub fn inline(
    r: &mut Rewriter<'_>,
    site: InstructionId,
    callee: ComputationId,
    arguments: &[InstructionId],
) -> InstructionId {
    let metadata = r.get(site).metadata.as_ref();
    // Instructions inside a fusion have their full names.
    let prefix = match r.op(site) {
        Op::Fusion(_) => Default::default(),
        _ => metadata.map(|metadata| metadata.op_name.clone()).unwrap_or_default(),
    };
    r.unpin(site);
    let mut copies: FxHashMap<InstructionId, InstructionId> = FxHashMap::default();
    for id in r.live_instructions_of(callee) {
        if let Op::Parameter { number } = *r.op(id) {
            copies.insert(id, arguments[number as usize]);
            continue;
        }
        let stem: Box<str> = base_name(&r.get(id).name).into();
        let name = r.fresh_name(&stem);
        let of_site = r.get(site).metadata.clone();
        let new = r.copy(id, |copy| {
            copy.name = name;
            copy.metadata = match copy.metadata.take() {
                Some(metadata) => Some(with_lines(of_site.as_deref(), with_prefix(&prefix, metadata))),
                None => of_site,
            };
            for operand in copy.operands.iter_mut().chain(&mut copy.control_predecessors) {
                *operand = copies[operand];
            }
        });
        copies.insert(id, new);
    }
    copies[&r.root_of(callee)]
}

/// A name without its number.
fn base_name(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((base, suffix)) if suffix.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Instructions without a source line get the call's.
fn with_lines(site: Option<&Metadata>, mut metadata: Arc<Metadata>) -> Arc<Metadata> {
    let has_lines = |metadata: &Metadata| metadata.stack_frame_id != 0 || !metadata.source_file.is_empty();
    if let Some(site) = site.filter(|site| has_lines(site) && !has_lines(&metadata)) {
        let own = Arc::make_mut(&mut metadata);
        own.source_file.clone_from(&site.source_file);
        (own.source_line, own.source_end_line) = (site.source_line, site.source_end_line);
        (own.source_column, own.source_end_column) = (site.source_column, site.source_end_column);
        own.stack_frame_id = site.stack_frame_id;
    }
    metadata
}

fn with_prefix(prefix: &str, mut metadata: Arc<Metadata>) -> Arc<Metadata> {
    if !prefix.is_empty() && !metadata.op_name.starts_with(prefix) {
        let op_name = match &*metadata.op_name {
            "" => prefix.into(),
            name => format!("{prefix}/{name}").into(),
        };
        Arc::make_mut(&mut metadata).op_name = op_name;
    }
    metadata
}
