//! Options that a caller sets have an effect: each one changes the result, or the report.

use memplan::driver::{FastMemoryUse, FirstGuess, Rewrite, StageReport, TriedPrograms};
use memplan::fast_memory::FastMemoryOptions;
use memplan::ir::{ComputationId, Module, Op};
use memplan::memory::{Compiler, Target};
use memplan::passes::{self, AnyPass, CopyReport, PassError, PassFn, RematReport, ResidualsReport};
use memplan::plan::{AsXla, Method, ScheduleOptions, Sharing, TakeOver};
use memplan::{CompileError, CompileOptions, Compiled, Objective, RewriteOptions, compile, hlo, rewrite};
use memplan_testkit::corpus;

/// Every stage runs once for fewest bytes, so that what an option does shows.
fn smallest() -> CompileOptions {
    CompileOptions { objective: Objective::Memory, ..CompileOptions::default() }
}

/// The programs of the repository.
fn programs() -> Vec<Module> {
    let ours = corpus().into_iter().filter(|program| program.is_ours);
    ours.map(|program| hlo::parse(&program.text("before")).unwrap()).collect()
}

fn compiled(module: &Module, target: &str, options: &CompileOptions) -> (Module, Compiled) {
    let mut module = module.clone();
    let compiled = compile(&mut module, &Target::find(target).unwrap(), options);
    let compiled = compiled.unwrap_or_else(|error| panic!("{}: {error}", module.name));
    (module, compiled)
}

fn tried(compiled: &Compiled) -> &TriedPrograms {
    let tried = compiled.stages.iter().find_map(|stage| match &stage.report {
        StageReport::Programs(tried) => Some(tried),
        _ => None,
    });
    tried.expect("it is a stage")
}

fn has_stage(compiled: &Compiled, name: &str) -> bool {
    compiled.stages.iter().any(|stage| stage.name == name)
}

fn n_fusions(module: &Module) -> usize {
    module.instructions.values().filter(|instruction| matches!(instruction.op, Op::Fusion(_))).count()
}

#[test]
fn the_searched_first_guess_searches_with_the_budget_of_the_caller() {
    let no_search = CompileOptions {
        schedule: ScheduleOptions { budget: 0, ..ScheduleOptions::default() },
        ..smallest()
    };
    let n_searched = |options: &CompileOptions| {
        let of = |module: &Module| {
            let (_, compiled) = compiled(module, "gpu-h100", options);
            tried(&compiled).guesses.iter().filter(|tried| tried.guess == FirstGuess::Searched).count()
        };
        programs().iter().map(of).sum::<usize>()
    };
    assert!(n_searched(&smallest()) > 0, "a search finds an order that one pass does not");
    // Without a budget it is the one-pass guess, which is not tried twice.
    assert_eq!(n_searched(&no_search), 0);
}

#[test]
fn schedules_are_made_as_the_caller_says() {
    let options = CompileOptions {
        schedule: ScheduleOptions {
            budget: 0,
            methods: vec![Method::PostOrder],
            ..ScheduleOptions::default()
        },
        guesses: vec![FirstGuess::Text],
        ..smallest()
    };
    for module in programs() {
        let (_, compiled) = compiled(&module, "cpu", &options);
        assert_eq!(tried(&compiled).guesses.len(), 1);
        let schedules = compiled.stages.iter().find_map(|stage| match &stage.report {
            StageReport::Schedules(tried) => Some(tried),
            _ => None,
        });
        let schedules = schedules.expect("it is a stage");
        assert_eq!(schedules.iter().filter(|tried| tried.is_chosen).count(), 1);
        for (name, of) in schedules.iter().flat_map(|tried| &tried.computations) {
            assert_eq!(of.chosen, Method::PostOrder, "{}: {name}", module.name);
        }
    }
}

#[test]
fn a_glance_is_as_long_as_the_caller_says() {
    let glances = |glance| {
        let options = CompileOptions { glance, ..smallest() };
        let of = |module: &Module| {
            let (_, compiled) = compiled(module, "gpu-h100", &options);
            tried(&compiled).guesses.iter().map(|tried| tried.total).collect::<Vec<_>>()
        };
        programs().iter().map(of).collect::<Vec<_>>()
    };
    assert_ne!(glances(passes::OneIn(1)), glances(passes::OneIn(u64::MAX)));
}

#[test]
fn storage_is_shared_as_the_caller_says() {
    let mut options = CompileOptions { measure_stages: true, ..smallest() };
    let of = |options: &CompileOptions| -> Vec<Vec<Option<u64>>> {
        let totals = |module: &Module| {
            let (_, compiled) = compiled(module, "cpu", options);
            compiled.stages.iter().map(|stage| stage.total.map(|total| total.0)).collect()
        };
        programs().iter().map(totals).collect()
    };
    let before = of(&options);
    options.assign.place.sharing =
        Sharing::AsXla(AsXla { take_over: TakeOver::SameShapes, temps_in_results: false });
    let after = of(&options);
    let first = |totals: &[Vec<Option<u64>>]| totals.iter().map(|of| of[0]).collect::<Vec<_>>();
    let last = |totals: &[Vec<Option<u64>>]| totals.iter().map(|of| of[of.len() - 1]).collect::<Vec<_>>();
    assert_ne!(first(&before), first(&after), "what is measured before the stages");
    assert_ne!(last(&before), last(&after), "what comes out");
}

#[test]
fn fast_memory_is_used_as_the_caller_says() {
    let with = |fast_memory| CompileOptions { fast_memory, ..smallest() };
    let target = Target::find("tpu-v5e").unwrap();
    let of_target = FastMemoryOptions::for_target(&target).unwrap();
    let little = FastMemoryOptions { capacity: 4096, ..of_target };
    let mut n_used = 0;
    for module in programs() {
        let (_, used) = compiled(&module, "tpu-v5e", &with(FastMemoryUse::ByObjective));
        n_used += usize::from(has_stage(&used, "fast memory"));
        let (_, unused) = compiled(&module, "tpu-v5e", &with(FastMemoryUse::Unused));
        assert!(!has_stage(&unused, "fast memory"), "{}", module.name);
        let (_, used) = compiled(&module, "tpu-v5e", &with(FastMemoryUse::With(Box::new(little.clone()))));
        for stage in &used.stages {
            if let StageReport::FastMemory(report) = &stage.report {
                assert!(report.height.0 <= little.capacity, "{}: {report:?}", module.name);
            }
        }
    }
    assert!(n_used > 0);
}

#[test]
fn a_program_may_be_left_as_it_is_instead_of_fused() {
    let mut options = smallest();
    options.stages.fusions.clear();
    for module in programs() {
        let (not_fused, compiled) = compiled(&module, "cpu", &options);
        assert_eq!(n_fusions(&not_fused), 0, "{}", module.name);
        assert_eq!(tried(&compiled).programs.len(), 1);
    }
}

#[test]
fn a_pass_that_breaks_the_module_is_found_where_it_ran() {
    const BREAKS: PassFn = PassFn {
        name: "breaks",
        description: "names a root that is in no list",
        run: |module, _| {
            let entry: ComputationId = module.entry;
            let root = module.computations[entry].root;
            module.computations[entry].instructions.retain(|id| *id != root);
            Ok(true)
        },
    };
    let mut options = CompileOptions { verify_each_pass: true, ..smallest() };
    options.stages.front[0].passes.to_mut().push(AnyPass::from(BREAKS));
    let module = &programs()[0];
    let error = compile(&mut module.clone(), &Target::find("cpu").unwrap(), &options).map(|_| ());
    assert!(matches!(error, Err(CompileError::Pass(PassError::Broke { pass: "breaks", .. }))), "{error:?}");
}

#[test]
fn every_stage_reports_what_it_decided() {
    let options = CompileOptions { explain_fusion: true, ..smallest() };
    let (mut n_recomputed, mut n_residuals, mut n_copies) = (0, 0, 0);
    for module in programs() {
        let (module, compiled) = compiled(&module, "gpu-h100", &options);
        assert!(!compiled.fusion().expect("it was asked for").edges.is_empty(), "{}", module.name);
        let is_there =
            |name: &str| module.instructions.values().any(|instruction| &*instruction.name == name);
        for report in compiled.pass_reports() {
            n_recomputed += report.downcast_ref().map_or(0, |report: &RematReport| report.values.len());
            n_residuals += report.downcast_ref().map_or(0, |report: &ResidualsReport| report.pairs.len());
            for copy in report.downcast_ref().map_or(&[][..], |report: &CopyReport| &report.copies) {
                n_copies += 1;
                assert!(is_there(&copy.copy), "{}: {copy:?}", module.name);
            }
        }
    }
    assert!(
        n_recomputed > 0 && n_copies > 0,
        "{n_recomputed} values, {n_residuals} pairs, {n_copies} copies"
    );
}

#[test]
fn rewrites_are_tried_as_the_caller_says() {
    let compiler = Compiler::find("xla-gpu").unwrap();
    let target = Target::find("gpu-h100").unwrap();
    let rewritten = |module: &Module, options: &RewriteOptions| {
        rewrite(module.clone(), &compiler, &target, options).unwrap()
    };
    let (mut n_tried, mut n_kept) = (0, 0);
    for module in programs() {
        let by_default = rewritten(&module, &RewriteOptions::default());
        n_tried += by_default.steps.len();
        n_kept += by_default.steps.iter().filter(|step| step.is_kept).count();
        let mut options = RewriteOptions { min_saving: 2.0, ..RewriteOptions::default() };
        let kept = rewritten(&module, &options).steps.iter().filter(|step| step.is_kept).count();
        assert_eq!(kept, 0, "{}: nothing saves twice what there is", module.name);
        options.rewrites.retain(|rewrite: &Rewrite| rewrite.name == "recomputation");
        let steps = rewritten(&module, &options).steps;
        assert!(steps.iter().all(|step| step.name == "recomputation"), "{}", module.name);
    }
    assert!(n_tried > n_kept && n_kept > 0, "{n_tried} tried, {n_kept} kept");
}
