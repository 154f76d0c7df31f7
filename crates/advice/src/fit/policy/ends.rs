//! What the results of a line end, as the call stacks of their readers tell.

use memplan_analysis::{Phase, SourceFrame, Sources};
use memplan_ir::{InstructionId, Users};

use super::lines::{Kept, user_frames};
use crate::fit::candidate::Candidate;

/// What the results of a line end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ends {
    /// Calls of this function.
    Calls(String),
    /// Steps of a loop in Python; or the lines do not tell.
    Steps,
    /// They are read later in the call that made them.
    Nothing,
}

/// What the results of a line end: the call stacks of their readers tell. A call's result is read by the next call, in an
/// earlier line of the function, and by the function's caller; other values are read in later lines of the function.
///
/// ```text
///   def layer(x, w):
///       y = x @ w               is read in the next line
///       return x + tanh(y)      is read by `x @ w` of the next layer, and outside
/// ```
pub(super) fn ends(program: &Candidate, sources: &Sources<'_>, users: &Users, kept: &[Kept]) -> Ends {
    // Columns do not tell: Python may compute the right end of a line before its left end.
    let stack = |id| -> Vec<SourceFrame<'_>> {
        let mut frames: Vec<_> =
            user_frames(sources, id).map(|frame| SourceFrame { column: 0, ..frame }).collect();
        frames.reverse();
        frames
    };
    // Readers in the next call, and readers later in the same one: how deep in the call stack, and which result they read.
    let mut again: Vec<(usize, &str)> = Vec::new();
    let mut later: Vec<(usize, InstructionId)> = Vec::new();
    for Kept { id, .. } in kept {
        let made = stack(*id);
        for &reader in users.of(*id).iter().filter(|&&id| program.phases().of(id) == Phase::Forward) {
            let read = stack(reader);
            let Some(parts) = made.iter().zip(&read).position(|(a, b)| a != b) else { continue };
            // Calls of a function at two places of its caller part in the caller.
            let in_call = |i: usize| {
                let (made, read) = (made.get(i)?, read.get(i)?);
                (made.function == read.function && read.line < made.line).then_some((i, made.function))
            };
            match in_call(parts).or_else(|| in_call(parts + 1)) {
                Some(call) => again.push(call),
                None => later.push((parts, *id)),
            }
        }
    }
    // What follows the last layer reads its result.
    let last = kept.iter().max_by_key(|kept| kept.depth).map(|kept| kept.id);
    let deepest = later.iter().filter(|(_, id)| Some(*id) != last).map(|(depth, _)| *depth).max();
    let Some(&(depth, function)) = again.iter().min() else {
        return if deepest.is_none() { Ends::Steps } else { Ends::Nothing };
    };
    if deepest.is_some_and(|deepest| deepest >= depth) || again.iter().any(|call| call.1 != function) {
        return Ends::Nothing;
    }
    match later.iter().all(|(of_last, _)| *of_last < depth) && !function.is_empty() {
        true => Ends::Calls(function.to_string()),
        false => Ends::Steps,
    }
}
