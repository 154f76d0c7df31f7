//! A pass in another crate than memplan's, with an error and a report of its own, run by `compile`.
//!
//! The runtime of this example has no kernel for `power`. The pass writes powers out as products, reports which, and
//! refuses a program with a power that it cannot write out.
//!
//! ```text
//! cargo run --example own_pass
//! ```
#![allow(clippy::print_stdout, reason = "an example talks")]

use memplan::ir::{BinaryOp, Module, Op};
use memplan::memory::Target;
use memplan::passes::{Context, Outcome, Pass, PassError, Pipeline, Report};
use memplan::rewriter::Rewriter;
use memplan::{CompileError, CompileOptions, compile, hlo};

/// The pass. Its option is a field.
#[derive(PartialEq)]
struct WithoutPower {
    /// The largest exponent that is written out: each more is one more product.
    max_exponent: u32,
}

/// What the pass reports.
#[derive(Debug, PartialEq)]
struct WrittenOut {
    /// The powers that are products now.
    names: Vec<Box<str>>,
}

/// Why the pass gives up.
#[derive(Debug)]
struct NoKernel {
    instruction: Box<str>,
}

impl std::fmt::Display for NoKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is a power with an exponent that cannot be written out", self.instruction)
    }
}

impl std::error::Error for NoKernel {}

impl Pass for WithoutPower {
    fn name(&self) -> &'static str {
        "without-power"
    }

    fn description(&self) -> &'static str {
        "write powers with small whole exponents out as products"
    }

    fn run(&self, module: &mut Module, _: &Context<'_>) -> Result<Outcome, PassError> {
        let (mut names, mut left) = (Vec::new(), None);
        let mut rewriter = Rewriter::new(module);
        rewriter.sweep(|r, id| {
            if *r.op(id) != Op::Binary(BinaryOp::Power) {
                return None;
            }
            let base = r.operand(id, 0);
            let exponent = r.splat(r.operand(id, 1)).and_then(|exponent| exponent.as_float());
            let Some(n) = (1..=self.max_exponent).find(|&n| exponent == Some(f64::from(n))) else {
                left = Some(r.get(id).name.clone());
                return None;
            };
            names.push(r.get(id).name.clone());
            let shape = r.shape(id).clone();
            let product = Op::Binary(BinaryOp::Multiply);
            Some((1..n).fold(base, |power, _| r.emit(product.clone(), [power, base], shape.clone())))
        });
        let changed = rewriter.finish();
        if let Some(instruction) = left {
            return Err(PassError::failed(self.name(), NoKernel { instruction }));
        }
        Ok(Outcome { changed, report: changed.then(|| Report::new(WrittenOut { names })) })
    }
}

/// Compiles the program of a cube, or of another power.
fn compile_power(exponent: f32) -> Result<Vec<Box<str>>, CompileError> {
    let text = format!(
        "HloModule power
         ENTRY main {{
           x = f32[1024] parameter(0)
           n = f32[] constant({exponent})
           exponents = f32[1024] broadcast(n), dimensions={{}}
           ROOT y = f32[1024] power(x, exponents)
         }}"
    );
    let mut module = hlo::parse(&text).expect("the program is valid");
    let mut options = CompileOptions::default();
    let passes = [WithoutPower { max_exponent: 4 }.into()];
    options.stages.front.insert(0, Pipeline::new("powers", "write powers out", passes));
    let target = Target::find("cpu").expect("it is built in");
    let compiled = compile(&mut module, &target, &options)?;
    let has_power = module.instructions.values().any(|it| it.op == Op::Binary(BinaryOp::Power));
    assert!(!has_power);
    let written_out = compiled.pass_reports().find_map(Report::downcast_ref::<WrittenOut>);
    Ok(written_out.map_or_else(Vec::new, |report| report.names.clone()))
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let names = compile_power(3.0)?;
    assert_eq!(names, ["y".into()]);
    println!("written out: {}", names.join(", "));

    let error = compile_power(2.5).expect_err("there is no product for it");
    let CompileError::Pass(PassError::Failed { pass, source }) = error else { return Err(error.into()) };
    assert!(source.is::<NoKernel>());
    println!("{pass}: {source}");
    Ok(())
}
