//! Pins: flags that put values into a memory of the target.

use std::str::FromStr;

use clap::Args;
use memplan::analysis::operation;
use memplan::ir::{InstructionId, Module};
use memplan::memory::{MemorySpaceId, Target, did_you_mean};
use memplan::plan::{Pin, Pinned};

use crate::failure::Failure;
use crate::needless::given;

#[derive(Args)]
pub(crate) struct PinOptions {
    /// Put a value into a memory of the target, e.g. `x=flash`; may be given several times
    ///
    /// VALUE is an argument, by number from 0 or by name (of the module or of the program: `w`, `params['w']`), or an
    /// instruction, by name. A `*` matches any text: `params*=flash` pins all arguments whose names match. SPACE is the
    /// name or number of a memory that kernels reach like main memory. If the target has read-only memory, constants
    /// are in the first such memory.
    #[arg(long = "pin", value_name = "VALUE=SPACE")]
    pins: Vec<PinArg>,
}

/// `VALUE=SPACE`
#[derive(Clone, Debug, PartialEq, Eq)]
struct PinArg {
    value: String,
    space: String,
}

impl FromStr for PinArg {
    type Err = String;

    fn from_str(text: &str) -> Result<PinArg, String> {
        match text.rsplit_once('=') {
            Some((value, space)) if !value.is_empty() && !space.is_empty() => {
                Ok(PinArg { value: value.to_string(), space: space.to_string() })
            }
            _ => Err("a pin is VALUE=SPACE, as in `params*=flash`".to_string()),
        }
    }
}

impl PinOptions {
    /// The flags that were given.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        given([("--pin", !self.pins.is_empty())])
    }

    /// The pins of a program; the planner looks up the names of instructions.
    ///
    /// # Errors
    /// No argument matches a pattern, the target has no such memory.
    pub(crate) fn find(&self, module: &Module, target: &Target) -> Result<Vec<Pin>, Failure> {
        let pins = self.pins.iter().map(|pin| {
            let space = space(&pin.space, target)?;
            let values = values(&pin.value, module)?;
            Ok(values.into_iter().map(move |value| Pin { value, space }))
        });
        let pins: Vec<_> = pins.collect::<Result<_, Failure>>()?;
        Ok(pins.into_iter().flatten().collect())
    }

    /// The pins of a program before compilation: only arguments.
    ///
    /// # Errors
    /// As [`PinOptions::find`], or a pin of anything else.
    pub(crate) fn of_arguments(&self, module: &Module, target: &Target) -> Result<Vec<Pin>, Failure> {
        let pins = self.find(module, target)?;
        match pins.iter().find(|pin| matches!(pin.value, Pinned::Instruction(_))) {
            Some(pin) => Err(Failure::Input(format!(
                "error: no argument is called {}; instructions get their names when the program is compiled: `--emit hlo=FILE` \
                 writes it, and `plan FILE --pin` takes them",
                pin.value
            ))),
            None => Ok(pins),
        }
    }
}

fn space(name: &str, target: &Target) -> Result<MemorySpaceId, Failure> {
    let is_meant = |id: MemorySpaceId, of: &str| name == of || name.parse() == Ok(id.0);
    let found = target.spaces.iter().find(|space| is_meant(space.id, &space.name));
    found.map(|space| space.id).ok_or_else(|| {
        let known: Vec<&str> = target.spaces.iter().map(|space| space.name.as_str()).collect();
        let meant = did_you_mean(name, known.iter().copied());
        let known = known.join(", ");
        Failure::Usage(format!("error: {} has no memory `{name}`{meant}\n  it has {known}", target.name))
    })
}

/// What a name refers to.
fn values(name: &str, module: &Module) -> Result<Vec<Pinned>, Failure> {
    if let Ok(number) = name.parse() {
        return Ok(vec![Pinned::Argument(number)]);
    }
    let is_meant = |id: InstructionId| {
        [&*module.instructions[id].name, operation(module, id)].iter().any(|of| matches(name, of))
    };
    let arguments = module.entry_computation().parameters.iter().zip(0..);
    let found = arguments.filter(|(id, _)| is_meant(**id));
    let found: Vec<Pinned> = found.map(|(_, number)| Pinned::Argument(number)).collect();
    match name.contains('*') {
        _ if !found.is_empty() => Ok(found),
        true => Err(Failure::Input(format!("error: no argument's name matches `{name}`"))),
        false => Ok(vec![Pinned::Instruction(name.into())]),
    }
}

/// Whether a text matches a pattern, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let (last, between) = parts.split_last().expect("splitting gives at least one part");
    for part in between {
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        for (pattern, text) in
            [("w", "w"), ("p*", "p['w']"), ("*", ""), ("p*w*]", "p['w1']"), ("*.*", "a.b.c")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("w", "w1"), ("p*", "x"), ("p*w", "p"), ("ab*b", "ab"), ("*a*b", "ba")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn the_last_sign_divides() {
        let pin = |value: &str, space: &str| Ok(PinArg { value: value.into(), space: space.into() });
        assert_eq!("a=b=flash".parse(), pin("a=b", "flash"));
        assert!(["flash", "=flash", "a="].iter().all(|text| text.parse::<PinArg>().is_err()));
    }
}
