//! Random plans of random programs, judged by running them.
//!
//! Every element of every value is a number of its own. Running a program moves these numbers through the planned
//! bytes, with kernels as unfriendly as they may be: an elementwise kernel takes elements in either order, any other
//! one fills its result with garbage before it reads. A plan is right when every read finds the numbers it should.
//! The checker must say the same of each plan.

use std::fmt::Write;

use crate::support::Case;

const ARENA: usize = 9;

/// One array of the program: what computes it, and where it lies.
#[derive(Clone)]
struct Node {
    name: String,
    kind: Kind,
    len: usize,
    offset: usize,
}

#[derive(Clone)]
enum Kind {
    /// Given from outside: an argument, a part of the loop state, a result of the loop.
    Given,
    Negate(usize),
    Copy(usize),
    Add(usize, usize),
    Reverse(usize),
    Concatenate(usize, usize),
}

/// A program: instructions, perhaps a loop over some of them, and more instructions.
struct RandomProgram {
    before: Vec<Node>,
    /// Numbers of nodes in `before` that start the state, and where the state lies.
    state: Vec<(usize, usize)>,
    body: Vec<Node>,
    body_root: Vec<usize>,
    condition: Vec<Node>,
    /// Begins with the nodes of `before` and the results of the loop.
    after: Vec<Node>,
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n as u64) as usize
    }

    /// Adds a few instructions, placed at random but often where they could be right.
    fn extend(&mut self, nodes: &mut Vec<Node>, n: usize, prefix: &str) {
        for _ in 0..n {
            let a = self.below(nodes.len());
            let same: Vec<usize> = (0..nodes.len()).filter(|&b| nodes[b].len == nodes[a].len).collect();
            let b = same[self.below(same.len())];
            let (kind, len) = match self.below(6) {
                0 => (Kind::Negate(a), nodes[a].len),
                1 => (Kind::Copy(a), nodes[a].len),
                2 | 3 => (Kind::Add(a, b), nodes[a].len),
                4 => (Kind::Reverse(a), nodes[a].len),
                _ if nodes[a].len <= 2 => (Kind::Concatenate(a, b), 2 * nodes[a].len),
                _ => (Kind::Reverse(a), nodes[a].len),
            };
            let offset = match self.below(3) {
                0 if nodes[a].offset + len <= ARENA => nodes[a].offset,
                _ => self.below(ARENA + 1 - len),
            };
            nodes.push(Node { name: format!("{prefix}{}", nodes.len()), kind, len, offset });
        }
    }

    fn program(&mut self) -> RandomProgram {
        let given = |name: String, len, offset| Node { name, kind: Kind::Given, len, offset };
        let mut before = vec![given("p".into(), 1 + self.below(2), 100)];
        let n = 1 + self.below(3);
        self.extend(&mut before, n, "a");
        let mut program = RandomProgram {
            after: before.clone(),
            before,
            state: Vec::new(),
            body: Vec::new(),
            body_root: Vec::new(),
            condition: Vec::new(),
        };
        if self.below(2) == 0 {
            for i in 0..1 + self.below(2) {
                let init = 1 + self.below(program.before.len() - 1);
                let Node { len, offset, .. } = program.before[init];
                program.state.push((init, offset));
                program.body.push(given(format!("b{i}"), len, offset));
                program.condition.push(given(format!("c{i}"), len, offset));
                program.after.push(given(format!("r{i}"), len, offset));
            }
            let n = self.below(4);
            self.extend(&mut program.body, n, "b");
            let n = self.below(2);
            self.extend(&mut program.condition, n, "c");
            for i in 0..program.state.len() {
                let fits = |node: &Node| node.len == program.body[i].len;
                let fitting: Vec<usize> =
                    (0..program.body.len()).filter(|&j| fits(&program.body[j])).collect();
                let root = fitting[self.below(fitting.len())];
                program.body_root.push(root);
                // Most often the new state is where it has to be.
                if root >= program.state.len() && self.below(4) > 0 {
                    program.body[root].offset = program.body[i].offset;
                }
            }
        }
        let n = 1 + self.below(3);
        self.extend(&mut program.after, n, "z");
        program
    }
}

impl RandomProgram {
    fn text(&self) -> String {
        let mut text = String::from("HloModule m, is_scheduled=true\n");
        let shape = |len: usize| format!("s8[{len}]{{0}}");
        let tuple: Vec<String> = self.body[..self.state.len()].iter().map(|node| shape(node.len)).collect();
        let tuple = format!("({})", tuple.join(", "));
        let places = (0..).zip(&self.state).map(|(i, (_, offset))| format!("{{{i}}} temp+{offset} "));
        let places: String = places.collect();
        let emit = |text: &mut String, nodes: &[Node], from: usize| {
            for node in &nodes[from..] {
                let name = |i: &usize| nodes[*i].name.clone();
                let op = match &node.kind {
                    Kind::Given => continue,
                    Kind::Negate(a) => format!("negate({})", name(a)),
                    Kind::Copy(a) => format!("copy({})", name(a)),
                    Kind::Add(a, b) => format!("add({}, {})", name(a), name(b)),
                    Kind::Reverse(a) => format!("reverse({}), dimensions={{0}}", name(a)),
                    Kind::Concatenate(a, b) => {
                        format!("concatenate({}, {}), dimensions={{0}}", name(a), name(b))
                    }
                };
                writeln!(text, "  {} = {} {op} // temp+{}", node.name, shape(node.len), node.offset).unwrap();
            }
        };
        let elements = |text: &mut String, nodes: &[Node], of: &str| {
            for (i, node) in nodes.iter().enumerate() {
                let (name, offset, shape) = (&node.name, node.offset, shape(node.len));
                writeln!(text, "  {name} = {shape} get-tuple-element({of}), index={i} // temp+{offset}")
                    .unwrap();
            }
        };
        let n = self.state.len();
        if n > 0 {
            writeln!(text, "body {{\n  bp = {tuple} parameter(0) // {places}").unwrap();
            elements(&mut text, &self.body[..n], "bp");
            emit(&mut text, &self.body, n);
            let names: Vec<_> = self.body_root.iter().map(|&i| self.body[i].name.clone()).collect();
            let root_places = (0..)
                .zip(&self.body_root)
                .map(|(i, &root)| format!("{{{i}}} temp+{} ", self.body[root].offset));
            let root_places: String = root_places.collect();
            writeln!(text, "  ROOT br = {tuple} tuple({}) // {root_places}\n}}", names.join(", ")).unwrap();
            writeln!(text, "condition {{\n  cp = {tuple} parameter(0) // {places}").unwrap();
            elements(&mut text, &self.condition[..n], "cp");
            emit(&mut text, &self.condition, n);
            let last = &self.condition[self.condition.len() - 1].name;
            writeln!(text, "  ROOT cr = pred[] custom-call({last}), custom_call_target=\"f\" // flag+0\n}}")
                .unwrap();
        }
        writeln!(text, "ENTRY main {{\n  p = {} parameter(0) // arg0+0", shape(self.before[0].len)).unwrap();
        emit(&mut text, &self.before, 0);
        if n > 0 {
            let inits: Vec<_> = self.state.iter().map(|&(i, _)| self.before[i].name.clone()).collect();
            writeln!(text, "  t = {tuple} tuple({}) // {places}", inits.join(", ")).unwrap();
            writeln!(text, "  w = {tuple} while(t), condition=condition, body=body // {places}").unwrap();
            elements(&mut text, &self.after[self.before.len()..][..n], "w");
        }
        emit(&mut text, &self.after, self.before.len());
        let last = self.after.last().unwrap();
        writeln!(
            text,
            "  ROOT r = {} reverse({}), dimensions={{0}} // out+0\n}}",
            shape(last.len),
            last.name
        )
        .unwrap();
        text
    }

    /// Whether every read finds what it should, for any number of iterations and either order of elements.
    fn runs_right(&self) -> bool {
        (0..4)
            .all(|iterations| [false, true].iter().all(|&backward| self.run(iterations, backward).is_some()))
    }

    fn run(&self, iterations: usize, backward: bool) -> Option<()> {
        let mut machine = Machine { memory: [0; 128], fresh: 0, backward };
        let mut values = vec![Vec::new(); self.after.len()];
        values[0] = machine.define(&self.before[0]);
        machine.run(&self.before, 1, &mut values)?;
        let n = self.state.len();
        if n > 0 {
            let mut state: Vec<Vec<u32>> = self.state.iter().map(|&(i, _)| values[i].clone()).collect();
            let whole = |machine: &Machine, state: &[Vec<u32>]| {
                (0..n).all(|i| machine.holds(self.state[i].1, &state[i])).then_some(())
            };
            whole(&machine, &state)?;
            for i in 0..=iterations {
                let mut inner = state.clone();
                inner.resize(self.condition.len(), Vec::new());
                machine.run(&self.condition, n, &mut inner)?;
                let last = self.condition.len() - 1;
                machine.holds(self.condition[last].offset, &inner[last]).then_some(())?;
                whole(&machine, &state)?;
                if i < iterations {
                    let mut inner = state.clone();
                    inner.resize(self.body.len(), Vec::new());
                    machine.run(&self.body, n, &mut inner)?;
                    state = self.body_root.iter().map(|&root| inner[root].clone()).collect();
                    whole(&machine, &state)?;
                }
            }
            values[self.before.len()..][..n].clone_from_slice(&state);
        }
        machine.run(&self.after, self.before.len() + n, &mut values)?;
        let last = self.after.len() - 1;
        machine.holds(self.after[last].offset, &values[last]).then_some(())
    }
}

/// Memory that holds numbers of elements. The argument lies at 100, beyond the arena.
struct Machine {
    memory: [u32; 128],
    fresh: u32,
    backward: bool,
}

impl Machine {
    fn holds(&self, offset: usize, value: &[u32]) -> bool {
        self.memory[offset..][..value.len()] == *value
    }

    fn new_value(&mut self, len: usize) -> Vec<u32> {
        (0..len)
            .map(|_| {
                self.fresh += 1;
                self.fresh
            })
            .collect()
    }

    fn define(&mut self, node: &Node) -> Vec<u32> {
        let value = self.new_value(node.len);
        self.memory[node.offset..][..node.len].copy_from_slice(&value);
        value
    }

    fn run(&mut self, nodes: &[Node], from: usize, values: &mut [Vec<u32>]) -> Option<()> {
        for (i, node) in nodes.iter().enumerate().skip(from) {
            let (operands, elementwise) = match node.kind {
                Kind::Given => continue,
                Kind::Negate(a) | Kind::Copy(a) => (vec![a], true),
                Kind::Add(a, b) => (vec![a, b], true),
                Kind::Reverse(a) => (vec![a], false),
                Kind::Concatenate(a, b) => (vec![a, b], false),
            };
            values[i] = self.new_value(node.len);
            if !elementwise {
                self.memory[node.offset..][..node.len].fill(0);
            }
            let mut elements: Vec<usize> = (0..values[operands[0]].len()).collect();
            if self.backward {
                elements.reverse();
            }
            for k in elements {
                for &operand in &operands {
                    (self.memory[nodes[operand].offset + k] == values[operand][k]).then_some(())?;
                }
                if elementwise {
                    self.memory[node.offset + k] = values[i][k];
                }
            }
            self.memory[node.offset..][..node.len].copy_from_slice(&values[i]);
        }
        Some(())
    }
}

#[test]
fn the_checker_agrees_with_running_the_program() {
    let mut random = Random(7);
    let mut right = [0, 0];
    for _ in 0..20_000 {
        let program = random.program();
        let text = program.text();
        let case = Case::new("toy", &text);
        let runs_right = program.runs_right();
        let complaints = case.complaints();
        assert_eq!(complaints.is_empty(), runs_right, "{text}\n{complaints}");
        right[usize::from(program.state.is_empty())] += usize::from(runs_right);
    }
    // Both with loops and without, enough plans were right.
    assert!(right[0] > 200 && right[1] > 1000, "{right:?}");
}
