//! A training step of a chain of dense layers, in which every value is a matrix product: nothing of it is fused.

use std::collections::HashMap;
use std::fmt::Write as _;

use memplan_ir::{InstructionId, Module, Op};

/// Rows of a batch.
const ROWS: u64 = 4096;

/// Bytes of an element.
const WIDTH: u64 = 4;

/// A value of the step.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// The values that it is computed from; arguments are there all the time.
    pub(crate) operands: Vec<usize>,
    pub(crate) is_result: bool,
    /// Its name, shape, operands and contracted dimensions.
    text: String,
    name: String,
}

/// A step: values in the order in which they are computed.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) values: Vec<Value>,
    parameters: Vec<String>,
}

impl Step {
    /// The step of layers with so many features.
    pub(crate) fn new(widths: &[u64]) -> Step {
        let mut step = Step { values: Vec::new(), parameters: Vec::new() };
        let parameter = |step: &mut Step, name: String, a: u64, b: u64| {
            let number = step.parameters.len();
            step.parameters.push(format!("{name} = f32[{a},{b}] parameter({number})"));
            name
        };
        let first = widths[0];
        let input = parameter(&mut step, "x".into(), ROWS, first);
        let mut forward: Vec<(String, Option<usize>, u64)> = vec![(input, None, first)];
        for (i, pair) in widths.windows(2).enumerate() {
            let w = parameter(&mut step, format!("w{i}"), pair[0], pair[1]);
            let (x, x_value, _) = forward.last().unwrap().clone();
            let y = step.product(
                format!("f{i}"),
                [ROWS, pair[1]],
                pair[0],
                [(&x, x_value, 1), (&w, None, 0)],
                false,
            );
            forward.push((format!("f{i}"), Some(y), pair[1]));
        }
        let last = *widths.last().unwrap();
        let w = parameter(&mut step, "loss".into(), last, last);
        let (y, y_value, _) = forward.last().unwrap().clone();
        let g = step.product("g".into(), [ROWS, last], last, [(&y, y_value, 1), (&w, None, 0)], false);
        let mut gradient = ("g".to_string(), g);
        for (i, pair) in widths.windows(2).enumerate().rev() {
            let (x, x_value, _) = forward[i].clone();
            let g = (gradient.0.as_str(), Some(gradient.1), 0);
            step.product(format!("d{i}"), [pair[0], pair[1]], ROWS, [(&x, x_value, 0), g], true);
            if i > 0 {
                let (name, w) = (format!("g{i}"), format!("w{i}"));
                let g = (gradient.0.as_str(), Some(gradient.1), 1);
                let next = step.product(name.clone(), [ROWS, pair[0]], pair[1], [g, (&w, None, 1)], false);
                gradient = (name, next);
            }
        }
        step
    }

    fn product(
        &mut self,
        name: String,
        [a, b]: [u64; 2],
        contracted: u64,
        operands: [(&str, Option<usize>, u64); 2],
        is_result: bool,
    ) -> usize {
        let [(lhs, lhs_value, l), (rhs, rhs_value, r)] = operands;
        self.values.push(Value {
            bytes: a * b * WIDTH,
            // Operations; what a machine makes of them is the same for all.
            seconds: 2.0 * (a * b * contracted) as f64,
            operands: lhs_value.into_iter().chain(rhs_value).collect(),
            is_result,
            text: format!(
                "{name} = f32[{a},{b}] dot({lhs}, {rhs}), lhs_contracting_dims={{{l}}}, rhs_contracting_dims={{{r}}}"
            ),
            name,
        });
        self.values.len() - 1
    }

    /// The step as HLO.
    pub(crate) fn text(&self) -> String {
        let mut text = String::from("HloModule step\n\nENTRY main {\n");
        for line in self.parameters.iter().chain(self.values.iter().map(|value| &value.text)) {
            writeln!(text, "  {line}").unwrap();
        }
        let results: Vec<&str> =
            self.values.iter().filter(|v| v.is_result).map(|v| v.name.as_str()).collect();
        let shapes: Vec<&str> =
            self.values.iter().filter(|v| v.is_result).map(|v| v.text.split(' ').nth(2).unwrap()).collect();
        writeln!(text, "  ROOT r = ({}) tuple({})\n}}", shapes.join(", "), results.join(", ")).unwrap();
        text
    }

    /// The most bytes of values that live at once in the order of the text, and what all products take. A value is live
    /// from where it is computed to its last reader.
    pub(crate) fn measure(&self, module: &Module) -> (u64, f64) {
        let by_name: HashMap<&str, &Value> =
            self.values.iter().map(|value| (value.name.as_str(), value)).collect();
        let of = |id: InstructionId| {
            by_name.get(module.instructions[id].name.split(".remat").next().unwrap()).copied()
        };
        let order = &module.entry_computation().instructions;
        let mut last: HashMap<InstructionId, usize> = HashMap::new();
        for (i, &id) in order.iter().enumerate() {
            last.insert(id, i);
            for &operand in &module.instructions[id].operands {
                last.insert(operand, i);
            }
        }
        let (mut live, mut peak, mut seconds) = (0, 0, 0.0);
        for (i, &id) in order.iter().enumerate() {
            if module.instructions[id].op == Op::Tuple {
                break;
            }
            if let Some(value) = of(id) {
                live += value.bytes;
                seconds += value.seconds;
            }
            peak = peak.max(live);
            let mut ended = module.instructions[id].operands.to_vec();
            ended.push(id);
            ended.sort();
            ended.dedup();
            live -= ended
                .iter()
                .filter(|id| last[id] == i)
                .filter_map(|&id| of(id))
                .map(|v| v.bytes)
                .sum::<u64>();
        }
        (peak, seconds)
    }
}
