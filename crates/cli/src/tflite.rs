//! `memplan plan MODEL.tflite`

use std::fmt::Write as _;

use memplan::memory::Bytes;
use memplan::pack;
use memplan::tflite::{self, Model, Plan, Tensor};

use crate::emit::json;
use crate::failure::Failure;
use crate::input::read;
use crate::options::{Format, ResultArgs};
use crate::output::write_result;

/// Plans a model in its own numbering of tensors, and writes it with the plan, if asked for.
pub(crate) fn run(path: &str, result: &ResultArgs, options: &pack::Options) -> Result<(), Failure> {
    let wrong = |error: tflite::TfliteError| Failure::Input(format!("error: `{path}`: {error}"));
    let target = result.emit.only("tflite-micro")?;
    let bytes = read(path)?;
    let model = tflite::read(&bytes).map_err(wrong)?;
    let plan = tflite::plan(&model, options).map_err(wrong)?;
    if let Some(target) = target {
        write_result(Some(target), tflite::write(&bytes, &plan).map_err(wrong)?)?;
    }
    let text = match result.format {
        Format::Json => json(&document(&model, &plan)),
        Format::Text => report(path, &model, &plan),
    };
    result.write(text)
}

/// The plan of a model.
#[derive(serde::Serialize, schemars::JsonSchema)]
pub(crate) struct Document<'a> {
    format: &'static str,
    version: u32,
    /// Bytes of the arena that the tensors need.
    arena: u64,
    /// Bytes that no placement of them can do without.
    lower_bound: u64,
    tensors: Vec<Entry<'a>>,
}

#[derive(serde::Serialize, schemars::JsonSchema)]
struct Entry<'a> {
    subgraph: usize,
    /// Its number in the subgraph.
    tensor: usize,
    name: &'a str,
    /// Bytes, where they are known before the model runs.
    size: Option<u64>,
    /// Its place in the arena; null leaves it to the runtime.
    offset: Option<u64>,
    /// When it is written: 0 is before the first operator, which runs at 1.
    first: Option<usize>,
    /// When it is last needed.
    last: Option<usize>,
}

fn document<'a>(model: &'a Model, plan: &Plan) -> Document<'a> {
    let tensors = model.subgraphs.iter().enumerate().flat_map(|(subgraph, found)| {
        found.tensors.iter().enumerate().map(move |(tensor, found)| (subgraph, tensor, found))
    });
    let entry = |((subgraph, tensor, found), &offset): ((usize, usize, &'a Tensor), &Option<u64>)| Entry {
        subgraph,
        tensor,
        name: &found.name,
        size: found.size,
        offset,
        first: found.lifetime.map(|it| it.first),
        last: found.lifetime.map(|it| it.last),
    };
    Document {
        format: "memplan.tflite",
        version: 1,
        arena: plan.arena,
        lower_bound: plan.lower_bound,
        tensors: tensors.zip(&plan.offsets).map(entry).collect(),
    }
}

fn report(path: &str, model: &Model, plan: &Plan) -> String {
    let placed = plan.offsets.iter().flatten().count();
    let proved = match plan.arena == plan.lower_bound {
        true => "no placement needs less".to_owned(),
        false => format!("no placement needs less than {}", Bytes(plan.lower_bound)),
    };
    let mut text = format!(
        "{path}: an arena of {} for {placed} of {} tensors; {proved}\n",
        Bytes(plan.arena),
        plan.offsets.len()
    );
    let main = &model.subgraphs[0];
    // The operator at which most bytes are needed: what begins and ends at each time, summed up.
    let mut changes = vec![0i128; main.n_operators + 3];
    for (tensor, offset) in main.tensors.iter().zip(&plan.offsets) {
        if let (Some(lifetime), Some(size), Some(_)) = (tensor.lifetime, tensor.size, offset) {
            changes[lifetime.first] += i128::from(size);
            changes[lifetime.last + 1] -= i128::from(size);
        }
    }
    let needed = changes.iter().scan(0, |sum, change| {
        *sum += change;
        Some(*sum)
    });
    let Some((peak, most)) = needed.enumerate().max_by_key(|&(time, bytes)| (bytes, std::cmp::Reverse(time)))
    else {
        return text;
    };
    let most = Bytes(u64::try_from(most).unwrap_or(0));
    let place = match peak {
        0 => "before the first operator".to_owned(),
        time if time > main.n_operators => "after the last operator".to_owned(),
        time => format!("at operator {}", time - 1),
    };
    let _ = writeln!(text, "\nmost bytes are needed {place}, {most}:");
    let mut holders: Vec<_> = main
        .tensors
        .iter()
        .enumerate()
        .filter(|(number, tensor)| {
            plan.offsets[*number].is_some()
                && tensor.lifetime.is_some_and(|it| (it.first..=it.last).contains(&peak))
        })
        .collect();
    holders.sort_by_key(|(number, tensor)| (std::cmp::Reverse(tensor.size), *number));
    for (number, tensor) in holders {
        let (size, offset) = (Bytes(tensor.size.unwrap_or(0)).to_string(), plan.offsets[number].unwrap_or(0));
        let _ = writeln!(text, "  {size:>10}  at {offset:<8}  tensor {number}: {}", tensor.name);
    }
    text.push_str(
        "\nkernels ask for working memory of their own, which TFLite Micro places around these tensors when it loads the model\n",
    );
    text
}
