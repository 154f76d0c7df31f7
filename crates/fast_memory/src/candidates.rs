//! Finds the candidates: who writes what, who reads it where, and what control flow hands over.
//!
//! One walk over the schedule lists the events of every value in every computation; then views are put inside of the
//! events that hand values over, and values that must share memory become one candidate.

use cranelift_entity::{EntityRef, SecondaryMap};
use memplan_analysis::{Costs, Facts, LiveRange, Time, ValueId, ValueKind, union_of_ranges};
use memplan_ir::{ComputationId, Effect, EntitySet, InstructionId, Module, Op, Role, Shape, Use, Users};
use memplan_memory::Target;
use petgraph::unionfind::UnionFind;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

use super::idle::IdleTime;
use super::model::{Candidate, CopiedIn, CopiedOut, Event, Evicted, View, Whole, main_cost};
use super::options::{FastMemoryOptions, Selection};
use super::parts::{Finder, Parts, exists_from};
use super::worth::Worth;

/// Lists what may be in fast memory, and parts of all values but those of `whole`; without that, no parts. Close to linear
/// in positions and operands.
pub(super) fn candidates(
    module: &Module,
    facts: &Facts,
    costs: &Costs,
    target: &Target,
    options: &FastMemoryOptions,
    idle: &IdleTime<'_>,
    whole: Option<&EntitySet<ValueId>>,
) -> Vec<Candidate> {
    let users = Users::new(module);
    let worth = Worth::new(module, costs, target, options);
    let finder = Finder { module, facts, costs, target, options, idle, users: &users, worth: &worth };
    let parts = whole.map(|whole| finder.find(whole)).unwrap_or_default();
    let mut build = Build {
        module,
        facts,
        costs,
        target,
        options,
        idle,
        worth: &worth,
        parts,
        users: &users,
        is_rigid: EntitySet::new(),
        is_pinned: EntitySet::new(),
        is_phi_input: EntitySet::new(),
        writes: SecondaryMap::new(),
        events: FxHashMap::default(),
        merging: FxHashMap::default(),
        returned: FxHashMap::default(),
    };
    facts.flow.phi_inputs.iter().for_each(|&(_, input)| {
        build.is_phi_input.insert(input);
    });
    build.look_at_definitions();
    build.look_at_uses();
    build.candidates()
}

struct Build<'a> {
    module: &'a Module,
    facts: &'a Facts,
    costs: &'a Costs,
    target: &'a Target,
    options: &'a FastMemoryOptions,
    idle: &'a IdleTime<'a>,
    worth: &'a Worth<'a>,
    users: &'a Users,
    parts: Parts,
    /// Values that pass where no operand can be exchanged: they are in one memory all their lives.
    is_rigid: EntitySet<ValueId>,
    /// Values that something needs in main memory.
    is_pinned: EntitySet<ValueId>,
    /// Values that merge with others where control flow meets.
    is_phi_input: EntitySet<ValueId>,
    /// What writing each value to main memory costs.
    writes: SecondaryMap<ValueId, f64>,
    /// Events of each value in each computation.
    events: FxHashMap<(ValueId, ComputationId), Vec<Event>>,
    /// Operands by which a value flows into others that share its memory.
    merging: FxHashMap<ValueId, Vec<Use>>,
    /// Operands of the entry's root.
    returned: FxHashMap<ValueId, Vec<Use>>,
}

impl Build<'_> {
    /// What instructions write, and which of it has to be in main memory.
    fn look_at_definitions(&mut self) {
        for (value, definition) in self.facts.flow.values.iter() {
            let positions = &self.facts.flow.positions;
            let id = positions.instruction(definition.definition);
            let instruction = &self.module.instructions[id];
            if definition.kind != ValueKind::Written {
                continue;
            }
            if !is_kernel(&instruction.op) && !instruction.op.is_allocation() {
                self.is_pinned.insert(value);
                continue;
            }
            let index = positions.shape_index(definition.definition);
            let work = self.costs.work(id);
            let written = work.accesses.iter().find(|a| a.operand.is_none() && a.index == *index);
            self.writes[value] = written.map_or(0.0, |access| self.worth.of(id, access.bytes.0 as f64));
        }
    }

    fn look_at_uses(&mut self) {
        for &id in &self.facts.line.instructions {
            let instruction = &self.module.instructions[id];
            match &instruction.op {
                // What is handed on is used where it arrives.
                Op::Tuple | Op::GetTupleElement { .. } | Op::Bitcast | Op::Parameter { .. } => {}
                Op::While | Op::Conditional | Op::Call { .. } => self.hand_over(id),
                op if is_kernel(op) => self.read(id),
                _ => self.pin_operands(id),
            }
            if self.module.computations[instruction.parent].root == id {
                self.return_from(id);
            }
        }
    }

    /// An operation whose operands have to be in main memory: one that communicates, or that nobody knows.
    fn pin_operands(&mut self, id: InstructionId) {
        for &operand in &self.module.instructions[id].operands {
            for position in self.facts.flow.positions.of(operand) {
                if let Some(value) = self.facts.flow.value_at(position) {
                    self.is_pinned.insert(value);
                    self.is_rigid.insert(value);
                }
            }
        }
    }

    /// A kernel reads its operands.
    fn read(&mut self, id: InstructionId) {
        let (module, flow) = (self.module, &self.facts.flow);
        let time = self.facts.line.time(id);
        let in_place = self.facts.in_place.must_alias(module, id);
        for (k, &operand) in module.instructions[id].operands.iter().enumerate() {
            if module.shape(operand).is_tuple() {
                flow.positions.of(operand).filter_map(|p| flow.value_at(p)).for_each(|value| {
                    self.is_rigid.insert(value);
                });
            }
            let Some(value) = flow.value_of(operand) else { continue };
            let it = Use { user: id, operand: k as u32 };
            let is_part = self.parts.uses.contains(&it);
            let cost = if is_part { 0.0 } else { self.worth.of_operand(id, it.operand) };
            let merges = in_place.iter().any(|pair| pair.operand == k as u32);
            if merges {
                self.merging.entry(value).or_default().push(it);
            }
            let range = LiveRange { start: time, end: time + 1 };
            // What is overwritten is where the result is, and a part is cut out of main memory.
            let fast = if merges || is_part { None } else { Some(0.0) };
            self.add(value, id, Event::new(range, cost, fast, it));
        }
    }

    /// Control flow hands its operands to computations.
    fn hand_over(&mut self, id: InstructionId) {
        let (module, flow) = (self.module, &self.facts.flow);
        let instruction = &module.instructions[id];
        for (k, &operand) in instruction.operands.iter().enumerate() {
            if instruction.op == Op::Conditional && k == 0 {
                continue;
            }
            let given = &module.instructions[operand];
            let edges: Vec<(Use, InstructionId)> = match (&given.op, module.shape(operand)) {
                (_, Shape::Array(_)) => vec![(Use { user: id, operand: k as u32 }, operand)],
                (Op::Tuple, _) if self.users.of(operand).len() == 1 => {
                    let elements = given.operands.iter().enumerate();
                    elements.map(|(j, &e)| (Use { user: operand, operand: j as u32 }, e)).collect()
                }
                _ => Vec::new(),
            };
            // Where no single operand shows a value, none can be exchanged.
            let exchanged = edges.iter().filter(|(_, e)| module.shape(*e).as_array().is_some());
            let shown: FxHashSet<ValueId> =
                exchanged.filter_map(|(_, element)| flow.value_of(*element)).collect();
            for value in flow.positions.of(operand).filter_map(|p| flow.value_at(p)) {
                if !shown.contains(&value) {
                    self.is_rigid.insert(value);
                }
            }
            let begin = self.facts.line.begin(id).min(self.facts.line.time(operand));
            let range = LiveRange { start: begin, end: self.facts.line.time(id) + 1 };
            for (it, element) in edges {
                let Some(value) = flow.value_of(element) else { continue };
                if self.is_merged_by(id, k, it, value) {
                    self.merging.entry(value).or_default().push(it);
                    self.add(value, id, Event::new(range, 0.0, None, it));
                } else {
                    self.add(value, id, Event::new(range, 0.0, Some(0.0), it));
                }
            }
        }
    }

    /// Whether control flow merges an operand with other values: what comes in is not what the computation sees, or
    /// it comes out merged.
    fn is_merged_by(&self, id: InstructionId, k: usize, it: Use, value: ValueId) -> bool {
        let (module, flow) = (self.module, &self.facts.flow);
        let called = &module.instructions[id].called;
        let callee = match module.instructions[id].op {
            Op::While | Op::Call { .. } => called[0],
            _ => called[k - 1],
        };
        let parameters = &module.computations[callee].parameters;
        let parameter = match module.instructions[id].op {
            Op::Call { .. } => parameters[k],
            _ => parameters[0],
        };
        let mut positions = flow.positions.of(parameter);
        let at = if it.user == id {
            positions.next()
        } else {
            flow.positions.find(parameter, &[it.operand].into())
        };
        let is_conditional = module.instructions[id].op == Op::Conditional;
        at.and_then(|p| flow.value_at(p)) != Some(value)
            || is_conditional && self.is_phi_input.contains(value)
    }

    /// What the entry returns is in main memory at the end. What other computations return either merges with what
    /// their callers see, or is passed on as it is.
    fn return_from(&mut self, root: InstructionId) {
        let (module, flow) = (self.module, &self.facts.flow);
        let computation = module.instructions[root].parent;
        let is_entry = computation == module.entry;
        let is_tuple = module.instructions[root].op == Op::Tuple;
        if !is_entry {
            let caller = self.facts.graph.caller(computation);
            if caller.is_some_and(|id| matches!(module.instructions[id].op, Op::Call { .. })) {
                for value in flow.positions.of(root).filter_map(|p| flow.value_at(p)) {
                    self.is_rigid.insert(value);
                }
            }
            return;
        }
        let (time, end) = (self.facts.line.time(root), self.facts.line.end());
        for position in flow.positions.of(root) {
            let Some(value) = flow.value_at(position) else { continue };
            match *flow.positions.shape_index(position).0.as_slice() {
                [j] if is_tuple => {
                    let it = Use { user: root, operand: j };
                    self.returned.entry(value).or_default().push(it);
                    let event = Event::new(LiveRange { start: time, end }, 0.0, None, it);
                    self.add(value, root, event);
                }
                _ => {
                    self.is_rigid.insert(value);
                    self.is_pinned.insert(value);
                }
            }
        }
    }

    fn add(&mut self, value: ValueId, user: InstructionId, event: Event) {
        let computation = self.module.instructions[user].parent;
        let events = self.events.entry((value, computation)).or_default();
        // Several operands of one instruction are one event.
        match events.last_mut() {
            Some(last) if last.range.end == event.range.end => {
                last.main += event.main;
                last.range.start = last.range.start.min(event.range.start);
                last.fast = last.fast.zip(event.fast).map(|(a, b)| a + b);
                last.uses.extend(event.uses);
            }
            _ => events.push(event),
        }
    }

    fn candidates(mut self) -> Vec<Candidate> {
        let flow = &self.facts.flow;
        let mut sets: UnionFind<u32> = UnionFind::new(flow.values.len());
        for &(phi, input) in &flow.phi_inputs {
            sets.union(phi.as_u32(), input.as_u32());
        }
        for &id in &self.facts.line.instructions {
            for (before, after) in
                memplan_analysis::in_place_values(self.module, flow, &self.facts.in_place, id)
            {
                sets.union(before.as_u32(), after.as_u32());
            }
        }
        let labels = sets.into_labeling();
        let mut groups: Vec<SmallVec<[ValueId; 1]>> = vec![SmallVec::new(); flow.values.len()];
        for value in flow.values.keys() {
            groups[labels[value.index()] as usize].push(value);
        }
        let mut views = self.views();
        let parts = std::mem::take(&mut self.parts.candidates);
        groups
            .into_iter()
            .filter(|values| !values.is_empty())
            .filter_map(|values| self.candidate(values, &mut views))
            .chain(parts)
            .collect()
    }

    fn candidate(
        &mut self,
        values: SmallVec<[ValueId; 1]>,
        views: &mut FxHashMap<ValueId, Vec<View>>,
    ) -> Option<Candidate> {
        let bytes = values.iter().map(|&v| self.bytes(v)).collect::<Option<Vec<u64>>>()?.into_iter().max()?;
        if bytes == 0 || bytes > self.options.capacity.min(self.options.largest) {
            return None;
        }
        let is_read = |value: &ValueId| views.get(value).is_some_and(|views| !views.is_empty());
        if self.options.selection == Selection::AsXla && !values.iter().any(is_read) {
            return None;
        }
        let has_parts = values.iter().any(|&value| self.parts.values.contains(value));
        let whole = if has_parts { None } else { self.whole(&values, bytes, views) };
        let write = values.iter().map(|&v| self.writes[v]).sum();
        let evicted = if !has_parts && values.len() == 1 { self.evicted(values[0], bytes) } else { None };
        let movable = values.iter().filter(|&&v| !self.is_rigid.contains(v));
        let mut views: Vec<View> = movable.flat_map(|v| views.remove(v).unwrap_or_default()).collect();
        views.retain(|view| view.events.iter().any(|e| e.main > 0.0 || !e.inside.is_empty()));
        if whole.is_none() && views.is_empty() {
            return None;
        }
        let life = self.life(&values);
        let (is_part, room, carried) = (false, 0.0, SmallVec::new());
        Some(Candidate { values, is_part, bytes, whole, write, room, life, evicted, carried, views })
    }

    /// Padded bytes of an array that may be in fast memory.
    fn bytes(&self, value: ValueId) -> Option<u64> {
        let flow = &self.facts.flow;
        let mut bytes = 0;
        for &position in flow.positions_of(value) {
            let id = flow.positions.instruction(position);
            let part = self.module.shape(id).subshape(flow.positions.shape_index(position))?;
            let Shape::Array(array) = part else { return None };
            if array.rank() == 0 || array.is_dynamic() || array.memory_space() != 0 || array.layout.is_none()
            {
                return None;
            }
            bytes = bytes.max(self.target.size_of(part).0);
        }
        let definition = flow.positions.instruction(flow.values[value].definition);
        let is_code = matches!(self.module.instructions[definition].op, Op::Constant(_))
            && bytes <= self.target.embedded_constant_bytes.0;
        (!is_code).then_some(bytes)
    }

    /// When values that are nothing but temporaries are live.
    fn life(&self, values: &[ValueId]) -> Vec<LiveRange> {
        let live = &self.facts.live;
        match values.iter().any(|&v| self.is_given(v) || live.is_live_out(v)) {
            true => Vec::new(),
            false => union_of_ranges(values.iter().map(|&v| live.of(v)).collect()),
        }
    }

    /// Whether a value is in main memory before anything is done about it.
    fn is_given(&self, value: ValueId) -> bool {
        let flow = &self.facts.flow;
        let definition = flow.positions.instruction(flow.values[value].definition);
        flow.values[value].kind == ValueKind::Parameter
            || matches!(self.module.instructions[definition].op, Op::Constant(_))
    }

    fn whole(&self, values: &[ValueId], bytes: u64, views: &FxHashMap<ValueId, Vec<View>>) -> Option<Whole> {
        let facts = self.facts;
        let mut whole = Whole {
            resident: Vec::new(),
            busy: Vec::new(),
            cost: 0.0,
            copied_in: Vec::new(),
            copied_out: Vec::new(),
        };
        if values.len() == 1 && (self.is_given(values[0]) || facts.live.is_live_out(values[0])) {
            return None;
        }
        for &value in values {
            let range = facts.live.of(value);
            if self.is_given(value) {
                // It stays in main memory; what it flows into begins as a copy of it.
                let uses = self.merging.get(&value).cloned().unwrap_or_default();
                if uses.is_empty() || self.is_rigid.contains(value) {
                    return None;
                }
                for it in uses {
                    let (begin, end) = self.moment(it);
                    let start = self.idle.fetch_start(it.user, range.start, bytes as f64);
                    debug_assert!(start.time <= begin);
                    whole.busy.push(LiveRange { start: start.time, end });
                    whole.cost +=
                        self.costs.frequency(self.module.instructions[it.user].parent) * bytes as f64;
                    whole.copied_in.push(CopiedIn { value, uses: vec![it], start });
                }
                whole.cost += views.get(&value).into_iter().flatten().map(main_cost).sum::<f64>();
                continue;
            }
            if self.is_pinned.contains(value) {
                return None;
            }
            whole.resident.push(value);
            if facts.live.is_live_out(value) {
                let definition = facts.flow.positions.instruction(facts.flow.values[value].definition);
                if self.module.instructions[definition].parent != self.module.entry {
                    return None;
                }
                let (done_before, mut end) = self.idle.eviction_end(definition, bytes as f64);
                let root = self.module.entry_computation().root;
                for event in views.get(&value).into_iter().flatten().flat_map(|view| &view.events) {
                    if event.uses.iter().all(|it| it.user != root) {
                        end = end.max(event.range.end);
                    }
                }
                let uses = self.returned.get(&value)?.clone();
                whole.copied_out.push(CopiedOut { value, uses, done_before });
                whole.cost += bytes as f64;
                whole.busy.push(LiveRange { start: range.start, end });
                continue;
            }
            whole.busy.push(range);
        }
        whole.busy = union_of_ranges(whole.busy);
        Some(whole)
    }

    /// When an operand is needed, and until when.
    fn moment(&self, it: Use) -> (Time, Time) {
        let line = &self.facts.line;
        match self.users.of(it.user) {
            [user] if self.module.instructions[it.user].op == Op::Tuple => {
                (line.begin(*user).min(line.time(it.user)), line.time(*user) + 1)
            }
            _ => (line.begin(it.user), line.time(it.user) + 1),
        }
    }

    fn evicted(&self, value: ValueId, bytes: u64) -> Option<Evicted> {
        let flow = &self.facts.flow;
        let definition = flow.positions.instruction(flow.values[value].definition);
        if flow.values[value].kind != ValueKind::Written
            || self.is_given(value)
            || self.is_pinned.contains(value)
            || self.is_rigid.contains(value)
            || self.module.instructions[definition].op.is_allocation()
        {
            return None;
        }
        let parent = self.module.instructions[definition].parent;
        let start = self.facts.line.time(definition);
        let (done_before, end) = self.idle.eviction_end(definition, bytes as f64);
        let cost = self.costs.frequency(parent) * bytes as f64;
        Some(Evicted { cost, busy: LiveRange { start, end }, done_before })
    }

    /// The views of every value, inner ones inside of the events that hand the value over.
    fn views(&mut self) -> FxHashMap<ValueId, Vec<View>> {
        let facts = self.facts;
        let mut lists: FxHashMap<(ValueId, ComputationId), Vec<Event>> = std::mem::take(&mut self.events);
        let mut keys: Vec<(ValueId, ComputationId)> = lists.keys().copied().collect();
        let mut depth: SecondaryMap<ComputationId, u32> = SecondaryMap::new();
        for &computation in facts.graph.sequential().iter().rev() {
            let caller = facts.graph.caller(computation);
            depth[computation] = caller.map_or(0, |id| depth[self.module.instructions[id].parent] + 1);
        }
        // The innermost first, so that a view is whole when it is put inside.
        keys.sort_unstable_by_key(|&(value, c)| (value, std::cmp::Reverse(depth[c]), c));
        let mut views: FxHashMap<ValueId, Vec<View>> = FxHashMap::default();
        for (value, computation) in keys {
            let Some(bytes) = self.bytes(value) else { continue };
            let events = lists.remove(&(value, computation)).expect("each key is taken once");
            let view = self.view(value, computation, events, bytes);
            let definition = facts.flow.positions.instruction(facts.flow.values[value].definition);
            let home = self.module.instructions[definition].parent;
            // A loop's state is defined in its body and its condition.
            let is_home = computation == home
                || facts.flow.values[value].kind == ValueKind::LoopPhi && {
                    let caller = facts.graph.caller(home);
                    caller.is_some() && facts.graph.caller(computation) == caller
                };
            if is_home {
                views.entry(value).or_default().push(view);
                continue;
            }
            let around = facts.graph.caller(computation).and_then(|caller| {
                let end = facts.line.time(caller) + 1;
                let outer = lists.get_mut(&(value, self.module.instructions[caller].parent))?;
                outer.iter_mut().find(|event| event.range.end == end)
            });
            match around {
                Some(event) => event.inside.push(view),
                // It came here on a way that no operand shows.
                None => {
                    self.is_rigid.insert(value);
                }
            }
        }
        views
    }

    fn view(&self, value: ValueId, computation: ComputationId, mut events: Vec<Event>, bytes: u64) -> View {
        let earliest = exists_from(self.module, self.facts, value, computation);
        for event in &mut events {
            event.start = self.idle.fetch_start(event.uses[0].user, earliest, bytes as f64);
            event.latest = self.idle.latest_start(event.uses[0].user, event.start);
            // What has to be in main memory inside keeps the value there.
            if event.inside.iter().any(|view| view.events.iter().any(|e| e.fast.is_none())) {
                event.fast = None;
            }
        }
        let fetch = self.costs.frequency(computation) * bytes as f64;
        View { value, computation, fetch, wait: self.options.time_weight * fetch, events }
    }
}

/// Whether an operation is a kernel that reads and writes memory where it finds it.
pub(super) fn is_kernel(op: &Op) -> bool {
    let traits = op.traits();
    match traits.role {
        Role::Provides | Role::Regroups => true,
        Role::PassesOn => matches!(op, Op::Bitcast),
        // What is dynamic is read and written under another extent than its buffer's.
        Role::Computes => {
            traits.effect == Effect::None && !matches!(op, Op::SetDimensionSize { .. } | Op::DynamicReshape)
        }
        _ => false,
    }
}
