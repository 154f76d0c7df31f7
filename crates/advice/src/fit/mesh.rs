//! Several devices: meshes, the dimensions that each axis cuts, and the program of one device.
//!
//! ```text
//!   mesh data=2 fsdp=4 tensor=8, 64 devices     tokens s32[256,2048]     P(('data', 'fsdp'), None)
//!                                               w1 f32[32,4096,11008]    P(None, 'fsdp', 'tensor')
//!                                               w2 f32[32,11008,4096]    P(None, 'tensor', 'fsdp')
//! ```
//!
//! Shardings are written on the arguments, like JAX's `in_shardings`, and the program with these shardings is
//! partitioned and estimated like any other one. XLA's partitioner chooses the same shardings only if the program also
//! constrains the activations between layers to be cut by examples (`with_sharding_constraint`): otherwise it may cut
//! the stream as the weights are, and then needs far more memory. The factors of dimensions
//! ([`memplan_analysis::Dimensions`]) say which dimensions of weights are the same. Most weights have the stream
//! between layers, which stays whole, or is the dimension along which fully sharded weights are cut; the others are
//! heads, features and the vocabulary. A dimension that loops read slice by slice (layers) is never cut.

use std::collections::BTreeMap;

use memplan_analysis::{FactorId, FactorList, ValueClass, operation_or_name};
use memplan_ir::{
    ArrayShape, DeviceList, Module, Op, Shape, Sharding, ShardingKind, ShardingSpec, TileAssignment,
};
use memplan_passes::{Context, partition};
use rustc_hash::{FxHashMap, FxHashSet};

use super::Setting;
use super::candidate::Candidate;

/// What an axis of a mesh cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Examples.
    Data,
    /// Examples, and all that is trained: fully sharded.
    State,
    /// Examples, and experts.
    Experts,
    /// Heads, features, the vocabulary.
    Features,
}

impl Role {
    /// What the axis is called.
    fn name(self) -> &'static str {
        match self {
            Role::Data => "data",
            Role::State => "fsdp",
            Role::Experts => "expert",
            Role::Features => "tensor",
        }
    }
}

/// A mesh of devices, the axis along which devices are farthest from each other first. Each has at least two.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mesh {
    axes: Vec<(Role, i64)>,
}

/// The axes that cut each dimension of an array, by their place in the mesh.
type Cut = Vec<Vec<usize>>;

/// A mesh, and how it cuts each argument, in the terms of JAX.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MeshAdvice {
    /// The axes with their extents, in the order of `jax.make_mesh`.
    pub axes: Vec<MeshAxis>,
    /// How each argument that is an array is cut.
    pub arguments: Vec<ArgumentCut>,
    /// The axes that cut the examples of activations between layers, for `jax.lax.with_sharding_constraint`.
    pub examples: Vec<String>,
}

/// An axis of a mesh.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[allow(missing_docs, reason = "the names say it")]
pub struct MeshAxis {
    pub name: String,
    pub devices: i64,
}

/// How an argument is cut.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ArgumentCut {
    /// Its name in the program.
    pub argument: String,
    /// The names of the axes that cut each dimension: a `PartitionSpec`.
    pub spec: Vec<Vec<String>>,
}

impl Mesh {
    fn new(axes: &[(Role, i64)]) -> Mesh {
        Mesh { axes: axes.iter().copied().filter(|&(_, n)| n > 1).collect() }
    }

    pub(super) fn devices(&self) -> i64 {
        self.axes.iter().map(|(_, n)| n).product()
    }

    fn place(&self, role: Role) -> Option<usize> {
        self.axes.iter().position(|(other, _)| *other == role)
    }

    /// How many devices share heads and features.
    pub(super) fn features(&self) -> i64 {
        self.place(Role::Features).map_or(1, |axis| self.axes[axis].1)
    }

    /// The axes that cut examples.
    fn of_examples(&self) -> Vec<usize> {
        (0..self.axes.len()).filter(|&axis| self.axes[axis].0 != Role::Features).collect()
    }

    fn pieces(&self, axes: &[usize]) -> i64 {
        axes.iter().map(|&axis| self.axes[axis].1).product()
    }

    pub(super) fn what(&self) -> String {
        let part = |&(role, n): &(Role, i64)| {
            let whose = match role {
                Role::Data => "batch",
                Role::State => "fully sharded",
                Role::Experts => "experts",
                Role::Features => "features",
            };
            format!("{whose} over {n}")
        };
        let parts: Vec<String> = self.axes.iter().map(part).collect();
        format!("{} devices: {}", self.devices(), parts.join(", "))
    }

    /// The mesh and the specs as JAX takes them; arguments of all layers share a line if they are cut alike.
    pub(super) fn apply(&self, program: &Candidate) -> String {
        let advice = self.advice(program);
        let folded = |of: &ArgumentCut| memplan_analysis::folded_operation(&of.argument);
        let mut shared: BTreeMap<String, Option<&ArgumentCut>> = BTreeMap::new();
        for of in &advice.arguments {
            let first = shared.entry(folded(of)).or_insert(Some(of));
            *first = first.filter(|first| first.spec == of.spec);
        }
        let mut lines: Vec<String> = Vec::new();
        for of in &advice.arguments {
            let spec = spec_text(&of.spec);
            let name = if shared[&folded(of)].is_some() { folded(of) } else { of.argument.clone() };
            let line = format!("{name}: {spec}");
            if !spec.is_empty() && !lines.contains(&line) {
                lines.push(line);
            }
        }
        let stream = match spec_text(std::slice::from_ref(&advice.examples)) {
            spec if spec.is_empty() => String::new(),
            spec => {
                format!("; jax.lax.with_sharding_constraint(x, {spec}) for what passes from layer to layer")
            }
        };
        format!(
            "{}; in_shardings, and out_shardings of what is updated: {}; all else P(){stream}",
            advice.make_mesh(),
            lines.join(", ")
        )
    }

    pub(super) fn advice(&self, program: &Candidate) -> MeshAdvice {
        let module = &program.module;
        let cuts = Cuttable::of(program).cuts(self);
        let names = |cut: &Cut| -> Vec<Vec<String>> {
            let name = |&axis: &usize| self.axes[axis].0.name().to_string();
            cut.iter().map(|axes| axes.iter().map(name).collect()).collect()
        };
        let entry = module.entry_computation();
        let argument = |(number, cut): (usize, &Option<Cut>)| {
            let id = entry.parameters[number];
            let name = || operation_or_name(module, id).to_string();
            cut.as_ref().map(|cut| ArgumentCut { argument: name(), spec: names(cut) })
        };
        MeshAdvice {
            axes: self
                .axes
                .iter()
                .map(|&(role, devices)| MeshAxis { name: role.name().to_string(), devices })
                .collect(),
            arguments: cuts.iter().enumerate().filter_map(argument).collect(),
            examples: self.of_examples().iter().map(|&axis| self.axes[axis].0.name().to_string()).collect(),
        }
    }

    /// A cut as an array of devices, for XLA.
    fn sharding(&self, cut: &Cut) -> ShardingSpec {
        let used: Vec<usize> = cut.iter().flatten().copied().collect();
        if used.is_empty() {
            return ShardingSpec { kind: ShardingKind::Replicated, group: None, metadata: Vec::new() };
        }
        let others = (0..self.axes.len()).filter(|axis| !used.contains(axis));
        let order: Vec<usize> = used.iter().copied().chain(others).collect();
        let replicas = self.pieces(&order[used.len()..]);
        let copies = (replicas > 1).then_some(replicas);
        let devices = DeviceList::Iota {
            reshape: self.axes.iter().map(|&(_, n)| n).collect(),
            transpose: order.iter().map(|&axis| axis as i64).collect(),
        };
        let tiles = TileAssignment {
            dimensions: cut.iter().map(|axes| self.pieces(axes)).chain(copies).collect(),
            devices,
            replicate_on_last_tile_dim: replicas > 1,
            last_tile_dims: Default::default(),
        };
        ShardingSpec { kind: ShardingKind::Tiled(tiles), group: None, metadata: Vec::new() }
    }
}

impl MeshAdvice {
    /// The call that makes the mesh.
    pub fn make_mesh(&self) -> String {
        let comma = if self.axes.len() == 1 { "," } else { "" };
        let extents: Vec<String> = self.axes.iter().map(|axis| axis.devices.to_string()).collect();
        let names: Vec<String> = self.axes.iter().map(|axis| format!("'{}'", axis.name)).collect();
        format!("jax.make_mesh(({}{comma}), ({}{comma}))", extents.join(", "), names.join(", "))
    }
}

impl ArgumentCut {
    /// The spec as JAX writes it.
    pub fn text(&self) -> String {
        match spec_text(&self.spec) {
            empty if empty.is_empty() => "P()".to_string(),
            text => text,
        }
    }
}

/// `P(None, 'fsdp')`; empty where nothing is cut.
fn spec_text(spec: &[Vec<String>]) -> String {
    let Some(last) = spec.iter().rposition(|axes| !axes.is_empty()) else { return String::new() };
    let one = |axes: &Vec<String>| match &axes[..] {
        [] => "None".to_string(),
        [axis] => format!("'{axis}'"),
        several => {
            format!("({})", several.iter().map(|axis| format!("'{axis}'")).collect::<Vec<_>>().join(", "))
        }
    };
    format!("P({})", spec[..=last].iter().map(one).collect::<Vec<_>>().join(", "))
}

/// The dimensions of the arguments that axes may cut.
struct Cuttable<'a> {
    /// One entry for each parameter; `None` if it is not an array.
    arguments: Vec<Option<Argument<'a>>>,
}

struct Argument<'a> {
    array: &'a ArrayShape,
    /// Whether it is a parameter or optimizer state.
    is_state: bool,
    /// Its dimension of examples.
    batch: Option<usize>,
    /// Its dimension of experts.
    experts: Option<usize>,
    /// Its dimension of heads, features or a vocabulary, and how often that may be cut: the extent of its slowest factor.
    features: Option<(usize, i64)>,
    /// Its dimension of the stream between layers.
    stream: Option<usize>,
    /// Dimensions that are gone through slice by slice.
    stacked: Vec<usize>,
}

impl Cuttable<'_> {
    fn of(program: &Candidate) -> Cuttable<'_> {
        let (module, dimensions) = (&program.module, program.dimensions());
        let entry = module.entry_computation();
        let array = |number: usize| module.shape(entry.parameters[number]).as_array();
        let factors = |number: usize| dimensions.of_parameter(module, number, 0);
        let stacks = stacks(program);
        let batch = program.batch().map(|batch| batch.factor);
        let weights: Vec<usize> = (0..entry.parameters.len())
            .filter(|&number| {
                program.classes[number] == ValueClass::Parameter
                    && array(number).is_some_and(|array| array.rank() > 0)
            })
            .collect();
        let bare = |number: usize| -> Vec<(usize, FactorList)> {
            let all = factors(number).into_iter().enumerate();
            all.filter(|(_, of)| of.first().is_none_or(|factor| !stacks.contains(factor))).collect()
        };
        let mut counts: BTreeMap<FactorId, i64> = BTreeMap::new();
        for &number in &weights {
            let own: FxHashSet<FactorId> = bare(number).into_iter().flat_map(|(_, of)| of).collect();
            for factor in own.into_iter().collect::<std::collections::BTreeSet<_>>() {
                *counts.entry(factor).or_default() += 1;
            }
        }
        // The smaller one of two: features are wider than the stream.
        let stream = counts
            .iter()
            .max_by_key(|&(&factor, &n)| {
                (n, std::cmp::Reverse(dimensions.extent(factor)), std::cmp::Reverse(factor))
            })
            .map(|(&factor, _)| factor);
        // Experts come first in every weight that has them, before two other dimensions.
        let mut experts: FxHashMap<FactorId, bool> = FxHashMap::default();
        for &number in &weights {
            let own = bare(number);
            for (place, (_, of)) in own.iter().enumerate() {
                for &factor in of {
                    let leads = place == 0 && own.len() > 2 && of.len() == 1;
                    *experts.entry(factor).or_insert(true) &= leads;
                }
            }
        }
        let is_expert =
            |factor: FactorId| experts.get(&factor) == Some(&true) && counts.get(&factor) > Some(&1);
        let argument = |number: usize| {
            let array = array(number)?;
            let is_state =
                matches!(program.classes[number], ValueClass::Parameter | ValueClass::OptimizerState);
            let all = factors(number);
            let first = |d: usize| all[d].first().copied();
            let find = |is: &dyn Fn(FactorId) -> bool| (0..all.len()).find(|&d| first(d).is_some_and(is));
            let batch = find(&|factor| Some(factor) == batch).filter(|_| !is_state);
            let stacked: Vec<usize> =
                (0..all.len()).filter(|&d| first(d).is_some_and(|f| stacks.contains(&f))).collect();
            let experts = find(&is_expert);
            let features = find(&|factor| {
                counts.contains_key(&factor)
                    && Some(factor) != stream
                    && !is_expert(factor)
                    && !stacks.contains(&factor)
            });
            let is_wide = array.rank() > stacked.len() + 1;
            let features = features.filter(|_| is_wide || !is_state);
            let features = features.map(|d| (d, dimensions.extent(all[d][0])));
            let stream = find(&|factor| Some(factor) == stream);
            Some(Argument { array, is_state, batch, experts, features, stream, stacked })
        };
        Cuttable { arguments: (0..entry.parameters.len()).map(argument).collect() }
    }

    /// How a mesh cuts each argument.
    fn cuts(&self, mesh: &Mesh) -> Vec<Option<Cut>> {
        self.arguments.iter().map(|argument| argument.as_ref().map(|argument| argument.cut(mesh))).collect()
    }

    /// An estimate of the seconds that collectives of a step take on a mesh: all-reduces of gradients, all-gathers of weights
    /// for both halves, and all-reduces of activations after every second product that is cut. Meshes are tried in its order.
    fn link_seconds(&self, program: &Candidate, mesh: &Mesh, setting: &Setting<'_>) -> f64 {
        let entry = program.module.entry_computation();
        let size = |of: &ArrayShape| {
            of.element_count().unwrap_or(0) as f64 * f64::from(of.element_type.byte_width())
        };
        let extent = |role: Role| mesh.place(role).map_or(1.0, |axis| mesh.axes[axis].1 as f64);
        let [data, state, experts, features] =
            [Role::Data, Role::State, Role::Experts, Role::Features].map(extent);
        // Of devices that are next to each other on the axes below, and a step along this one.
        let rate = |role: Role| {
            let near: f64 = match role {
                Role::Features => 1.0,
                Role::Experts => features,
                Role::State => features * experts,
                Role::Data => features * experts * state,
            };
            let reach = near * extent(role);
            let links = &setting.target.links;
            let link = links.iter().find(|link| link.devices.is_none_or(|devices| devices as f64 >= reach));
            // Devices of one block share the links out of it.
            let sharing = |devices: u64| (devices as f64 / near).max(1.0);
            let block = links.first().and_then(|link| link.devices).filter(|&devices| reach > devices as f64);
            let block = block.map_or(1.0, sharing);
            link.or(links.last()).map_or(f64::INFINITY, |link| link.bandwidth * block)
        };
        let tokens = self.arguments.iter().flatten().filter(|argument| argument.batch.is_some());
        let integers = tokens.filter(|argument| argument.array.element_type.is_integral());
        let tokens = integers.map(|argument| argument.array.element_count().unwrap_or(0)).max();
        let tokens = tokens.unwrap_or_else(|| program.examples().unwrap_or(1).unsigned_abs()) as f64;
        let mut seconds = 0.0;
        for (number, argument) in self.arguments.iter().enumerate() {
            let Some(argument) = argument else { continue };
            if program.classes[number] != ValueClass::Parameter || entry.parameters.len() <= number {
                continue;
            }
            let cut = if argument.features.is_some() { features } else { 1.0 };
            let own = size(argument.array) / cut / if argument.experts.is_some() { experts } else { 1.0 };
            let passes = if program.trains { 3.0 } else { 1.0 };
            if state > 1.0 {
                seconds += passes * own / rate(Role::State);
            }
            if data > 1.0 && program.trains {
                seconds += 2.0 * own / state / rate(Role::Data);
            }
            if let (true, Some(d)) = (features > 1.0 && argument.features.is_some(), argument.stream) {
                let layers: i64 = argument.stacked.iter().map(|&d| argument.array.dimensions[d]).product();
                let stream = tokens / (data * state * experts) * argument.array.dimensions[d] as f64 * 2.0;
                seconds += passes * 2.0 * stream * layers as f64 / 2.0 / rate(Role::Features);
            }
        }
        seconds
    }

    /// The largest extent of experts.
    fn experts(&self) -> i64 {
        let extents = self.arguments.iter().flatten().filter(|argument| argument.is_state);
        extents.filter_map(|argument| Some(argument.array.dimensions[argument.experts?])).max().unwrap_or(1)
    }

    /// Whether so many devices cut the features of most weights.
    fn features_divide(&self, n: i64) -> bool {
        let state = || self.arguments.iter().flatten().filter(|argument| argument.is_state);
        let elements = |argument: &Argument<'_>| argument.array.element_count().unwrap_or(0);
        let cut = state().filter(|argument| argument.features.is_some_and(|(_, extent)| extent % n == 0));
        2 * cut.map(elements).sum::<u64>() > state().map(elements).sum()
    }
}

impl Argument<'_> {
    fn cut(&self, mesh: &Mesh) -> Cut {
        /// Vectors of fewer elements stay whole: every product would wait for them.
        const LARGE: u64 = 1 << 20;
        let mut cut: Cut = vec![Vec::new(); self.array.rank()];
        let divides = |extent: i64, axes: &[usize]| extent > 0 && extent % mesh.pieces(axes) == 0;
        if let Some(d) = self.batch {
            let axes = mesh.of_examples();
            if divides(self.array.dimensions[d], &axes) {
                cut[d] = axes;
            }
        }
        if let (Some(d), Some(axis)) = (self.experts, mesh.place(Role::Experts))
            && self.is_state
            && divides(self.array.dimensions[d], &[axis])
        {
            cut[d].push(axis);
        }
        if let (Some((d, extent)), Some(axis)) = (self.features, mesh.place(Role::Features))
            && divides(extent, &[axis])
        {
            cut[d].push(axis);
        }
        let is_large =
            self.array.rank() > self.stacked.len() + 1 || self.array.element_count().unwrap_or(0) > LARGE;
        if let Some(axis) = mesh.place(Role::State)
            && self.is_state
            && is_large
        {
            // A dimension other than the stream is better: else rows that are looked up in a table would be cut along the
            // stream, too. Among the others, the largest that nothing cuts yet is better.
            let fits = |&d: &usize| {
                let axes: Vec<usize> = cut[d].iter().copied().chain([axis]).collect();
                !self.stacked.contains(&d) && divides(self.array.dimensions[d], &axes)
            };
            let best = (0..cut.len()).filter(fits).max_by_key(|&d| {
                let is_stream = self.stream == Some(d);
                (!is_stream, cut[d].is_empty(), self.array.dimensions[d], std::cmp::Reverse(d))
            });
            if let Some(d) = best {
                cut[d].push(axis);
            }
        }
        cut
    }
}

/// The factors that loops go through slice by slice.
fn stacks(program: &Candidate) -> FxHashSet<FactorId> {
    let (module, dimensions) = (&program.module, program.dimensions());
    let mut found = FxHashSet::default();
    let loops = module.instructions.values().filter(|instruction| instruction.op == Op::While);
    for &body in loops.flat_map(|instruction| instruction.called.first()) {
        for &id in &module.computations[body].instructions {
            let instruction = &module.instructions[id];
            let Op::DynamicSlice { slice_sizes } = &instruction.op else { continue };
            for (d, &size) in dimensions.of_array(instruction.operands[0]).zip(slice_sizes) {
                let factors = dimensions.factors_of(d);
                let extent: i64 = factors.iter().map(|&factor| dimensions.extent(factor)).product();
                if size == 1 && extent > 1 {
                    found.extend(factors);
                }
            }
        }
    }
    found
}

/// Meshes of these numbers of devices, those that need the fewest transfers first.
pub(super) fn all(program: &Candidate, devices: &[i64], setting: &Setting<'_>) -> Vec<Mesh> {
    /// More devices than this share no features: their products would be too small.
    const MOST_FEATURES: i64 = 64;
    let cuttable = Cuttable::of(program);
    let examples = program.examples();
    let near = setting.target.links.first().and_then(|link| link.devices).map_or(8, |devices| devices as i64);
    let mut list: Vec<Mesh> = Vec::new();
    for &n in devices.iter().filter(|&&n| n > 1) {
        let divisors = |n: i64| (1..=n).filter(move |d| n % d == 0);
        for features in divisors(n).filter(|&t| t <= MOST_FEATURES && (t == 1 || cuttable.features_divide(t)))
        {
            let rest = n / features;
            if rest > 1 && examples.is_none_or(|examples| examples % rest != 0) {
                continue;
            }
            let experts = divisors(rest).filter(|&e| cuttable.experts() % e == 0).max().unwrap_or(1);
            for experts in [1, experts] {
                let rest = rest / experts;
                // State on every device, within a block of near devices, or cut over all.
                let blocks = if program.trains { vec![1, near.min(16) / features, rest] } else { vec![1] };
                for state in blocks.into_iter().filter(|&state| state > 0 && rest % state == 0) {
                    let mesh = Mesh::new(&[
                        (Role::Data, rest / state),
                        (Role::State, state),
                        (Role::Experts, experts),
                        (Role::Features, features),
                    ]);
                    if !list.contains(&mesh) {
                        list.push(mesh);
                    }
                }
            }
        }
    }
    list.retain(|mesh| state_bytes(program, &cuttable, mesh, setting) <= setting.options.limit.0);
    list.sort_by(|a, b| {
        let [a, b] = [a, b].map(|mesh| cuttable.link_seconds(program, mesh, setting) * mesh.devices() as f64);
        a.total_cmp(&b)
    });
    /// Of large programs fewer are tried: so many instructions together, but some in any case.
    const INSTRUCTIONS: usize = 60_000;
    const LEAST: usize = 4;
    const MOST: usize = 24;
    let most = (INSTRUCTIONS / program.module.instructions.len().max(1)).clamp(LEAST, MOST);
    // If nothing fits on few devices, it may on most of them: the last mesh is one of those.
    let largest = list.iter().map(Mesh::devices).max();
    let roomy = list.iter().position(|mesh| Some(mesh.devices()) == largest).filter(|&at| at >= most);
    let roomy = roomy.map(|at| list.remove(at));
    list.truncate(most - roomy.iter().len());
    list.extend(roomy);
    list
}

/// Bytes of parameters and optimizer state on each device: no program needs less.
fn state_bytes(program: &Candidate, cuttable: &Cuttable<'_>, mesh: &Mesh, setting: &Setting<'_>) -> u64 {
    let entry = program.module.entry_computation();
    let cuts = cuttable.cuts(mesh);
    let bytes = |(number, cut): (usize, &Option<Cut>)| {
        let cut = cut.as_ref()?;
        let mut array = program.module.shape(entry.parameters[number]).as_array()?.clone();
        for (extent, axes) in array.dimensions.iter_mut().zip(cut) {
            *extent /= mesh.pieces(axes).max(1);
        }
        Some(setting.target.size_of(&Shape::Array(array)).0)
    };
    cuts.iter().enumerate().filter_map(bytes).sum()
}

/// The program of one device.
pub(super) fn carry_out(
    program: &Candidate,
    mesh: &Mesh,
    setting: &Setting<'_>,
) -> Result<Candidate, String> {
    let rest = mesh.pieces(&mesh.of_examples());
    if rest > 1 {
        let examples = program.examples().ok_or("the program has no batch dimension")?;
        if examples % rest != 0 {
            // The batch may have changed before.
            return Err(format!("{examples} examples do not divide among {rest} devices"));
        }
    }
    let mut module = program.module.clone();
    let cuts = Cuttable::of(program).cuts(mesh);
    annotate(&mut module, mesh, &cuts);
    let machine = setting.compiler.on(setting.target);
    let of_one = partition(&module, &Context { target: &machine }).map_err(|error| error.to_string())?;
    let of_one = of_one.ok_or("the program cannot be cut so")?;
    memplan_ir::verify(&of_one.module).map_err(|errors| errors.to_string())?;
    Ok(program.with_module(of_one.module).of_one_device(rest))
}

/// Writes shardings on the arguments, and on the results that live in their memory.
fn annotate(module: &mut Module, mesh: &Mesh, cuts: &[Option<Cut>]) {
    let parameters = module.entry_computation().parameters.clone();
    for (&parameter, cut) in parameters.iter().zip(cuts) {
        if let Some(cut) = cut {
            let spec = Sharding::Single(Box::new(mesh.sharding(cut)));
            module.instructions[parameter].extras_mut().sharding = Some(spec);
        }
    }
    let root = module.entry_computation().root;
    let leaves: Vec<_> = module.shape(root).leaves().into_iter().map(|(index, _)| index).collect();
    let unknown = || ShardingSpec { kind: ShardingKind::Unknown, group: None, metadata: Vec::new() };
    let spec = |index| {
        let alias = module.config.input_output_alias.iter().find(|alias| alias.output_index == index)?;
        let cut = cuts.get(alias.parameter as usize).filter(|_| alias.parameter_index.is_root())?;
        cut.as_ref().map(|cut| mesh.sharding(cut))
    };
    let specs = leaves.into_iter().map(|index| spec(index).unwrap_or_else(unknown)).collect();
    let is_tuple = module.shape(root).is_tuple();
    if is_tuple {
        module.instructions[root].extras_mut().sharding = Some(Sharding::Tuple(specs));
    }
}
