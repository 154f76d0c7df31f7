//! The passes of a compiler, with the options in its file.

use memplan_memory::{Compiler, CompilerError, did_you_mean};
use memplan_xla::{
    BroadcastRematerializer, DotMerger, DotStrengthReduction, FloatNormalization, GemmWorkspace,
    InstructionFusion, LibraryFusion, SplitkRewriter, StableSortExpander, TopkDecomposer,
};
use serde::de::DeserializeOwned;

use crate::{
    ALGEBRAIC_SIMPLIFIER, ALL, AlgebraicSimplifier, AnyPass, BROADCAST_REMATERIALIZER, COLLECTIVE_COMBINER,
    CONDITIONAL_SIMPLIFIER, COPY_INSERTION, CollectiveCombiner, ConditionalSimplifier, CopyInsertion,
    DOT_MERGER, DOT_STRENGTH_REDUCTION, FLOAT_NORMALIZATION, FOREIGN, GEMM_WORKSPACE, INSTRUCTION_FUSION,
    LIBRARY_FUSION, Pass, Pipeline, SPLITK_REWRITER, STABLE_SORT_EXPANDER, TOPK_DECOMPOSER, WHILE_SIMPLIFIER,
    WhileSimplifier, find,
};

/// The passes with options in such files, each with its parser.
const WITH_OPTIONS: &[(&dyn Pass, Read)] = &[
    (&ALGEBRAIC_SIMPLIFIER, read::<AlgebraicSimplifier>),
    (&BROADCAST_REMATERIALIZER, read::<BroadcastRematerializer>),
    (&COLLECTIVE_COMBINER, read::<CollectiveCombiner>),
    (&CONDITIONAL_SIMPLIFIER, read::<ConditionalSimplifier>),
    (&COPY_INSERTION, read::<CopyInsertion>),
    (&DOT_MERGER, read::<DotMerger>),
    (&DOT_STRENGTH_REDUCTION, read::<DotStrengthReduction>),
    (&FLOAT_NORMALIZATION, read::<FloatNormalization>),
    (&GEMM_WORKSPACE, read::<GemmWorkspace>),
    (&INSTRUCTION_FUSION, read::<InstructionFusion>),
    (&LIBRARY_FUSION, read::<LibraryFusion>),
    (&SPLITK_REWRITER, read::<SplitkRewriter>),
    (&STABLE_SORT_EXPANDER, read::<StableSortExpander>),
    (&TOPK_DECOMPOSER, read::<TopkDecomposer>),
    (&WHILE_SIMPLIFIER, read::<WhileSimplifier>),
];

type Read = fn(&Compiler, &str) -> Result<Option<AnyPass>, CompilerError>;

/// A pass with the options that a compiler's file has for it; `None` where it has none.
fn read<P: Pass + DeserializeOwned>(
    compiler: &Compiler,
    name: &str,
) -> Result<Option<AnyPass>, CompilerError> {
    Ok(compiler.options_of::<P>(name)?.map(AnyPass::from))
}

/// The passes that a compiler runs before it orders a program, with the options in its file, also of passes that run in
/// others, such as `simplify`.
///
/// # Errors
/// [`CompilerError::File`] with the place of a pass that memplan does not know, of options that a pass does not have, and of
/// options for a pass that the compiler does not run.
pub fn of_compiler(compiler: &Compiler) -> Result<Vec<AnyPass>, CompilerError> {
    let of_name = |(i, name): (usize, &String)| {
        find(name).map(AnyPass::Static).ok_or_else(|| {
            let meant = did_you_mean(name, ALL.iter().chain(FOREIGN).map(|pass| pass.name()));
            compiler.wrong(&format!("passes.{i}"), format!("there is no pass `{name}`{meant}"))
        })
    };
    let passes = compiler.passes.iter().enumerate().map(of_name).collect::<Result<Vec<_>, _>>()?;
    let mut passes = Pipeline::new("passes", "what a compiler runs before it orders a program", passes);
    for name in compiler.passes_with_options() {
        let wrong = |message| compiler.wrong(&format!("options.{name}"), message);
        let Some((_, read)) = WITH_OPTIONS.iter().find(|(known, _)| known.name() == name) else {
            let meant = did_you_mean(name, WITH_OPTIONS.iter().map(|(known, _)| known.name()));
            return Err(wrong(format!("no pass `{name}` has options in a compiler's file{meant}")));
        };
        if !passes.contains(name) {
            return Err(wrong(format!("options for pass `{name}`, which is not among `passes`")));
        }
        if let Some(pass) = read(compiler, name)? {
            passes = passes.with(name, pass);
        }
    }
    Ok(passes.passes.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CSE;
    use memplan_xla::SplitkRules;

    const SPLITK: SplitkRewriter = SplitkRewriter {
        rules: Some(SplitkRules {
            max_parts: 2,
            tile: 128,
            multiprocessors: 132.0,
            operation: 1.0,
            byte: 2.0,
            byte_of_sum: 3.0,
            sum: 4.0,
        }),
    };

    fn read_file(passes: &str, options: &str) -> Result<Vec<AnyPass>, String> {
        let text = format!(
            "name = 'mine'
            description = 'a compiler of my own'
            target = 'cpu'
            keeps_barriers = true
            schedulers = ['list']
            passes = [{passes}]
            fusion = {{}}
            {options}"
        );
        of_compiler(&Compiler::parse(&text, "mine.toml").unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn passes_have_the_options_of_the_file() {
        let splitk = "options.splitk-rewriter = { max_parts = 2, tile = 128, multiprocessors = 132.0, operation = 1.0, \
                      byte = 2.0, byte_of_sum = 3.0, sum = 4.0 }";
        let passes = read_file("'cse', 'splitk-rewriter', 'gemm-workspace'", splitk).unwrap();
        let expected = [AnyPass::from(CSE), SPLITK.into(), GEMM_WORKSPACE.into()];
        assert!(passes == expected);
    }

    #[test]
    fn what_no_pass_reads_is_named_with_its_place() {
        let error = |passes, options| read_file(passes, options).map(|_| ()).unwrap_err();
        assert_eq!(
            error("'cse', 'spiltk-rewriter'", ""),
            "mine.toml:6:30: there is no pass `spiltk-rewriter`; did you mean `splitk-rewriter`?"
        );
        assert_eq!(
            error("'cse'", "options.cse.rounds = 3"),
            "mine.toml:8:21: no pass `cse` has options in a compiler's file"
        );
        assert_eq!(
            error("'cse'", "options.gemm-workspace.bytes = 3"),
            "mine.toml:8:21: options for pass `gemm-workspace`, which is not among `passes`"
        );
        assert_eq!(
            error("'gemm-workspace'", "options.gemm-workspace.byte = 3"),
            "mine.toml:8:36: unknown field `byte`, expected `bytes`"
        );
    }
}
