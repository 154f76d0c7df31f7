//! A training step written out layer by layer, as JAX traces it without a loop: for measuring how time and memory grow
//! with a program.
//!
//! Forward, each layer normalizes, attends, and feeds forward; the kept values are read again in the backward pass,
//! last layer first; then every parameter is updated in place from two moments.

use memplan_ir::BinaryOp::{self, Add, Divide, Maximum, Multiply, Subtract};
use memplan_ir::ElementType::F32;
use memplan_ir::UnaryOp::{self, Exponential, Logistic, Rsqrt, Sqrt};
use memplan_ir::{
    BuildError, ComputationBuilder, ComputationId, DotDimensions, Insert, InstructionId, Literal, Module,
    ModuleBuilder, Shape,
};

/// Rows, columns of a layer, and columns inside its second half.
const ROWS: i64 = 512;
const WIDTH: i64 = 256;
const INNER: i64 = 1024;

/// About how many instructions a layer is.
pub const INSTRUCTIONS_PER_LAYER: usize = 290;

/// Shapes of a layer's parameters: query, key, value, output; two in and one out.
const PARAMETERS: [[i64; 2]; 7] = [
    [WIDTH, WIDTH],
    [WIDTH, WIDTH],
    [WIDTH, WIDTH],
    [WIDTH, WIDTH],
    [WIDTH, INNER],
    [WIDTH, INNER],
    [INNER, WIDTH],
];

/// A training step of so many layers.
///
/// # Panics
/// Never: the operations built are valid.
pub fn unrolled_training(layers: usize) -> Module {
    let mut module = ModuleBuilder::new(format!("training_of_{layers}_layers"));
    let entry = step(&mut module, layers).expect("the operations are valid");
    for (number, _) in (0..layers * PARAMETERS.len() * 3).enumerate() {
        module.alias([number as u32].into(), number as u32, [].into());
    }
    module.finish(entry).expect("the module is valid")
}

fn step(module: &mut ModuleBuilder, layers: usize) -> Result<ComputationId, BuildError> {
    let sum = module.combiner(Add, F32)?;
    let most = module.combiner(Maximum, F32)?;
    let mut step = Step { body: module.computation("step"), sum, most };
    let mut parameters = |what: &str| -> Vec<[InstructionId; 7]> {
        let of_layer = |layer| {
            PARAMETERS.map(|[rows, columns]| {
                step.body.parameter(&format!("{what}.{layer}"), Shape::array(F32, [rows, columns]))
            })
        };
        (0..layers).map(of_layer).collect()
    };
    let (weights, means, squares) = (parameters("weight"), parameters("mean"), parameters("square"));
    let mut x = step.body.parameter("x", Shape::array(F32, [ROWS, WIDTH]));
    let mut kept = Vec::with_capacity(layers);
    for weights in &weights {
        let layer = step.forward(x, weights)?;
        x = layer.result;
        kept.push(layer);
    }
    // The gradient of half the sum of squares.
    let mut dx = x;
    let mut gradients = Vec::with_capacity(layers);
    for (layer, weights) in kept.iter().zip(&weights).rev() {
        let (before, gradient) = step.backward(layer, weights, dx)?;
        dx = before;
        gradients.push(gradient);
    }
    gradients.reverse();
    let mut results: [Vec<InstructionId>; 3] = Default::default();
    for (((weights, means), squares), gradients) in weights.iter().zip(&means).zip(&squares).zip(&gradients) {
        for i in 0..PARAMETERS.len() {
            let updated = step.update(weights[i], means[i], squares[i], gradients[i])?;
            results.iter_mut().zip(updated).for_each(|(results, new)| results.push(new));
        }
    }
    let root = step.body.tuple(results.concat())?;
    step.body.finish(root)
}

/// The values of a layer that the backward pass reads.
struct Layer {
    x: InstructionId,
    attended: Normalized,
    query: InstructionId,
    key: InstructionId,
    value: InstructionId,
    /// How much each row attends to each other.
    weights: InstructionId,
    mixed: InstructionId,
    middle: InstructionId,
    fed: Normalized,
    gate: InstructionId,
    open: InstructionId,
    through: InstructionId,
    hidden: InstructionId,
    result: InstructionId,
}

/// Rows of length one, and their original lengths.
struct Normalized {
    rows: InstructionId,
    scale: InstructionId,
}

struct Step<'m> {
    body: ComputationBuilder<'m>,
    sum: ComputationId,
    most: ComputationId,
}

/// Which dimension of each operand a product sums over.
const ROWS_BY_COLUMNS: (i64, i64) = (1, 0);
const BY_TRANSPOSED: (i64, i64) = (1, 1);
const OF_TRANSPOSED: (i64, i64) = (0, 0);

type Built = Result<InstructionId, BuildError>;

impl Step<'_> {
    fn forward(&mut self, x: InstructionId, w: &[InstructionId; 7]) -> Result<Layer, BuildError> {
        let attended = self.normalize(x)?;
        let query = self.product(attended.rows, w[0], ROWS_BY_COLUMNS)?;
        let key = self.product(attended.rows, w[1], ROWS_BY_COLUMNS)?;
        let value = self.product(attended.rows, w[2], ROWS_BY_COLUMNS)?;
        let scores = self.product(query, key, BY_TRANSPOSED)?;
        let weights = self.softmax(scores)?;
        let mixed = self.product(weights, value, ROWS_BY_COLUMNS)?;
        let out = self.product(mixed, w[3], ROWS_BY_COLUMNS)?;
        let middle = self.binary(Add, x, out)?;
        let fed = self.normalize(middle)?;
        let gate = self.product(fed.rows, w[4], ROWS_BY_COLUMNS)?;
        let through = self.product(fed.rows, w[5], ROWS_BY_COLUMNS)?;
        let open = self.unary(Logistic, gate)?;
        let opened = self.binary(Multiply, gate, open)?;
        let hidden = self.binary(Multiply, opened, through)?;
        let out = self.product(hidden, w[6], ROWS_BY_COLUMNS)?;
        let result = self.binary(Add, middle, out)?;
        Ok(Layer {
            x,
            attended,
            query,
            key,
            value,
            weights,
            mixed,
            middle,
            fed,
            gate,
            open,
            through,
            hidden,
            result,
        })
    }

    /// The gradients of a layer's input and of its parameters, from that of its result.
    fn backward(
        &mut self,
        layer: &Layer,
        w: &[InstructionId; 7],
        dresult: InstructionId,
    ) -> Result<(InstructionId, [InstructionId; 7]), BuildError> {
        let dhidden = self.product(dresult, w[6], BY_TRANSPOSED)?;
        let d6 = self.product(layer.hidden, dresult, OF_TRANSPOSED)?;
        let opened = self.binary(Multiply, layer.gate, layer.open)?;
        let dthrough = self.binary(Multiply, dhidden, opened)?;
        let dopened = self.binary(Multiply, dhidden, layer.through)?;
        // Of x s(x): s(x) + x s(x) (1 - s(x)).
        let one = self.number(1.0, layer.open)?;
        let closed = self.binary(Subtract, one, layer.open)?;
        let bent = self.binary(Multiply, opened, closed)?;
        let slope = self.binary(Add, layer.open, bent)?;
        let dgate = self.binary(Multiply, dopened, slope)?;
        let d4 = self.product(layer.fed.rows, dgate, OF_TRANSPOSED)?;
        let d5 = self.product(layer.fed.rows, dthrough, OF_TRANSPOSED)?;
        let left = self.product(dgate, w[4], BY_TRANSPOSED)?;
        let right = self.product(dthrough, w[5], BY_TRANSPOSED)?;
        let dfed = self.binary(Add, left, right)?;
        let through_fed = self.denormalize(layer.middle, &layer.fed, dfed)?;
        let dmiddle = self.binary(Add, dresult, through_fed)?;

        let dmixed = self.product(dmiddle, w[3], BY_TRANSPOSED)?;
        let d3 = self.product(layer.mixed, dmiddle, OF_TRANSPOSED)?;
        let dweights = self.product(dmixed, layer.value, BY_TRANSPOSED)?;
        let dvalue = self.product(layer.weights, dmixed, OF_TRANSPOSED)?;
        let weighed = self.binary(Multiply, dweights, layer.weights)?;
        let total = self.over_rows(weighed, self.sum, 0.0)?;
        let total = self.along_rows(total, layer.weights)?;
        let apart = self.binary(Subtract, dweights, total)?;
        let dscores = self.binary(Multiply, layer.weights, apart)?;
        let dquery = self.product(dscores, layer.key, ROWS_BY_COLUMNS)?;
        let dkey = self.product(dscores, layer.query, OF_TRANSPOSED)?;
        let mut drows = self.product(dquery, w[0], BY_TRANSPOSED)?;
        for (d, w) in [(dkey, w[1]), (dvalue, w[2])] {
            let more = self.product(d, w, BY_TRANSPOSED)?;
            drows = self.binary(Add, drows, more)?;
        }
        let [d0, d1, d2] = [dquery, dkey, dvalue];
        let d0 = self.product(layer.attended.rows, d0, OF_TRANSPOSED)?;
        let d1 = self.product(layer.attended.rows, d1, OF_TRANSPOSED)?;
        let d2 = self.product(layer.attended.rows, d2, OF_TRANSPOSED)?;
        let through_attended = self.denormalize(layer.x, &layer.attended, drows)?;
        let dx = self.binary(Add, dmiddle, through_attended)?;
        Ok((dx, [d0, d1, d2, d3, d4, d5, d6]))
    }

    /// A parameter and its two moments after a step.
    fn update(
        &mut self,
        weight: InstructionId,
        mean: InstructionId,
        square: InstructionId,
        gradient: InstructionId,
    ) -> Result<[InstructionId; 3], BuildError> {
        let mean = self.mixed(mean, 0.9, gradient)?;
        let squared = self.binary(Multiply, gradient, gradient)?;
        let square = self.mixed(square, 0.999, squared)?;
        let root = self.unary(Sqrt, square)?;
        let epsilon = self.number(1e-8, root)?;
        let root = self.binary(Add, root, epsilon)?;
        let direction = self.binary(Divide, mean, root)?;
        let rate = self.number(1e-3, direction)?;
        let change = self.binary(Multiply, direction, rate)?;
        let weight = self.binary(Subtract, weight, change)?;
        Ok([weight, mean, square])
    }

    /// A share of one, and the rest of the other.
    fn mixed(&mut self, a: InstructionId, share: f32, b: InstructionId) -> Built {
        let (of_a, of_b) = (self.number(share, a)?, self.number(1.0 - share, b)?);
        let (a, b) = (self.binary(Multiply, a, of_a)?, self.binary(Multiply, b, of_b)?);
        self.binary(Add, a, b)
    }

    fn normalize(&mut self, x: InstructionId) -> Result<Normalized, BuildError> {
        let squares = self.binary(Multiply, x, x)?;
        let sum = self.over_rows(squares, self.sum, 0.0)?;
        let share = self.number(1.0 / WIDTH as f32, sum)?;
        let mean = self.binary(Multiply, sum, share)?;
        let epsilon = self.number(1e-6, mean)?;
        let mean = self.binary(Add, mean, epsilon)?;
        let scale = self.unary(Rsqrt, mean)?;
        let scales = self.along_rows(scale, x)?;
        Ok(Normalized { rows: self.binary(Multiply, x, scales)?, scale })
    }

    /// The gradient of the normalized operand, from the gradient of the rows.
    fn denormalize(&mut self, x: InstructionId, normalized: &Normalized, drows: InstructionId) -> Built {
        let products = self.binary(Multiply, drows, x)?;
        let sum = self.over_rows(products, self.sum, 0.0)?;
        let square = self.binary(Multiply, normalized.scale, normalized.scale)?;
        let cube = self.binary(Multiply, square, normalized.scale)?;
        let share = self.number(1.0 / WIDTH as f32, cube)?;
        let cube = self.binary(Multiply, cube, share)?;
        let pull = self.binary(Multiply, sum, cube)?;
        let pulls = self.along_rows(pull, x)?;
        let pulled = self.binary(Multiply, x, pulls)?;
        let scales = self.along_rows(normalized.scale, x)?;
        let straight = self.binary(Multiply, drows, scales)?;
        self.binary(Subtract, straight, pulled)
    }

    fn softmax(&mut self, scores: InstructionId) -> Built {
        let most = self.over_rows(scores, self.most, f32::NEG_INFINITY)?;
        let most = self.along_rows(most, scores)?;
        let below = self.binary(Subtract, scores, most)?;
        let powers = self.unary(Exponential, below)?;
        let total = self.over_rows(powers, self.sum, 0.0)?;
        let total = self.along_rows(total, powers)?;
        self.binary(Divide, powers, total)
    }

    /// One number for each row.
    fn over_rows(&mut self, x: InstructionId, reducer: ComputationId, initial: f32) -> Built {
        let initial = self.body.constant(Literal::f32(initial));
        self.body.reduce(x, initial, [1], reducer)
    }

    /// A number for each row, all along the row of an array like another.
    fn along_rows(&mut self, x: InstructionId, like: InstructionId) -> Built {
        let extents = self.extents(like);
        self.body.broadcast(x, extents, [0])
    }

    /// A number everywhere in an array like another.
    fn number(&mut self, value: f32, like: InstructionId) -> Built {
        let extents = self.extents(like);
        let value = self.body.constant(Literal::f32(value));
        self.body.broadcast(value, extents, [])
    }

    fn extents(&self, id: InstructionId) -> Vec<i64> {
        self.body.shape(id).as_array().expect("there are only arrays").dimensions.to_vec()
    }

    fn product(&mut self, a: InstructionId, b: InstructionId, (of_a, of_b): (i64, i64)) -> Built {
        self.body.dot(a, b, DotDimensions::new([of_a], [of_b]))
    }

    fn unary(&mut self, op: UnaryOp, x: InstructionId) -> Built {
        self.body.unary(op, x)
    }

    fn binary(&mut self, op: BinaryOp, a: InstructionId, b: InstructionId) -> Built {
        self.body.binary(op, a, b)
    }
}
