//! Searches for the cheapest set of changes that fits.

use memplan_driver::{EstimateError, Price, in_parallel};
use memplan_memory::Bytes;

use super::candidate::Candidate;
use super::lever::{self, Edit, Lever};
use super::{Best, Setting, Suggestion};

/// Prices a change of a program.
pub(super) fn change(edit: &Edit, program: &Candidate, price: Price, setting: &Setting<'_>) -> Suggestion {
    Suggestion {
        lever: edit.lever(),
        what: edit.what(program),
        total: price.total,
        seconds: price.seconds,
        fits: price.total <= setting.options.limit,
        apply: edit.apply(program, setting),
        code: edit.code(program),
        mesh: edit.mesh(program),
    }
}

/// A set of changes that was tried.
#[derive(Clone)]
struct Tried {
    edits: Vec<Edit>,
    total: Bytes,
    /// Seconds for the original number of examples, on all devices together.
    cost: f64,
}

/// The cheapest set of the first tier in which one fits; if none fits, the smallest of all.
pub(super) fn best(
    program: &Candidate,
    before: Price,
    singles: &[(Suggestion, Edit)],
    setting: &Setting<'_>,
) -> Result<Best, EstimateError> {
    /// A single change of less time than this is taken; of more, sets are tried, since two may be cheaper than one.
    const CHEAP: f64 = 1.1;
    let nothing = Tried { edits: Vec::new(), total: before.total, cost: before.seconds };
    let mut tried = vec![nothing];
    for tier in Lever::TIERS {
        if chosen(&tried, setting).is_some() {
            break;
        }
        tried.extend(alone(program, singles, tier));
        if chosen(&tried, setting).is_some_and(|set| set.cost <= before.seconds * CHEAP) {
            break;
        }
        let sets = together(singles, &tried, before.total, tier);
        for set in in_parallel(setting.options.threads, sets, |edits| carry_out(program, edits, setting)) {
            tried.extend(set?);
        }
    }
    let smallest = || tried.iter().min_by_key(|tried| tried.total).expect("nothing at all is tried first");
    let best = chosen(&tried, setting).unwrap_or_else(smallest).clone();
    let best = relaxed(program, singles, best, setting)?;
    step_by_step(program, before, &best.edits, setting)
}

/// The cheapest set with a mesh that fits: a mesh alone, or one with changes that cost the user only time; if none fits, the
/// smallest.
pub(super) fn best_spread(
    program: &Candidate,
    before: Price,
    meshes: &[(Suggestion, Edit)],
    setting: &Setting<'_>,
) -> Result<Best, EstimateError> {
    /// Other changes are tried with so many meshes: those that need fewest bytes alone, each of another kind.
    const MESHES: usize = 3;
    /// Programs of more instructions are large: an estimate of one takes half a second.
    const LARGE: usize = 5_000;
    let mut tried = alone(program, meshes, Lever::Shard.tier());
    if chosen(&tried, setting).is_none() {
        let others = lever::all(program, setting).list;
        let of = |lever: Lever| others.iter().filter(move |edit| edit.lever() == lever).cloned();
        let bare: Vec<Edit> = of(Lever::Donate).collect();
        let quick = |lever: Lever| thinned(of(lever).filter(|edit| *edit != Edit::Rewrite).collect(), 3);
        let quick = [Lever::Recompute, Lever::Microbatch].map(quick).concat();
        // A rewrite makes dozens of estimates: of large programs it comes last.
        let is_large = program.module.instructions.len() > LARGE;
        let turns = match is_large {
            true => vec![quick, vec![Edit::Rewrite]],
            false => vec![[quick, vec![Edit::Rewrite]].concat()],
        };
        for edits in turns {
            if chosen(&tried, setting).is_some() {
                break;
            }
            let mut sets: Vec<Vec<Edit>> = Vec::new();
            for (_, mesh) in one_of_each_kind(meshes).take(if is_large { 1 } else { MESHES }) {
                let with = |edit: &Edit| [bare.as_slice(), &[edit.clone(), mesh.clone()]].concat();
                sets.extend(edits.iter().map(with));
                sets.extend(
                    (!bare.is_empty()).then(|| [bare.as_slice(), std::slice::from_ref(mesh)].concat()),
                );
            }
            sets.iter_mut().for_each(|set| set.sort_by_key(Edit::place));
            for set in in_parallel(setting.options.threads, sets, |edits| carry_out(program, edits, setting))
            {
                tried.extend(set?);
            }
        }
    }
    let smallest = || tried.iter().min_by_key(|tried| tried.total);
    let edits = chosen(&tried, setting).or_else(smallest).map_or(&[][..], |tried| &tried.edits);
    step_by_step(program, before, edits, setting)
}

/// The first mesh of each number of devices that share features.
fn one_of_each_kind(meshes: &[(Suggestion, Edit)]) -> impl Iterator<Item = &(Suggestion, Edit)> {
    let kind = |edit: &Edit| match edit {
        Edit::Shard(mesh) => mesh.features(),
        _ => 1,
    };
    let is_first = move |i: usize| meshes[..i].iter().all(|(_, other)| kind(other) != kind(&meshes[i].1));
    (0..meshes.len()).filter(move |&i| is_first(i)).map(|i| &meshes[i])
}

/// The cheapest set that fits.
fn chosen<'a>(tried: &'a [Tried], setting: &Setting<'_>) -> Option<&'a Tried> {
    let fitting = tried.iter().filter(|tried| tried.total <= setting.options.limit);
    fitting.min_by(|a, b| a.cost.total_cmp(&b.cost))
}

/// Changes of a tier that were tried alone.
fn alone(program: &Candidate, singles: &[(Suggestion, Edit)], own: u8) -> Vec<Tried> {
    let of_tier = singles.iter().filter(|(_, edit)| edit.lever().tier() == own);
    let as_set = |(change, edit): &(Suggestion, Edit)| Tried {
        edits: vec![edit.clone()],
        total: change.total,
        cost: change.seconds * edit.per_example(program),
    };
    of_tier.map(as_set).collect()
}

/// Sets to try: changes of a tier with each other in the lowest tier, else with the sets of lower tiers that need
/// fewest bytes.
fn together(singles: &[(Suggestion, Edit)], tried: &[Tried], before: Bytes, own: u8) -> Vec<Vec<Edit>> {
    let helps = singles.iter().filter(|(change, edit)| change.total < before && edit.lever().tier() == own);
    let helpful: Vec<&Edit> = helps.map(|(_, edit)| edit).collect();
    let mut bases: Vec<&Tried> =
        tried.iter().filter(|tried| tried.edits.iter().all(|edit| edit.lever().tier() < own)).collect();
    bases.sort_by_key(|tried| tried.total);
    // Without a rewrite, since nothing can be added to it.
    bases.retain(|tried| !tried.edits.contains(&Edit::Rewrite));
    let (mut sets, mut bare): (Vec<Vec<Edit>>, Vec<Edit>) = Default::default();
    if own == 0 {
        let of = |lever: Lever| helpful.iter().copied().filter(move |edit| edit.lever() == lever).cloned();
        bare.extend(of(Lever::Donate));
        let some = |lever: Lever| thinned(of(lever).collect(), 3);
        let [recompute, parts] = [Lever::Recompute, Lever::Microbatch].map(some);
        sets.extend(recompute.iter().chain(&parts).map(|edit| vec![edit.clone()]));
        let pairs = recompute.iter().flat_map(|a| parts.iter().map(|b| vec![a.clone(), b.clone()]));
        sets.extend(pairs);
        sets.retain(|set| !bare.is_empty() || set.len() > 1);
    } else {
        let bases = bases.iter().take(2).filter(|base| !base.edits.is_empty());
        let has_parts = |base: &Tried| base.edits.iter().any(|edit| edit.lever() == Lever::Microbatch);
        for base in bases {
            for edit in &helpful {
                if edit.lever() != Lever::Batch || !has_parts(base) {
                    sets.push([base.edits.as_slice(), &[(*edit).clone()]].concat());
                }
            }
            // Sets with fewer examples replace sets with micro-batches.
            let without: Vec<Edit> =
                base.edits.iter().filter(|edit| edit.lever() != Lever::Microbatch).cloned().collect();
            if has_parts(base) && own >= 3 {
                sets.extend(helpful.iter().map(|edit| [without.as_slice(), &[(*edit).clone()]].concat()));
            }
        }
    }
    for set in &mut sets {
        set.splice(0..0, bare.iter().cloned());
        set.sort_by_key(Edit::place);
    }
    sets
}

/// This many items of a list, evenly spaced from the first.
fn thinned(list: Vec<Edit>, most: usize) -> Vec<Edit> {
    let step = list.len().div_ceil(most).max(1);
    list.into_iter().step_by(step).collect()
}

/// Applies all changes in order; `None` if one cannot be applied.
fn carry_out(
    program: &Candidate,
    edits: Vec<Edit>,
    setting: &Setting<'_>,
) -> Result<Option<Tried>, EstimateError> {
    let (mut made, mut factor) = (None, 1.0);
    for edit in &edits {
        let now = made.as_ref().unwrap_or(program);
        let Ok(next) = now.with(edit, setting) else { return Ok(None) };
        factor *= edit.per_example(now);
        made = Some(next);
    }
    let price = made.as_ref().unwrap_or(program).price(setting)?;
    Ok(Some(Tried { edits, total: price.total, cost: price.seconds * factor }))
}

/// A set that fits, as cheap as other strengths of its changes make it: those that it does not need left out, another
/// checkpoint, more examples at a time. The search adds to the smallest sets, whose changes are the strongest.
fn relaxed(
    program: &Candidate,
    singles: &[(Suggestion, Edit)],
    mut best: Tried,
    setting: &Setting<'_>,
) -> Result<Tried, EstimateError> {
    if best.total > setting.options.limit {
        return Ok(best);
    }
    let order = |set: &Tried, other: &Tried| {
        set.cost.total_cmp(&other.cost).then(set.edits.len().cmp(&other.edits.len()))
    };
    let mut sets = vec![best.edits.clone()];
    loop {
        sets.extend(neighbours(&best.edits, singles));
        let with_most_examples = |edits| with_most_examples(program, edits, setting);
        let found = in_parallel(setting.options.threads, std::mem::take(&mut sets), with_most_examples);
        let found: Vec<Option<Tried>> = found.into_iter().collect::<Result<_, _>>()?;
        match found.into_iter().flatten().min_by(order) {
            Some(set) if order(&set, &best).is_lt() => best = set,
            _ => return Ok(best),
        }
    }
}

/// A set without one of its changes, or with another checkpoint. Donations stay: they cost nothing.
fn neighbours(edits: &[Edit], singles: &[(Suggestion, Edit)]) -> Vec<Vec<Edit>> {
    let is_checkpoint = |edit: &&Edit| matches!(edit, Edit::Checkpoint(_));
    let checkpoints: Vec<&Edit> = singles.iter().map(|(_, edit)| edit).filter(is_checkpoint).collect();
    let mut sets = Vec::new();
    for (place, edit) in edits.iter().enumerate().filter(|(_, edit)| edit.lever() != Lever::Donate) {
        let [before, after] = [&edits[..place], &edits[place + 1..]];
        sets.push([before, after].concat());
        if is_checkpoint(&edit) {
            let others = checkpoints.iter().copied().filter(|&other| other != edit);
            sets.extend(others.map(|other| [before, std::slice::from_ref(other), after].concat()));
        }
    }
    sets
}

/// A set with as many examples, or examples in a micro-batch, as fit, found by bisection; `None` if its own number does
/// not fit.
fn with_most_examples(
    program: &Candidate,
    edits: Vec<Edit>,
    setting: &Setting<'_>,
) -> Result<Option<Tried>, EstimateError> {
    const STEPS: usize = 4;
    let numbers =
        edits.iter().enumerate().find_map(|(place, edit)| Some((place, edit.more_examples(program)?)));
    let of_fitting = |edits| -> Result<Option<Tried>, EstimateError> {
        let set = carry_out(program, edits, setting)?;
        Ok(set.filter(|set| set.total <= setting.options.limit))
    };
    let Some(mut best) = of_fitting(edits.clone())? else { return Ok(None) };
    let Some((place, numbers)) = numbers else { return Ok(Some(best)) };
    let (mut fit, mut too_many) = (0_usize, numbers.len() + 1);
    for _ in 0..STEPS {
        let middle = fit.midpoint(too_many);
        if middle == fit {
            break;
        }
        let mut edits = edits.clone();
        edits[place] = numbers[middle - 1].clone();
        match of_fitting(edits)? {
            Some(set) => (best, fit) = (set, middle),
            None => too_many = middle,
        }
    }
    Ok(Some(best))
}

/// The changes of a set with the price after each.
fn step_by_step(
    program: &Candidate,
    before: Price,
    edits: &[Edit],
    setting: &Setting<'_>,
) -> Result<Best, EstimateError> {
    let (mut made, mut price, mut changes) = (None, before, Vec::new());
    for edit in edits {
        let now = made.as_ref().unwrap_or(program);
        let Ok(next) = now.with(edit, setting) else { break };
        price = next.price(setting)?;
        changes.push(change(edit, now, price, setting));
        made = Some(next);
    }
    Ok(Best {
        changes,
        total: price.total,
        seconds: price.seconds,
        fits: price.total <= setting.options.limit,
        module: made.map_or_else(|| program.module.clone(), |program| program.module),
    })
}
