//! Training steps, and loops over caches, as JAX hands them over: what rewrites for other compilers look for.
//!
//! A network has like layers, written out or as a scan, and a loss; its gradients follow by the chain rule, and change the
//! weights and their moments. Rows are examples, which a layer or a loss may mix.
//!
//! ```text
//!   x = table[tokens]         rows of a table, or an argument
//!   x = layer(x, w), ...      products, elementwise operations, what a row is divided by, residuals
//!   loss                      a sum of squares, or what was chosen of each row
//!   w' = w - rate m'          where m' is the gradient, or follows it
//! ```

use memplan_ir::ElementType::{F32, S32};
use memplan_ir::{
    BinaryOp, BuildError, ComputationId, DotDimensions, GatherDimensions, Insert, InstructionId, Literal,
    ModuleBuilder, Op, ScatterDimensions, Shape, UnaryOp,
};

use crate::Random;

use super::chain_rule::Tape;
use super::scans::condition;
use super::{Body, Combiners, GenerateOptions};

type Built = Result<InstructionId, BuildError>;

/// What a layer does to its rows, one after the other.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// A product with a weight.
    Product,
    /// Two products, and many columns between.
    Widened,
    Unary(UnaryOp),
    /// Minus a share of the sum over a dimension: 1 is within an example, 0 is over the batch.
    Centered(i64),
    /// Times a number of each row.
    Scaled,
    /// Plus what the layer began with.
    Residual,
    /// A product with that beside what the layer began with, as after a skip connection.
    Joined,
}

/// A network.
struct Network {
    batch: i64,
    width: i64,
    layers: i64,
    parts: Vec<Part>,
    is_scanned: bool,
    /// Rows of a table that examples begin with.
    has_table: bool,
    /// Columns of the last product, of which one is chosen for each row.
    classes: Option<i64>,
    has_moments: bool,
}

impl Network {
    fn new(random: &mut Random) -> Network {
        let parts = [
            Part::Product,
            Part::Product,
            Part::Widened,
            Part::Unary(UnaryOp::Cosine),
            Part::Unary(UnaryOp::Logistic),
            Part::Centered(1),
            Part::Scaled,
            Part::Residual,
            Part::Joined,
        ];
        let mut chosen: Vec<Part> = (0..2 + random.below(4)).map(|_| random.pick(&parts)).collect();
        if random.one_in(8) {
            chosen.push(Part::Centered(0));
        }
        // So that there is something to learn, and numbers stay small.
        chosen.extend([Part::Product, Part::Unary(UnaryOp::Tanh)]);
        Network {
            batch: random.pick(&[4, 8, 16]),
            width: random.pick(&[4, 8]),
            layers: 1 + random.below(5) as i64,
            parts: chosen,
            is_scanned: random.one_in(2),
            has_table: random.one_in(3),
            classes: random.one_in(2).then(|| random.pick(&[8, 32])),
            has_moments: random.one_in(2),
        }
    }

    /// The extents of the weights of a layer.
    fn weights(&self) -> Vec<[i64; 2]> {
        let (width, wide) = (self.width, 4 * self.width);
        let of = |part: &Part| match part {
            Part::Product => vec![[width, width]],
            Part::Widened => vec![[width, wide], [wide, width]],
            Part::Joined => vec![[2 * width, width]],
            _ => Vec::new(),
        };
        self.parts.iter().flat_map(of).collect()
    }
}

/// A layer as it was computed: what it began with, its weights, its result, and how.
struct Layer {
    x: InstructionId,
    weights: Vec<InstructionId>,
    result: InstructionId,
    tape: Tape,
}

/// The entry of a module that trains a network, or that reads and writes a cache.
pub(super) fn entry(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
) -> Result<ComputationId, BuildError> {
    if random.one_in(8) {
        return cache(module, random, combiners, options);
    }
    let network = Network::new(random);
    let loops = match network.is_scanned {
        true => Some(scanned(module, random, combiners, options, &network)?),
        false => None,
    };
    let mut body = Body::new(module, "main", random, combiners, options);
    let (root, n_trained) = body.train(&network, loops.as_ref())?;
    let entry = body.computation.finish(root)?;
    for number in 0..n_trained {
        if !random.one_in(4) {
            module.alias([number].into(), number, [].into());
        }
    }
    Ok(entry)
}

/// Two loops over layers: the second computes the gradients of the first.
struct Loops {
    forward: Loop,
    backward: Loop,
    /// The state of the first: the counter, the examples, stacks of weights, and stacks of what it keeps.
    state: Shape,
}

struct Loop {
    condition: ComputationId,
    body: ComputationId,
}

fn scanned(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
    network: &Network,
) -> Result<Loops, BuildError> {
    let rows = Shape::array(F32, [network.batch, network.width]);
    let mut body = Body::new(module, "layer", random, combiners, options);
    let x = body.computation.parameter("x", rows.clone());
    let of_weight = |(i, extents): (usize, [i64; 2])| {
        body.computation.parameter(&format!("w{i}"), Shape::array(F32, extents))
    };
    let weights = network.weights().into_iter().enumerate().map(of_weight).collect();
    let layer = body.layer(network, x, weights)?;
    let kept: Vec<InstructionId> =
        layer.tape.read().into_iter().filter(|id| !layer.weights.contains(id)).collect();
    let root = body.computation.tuple([&[layer.result][..], &kept].concat())?;
    let stack = |body: &Body<'_, '_>, id: InstructionId| {
        Shape::array(F32, [&[network.layers], &body.array(id).dimensions[..]].concat())
    };
    let [of_weights, of_kept] =
        [&layer.weights, &kept].map(|ids| ids.iter().map(|&id| stack(&body, id)).collect::<Vec<_>>());
    let computation = body.computation.finish(root)?;

    let state = |stacks: [&[Shape]; 3]| {
        let stacks = stacks.into_iter().flatten().cloned();
        Shape::Tuple([Shape::scalar(S32), rows.clone()].into_iter().chain(stacks).collect())
    };
    let forward_state = state([&of_weights, &of_kept, &[]]);
    let backward_state = state([&of_weights, &of_kept, &of_weights]);
    let mut body = Body::new(module, "forward", random, combiners, options);
    let root = body.forward_layer(&forward_state, of_weights.len(), computation)?;
    let forward = body.computation.finish(root)?;
    let mut body = Body::new(module, "backward", random, combiners, options);
    let root = body.backward_layer(network, &backward_state, &layer, &kept)?;
    let backward = body.computation.finish(root)?;
    let mut with_condition = |state: &Shape, body| {
        condition(module, state.clone(), network.layers).map(|condition| Loop { condition, body })
    };
    Ok(Loops {
        forward: with_condition(&forward_state, forward)?,
        backward: with_condition(&backward_state, backward)?,
        state: forward_state,
    })
}

impl Body<'_, '_> {
    fn layer(
        &mut self,
        network: &Network,
        x: InstructionId,
        weights: Vec<InstructionId>,
    ) -> Result<Layer, BuildError> {
        use BinaryOp::{Add, Multiply, Subtract};
        let (mut tape, mut now, mut rest) = (Tape::default(), x, weights.iter().copied());
        let mut weight = || rest.next().expect("each product has a weight");
        for part in &network.parts {
            now = match *part {
                Part::Product => self.tape_product(&mut tape, now, weight())?,
                Part::Widened => {
                    let wide = self.tape_product(&mut tape, now, weight())?;
                    let wide = self.tape_unary(&mut tape, UnaryOp::Tanh, wide)?;
                    self.tape_product(&mut tape, wide, weight())?
                }
                Part::Unary(op) => self.tape_unary(&mut tape, op, now)?,
                Part::Centered(over) => {
                    let sum = self.tape_sum_along(&mut tape, now, over)?;
                    let share = self.number_like(0.125, sum)?;
                    let share = self.tape_binary(&mut tape, Multiply, sum, share)?;
                    self.tape_binary(&mut tape, Subtract, now, share)?
                }
                Part::Scaled => {
                    let sum = self.tape_sum_along(&mut tape, now, 1)?;
                    let scale = self.tape_unary(&mut tape, UnaryOp::Logistic, sum)?;
                    self.tape_binary(&mut tape, Multiply, now, scale)?
                }
                Part::Residual => self.tape_binary(&mut tape, Add, now, x)?,
                Part::Joined => {
                    let both = self.tape_beside(&mut tape, x, now)?;
                    self.tape_product(&mut tape, both, weight())?
                }
            };
        }
        Ok(Layer { x, weights, result: now, tape })
    }

    /// A step of the loop over layers; its root.
    fn forward_layer(&mut self, state: &Shape, n_weights: usize, layer: ComputationId) -> Built {
        let parts = self.state(state)?;
        let (count, stacks) = (parts[0], &parts[2..2 + n_weights]);
        let mut arguments = vec![parts[1]];
        for &stack in stacks {
            arguments.push(self.row(stack, count)?);
        }
        let made = self.computation.call(layer, arguments)?;
        let mut next = vec![self.successor(count)?, self.computation.get_tuple_element(made, 0)?];
        next.extend(stacks);
        for (i, &stack) in parts[2 + n_weights..].iter().enumerate() {
            let row = self.computation.get_tuple_element(made, 1 + i as u32)?;
            next.push(self.write_row(stack, row, count)?);
        }
        self.computation.tuple(next)
    }

    /// A step of the loop over gradients, the last layer first; its root.
    fn backward_layer(
        &mut self,
        network: &Network,
        state: &Shape,
        layer: &Layer,
        kept: &[InstructionId],
    ) -> Built {
        let parts = self.state(state)?;
        let (count, gradient) = (parts[0], parts[1]);
        let last = self.computation.constant(Literal::s32(network.layers as i32 - 1));
        let number = self.computation.binary(BinaryOp::Subtract, last, count)?;
        let n_read = layer.weights.len() + kept.len();
        let (read, made) = parts[2..].split_at(n_read);
        let rows = read.iter().map(|&stack| self.row(stack, number)).collect::<Result<Vec<_>, _>>()?;
        let now = |id: InstructionId| {
            let place = layer.weights.iter().chain(kept).position(|&of| of == id);
            rows[place.expect("it is a weight, or kept")]
        };
        let wanted = [&[layer.x][..], &layer.weights].concat();
        let gradients = self.gradients(&layer.tape, &now, (layer.result, gradient), &wanted)?;
        let mut next = vec![self.successor(count)?, gradients[0]];
        next.extend(read);
        for (&stack, &row) in made.iter().zip(&gradients[1..]) {
            next.push(self.write_row(stack, row, number)?);
        }
        self.computation.tuple(next)
    }

    /// The elements of the state of a loop.
    fn state(&mut self, shape: &Shape) -> Result<Vec<InstructionId>, BuildError> {
        let parameter = self.computation.parameter("state", shape.clone());
        let n = shape.as_tuple().map_or(0, <[Shape]>::len) as u32;
        (0..n).map(|index| self.computation.get_tuple_element(parameter, index)).collect()
    }

    /// A row of a stack.
    fn row(&mut self, stack: InstructionId, number: InstructionId) -> Built {
        let extents = self.array(stack).dimensions[1..].to_vec();
        self.read_row(stack, &(F32, extents), number)
    }

    /// A training step: its root, and how many parameters are trained, which come first, as their new values do.
    fn train(
        &mut self,
        network: &Network,
        loops: Option<&Loops>,
    ) -> Result<(InstructionId, u32), BuildError> {
        let of_layer = network.weights();
        let mut extents: Vec<Vec<i64>> = match loops {
            Some(_) => of_layer.iter().map(|w| [&[network.layers][..], w].concat()).collect(),
            None => (0..network.layers).flat_map(|_| of_layer.iter().map(|w| w.to_vec())).collect(),
        };
        let n_weights = extents.len();
        let [rows, width] = [network.batch, network.width];
        extents.extend(network.classes.map(|classes| vec![width, classes]));
        extents.extend(network.has_table.then(|| vec![6, width]));
        let parameters = |body: &mut Self, name: &str| -> Vec<InstructionId> {
            let of = |(i, extents): (usize, &Vec<i64>)| {
                body.computation.parameter(&format!("{name}{i}"), Shape::array(F32, extents.iter().copied()))
            };
            extents.iter().enumerate().map(of).collect()
        };
        let trained = parameters(self, "w");
        let moments = if network.has_moments { parameters(self, "m") } else { Vec::new() };
        let (weights, others) = trained.split_at(n_weights);
        let mut others = others.iter().copied();
        let head = network.classes.and_then(|_| others.next());
        let table = others.next();

        let tokens = table.map(|_| self.computation.parameter("tokens", Shape::array(S32, [rows, 1])));
        let x = match (table, tokens) {
            (Some(table), Some(tokens)) => self.rows_of(table, tokens)?,
            _ => self.computation.parameter("x", Shape::array(F32, [rows, width])),
        };
        let (dx, mut gradients, loss) = match loops {
            Some(loops) => self.through_loops(loops, x, weights, head)?,
            None => self.through_layers(network, x, weights, head)?,
        };
        if let (Some(table), Some(tokens)) = (table, tokens) {
            gradients.push(self.add_rows_to(table, tokens, dx)?);
        }
        let mut results = Vec::new();
        let mut new_moments = Vec::new();
        for (i, (&weight, gradient)) in trained.iter().zip(gradients).enumerate() {
            let direction = match moments.get(i) {
                Some(&moment) => {
                    let kept = self.scaled(moment, 0.75)?;
                    let moment = self.computation.binary(BinaryOp::Add, kept, gradient)?;
                    new_moments.push(moment);
                    moment
                }
                None => gradient,
            };
            let change = self.scaled(direction, 0.125)?;
            results.push(self.computation.binary(BinaryOp::Subtract, weight, change)?);
        }
        let n_trained = (trained.len() + moments.len()) as u32;
        results.extend(new_moments);
        results.push(loss);
        Ok((self.computation.tuple(results)?, n_trained))
    }

    /// The gradient of what the first layer begins with, those of all weights and of the head, and the loss.
    fn through_layers(
        &mut self,
        network: &Network,
        x: InstructionId,
        weights: &[InstructionId],
        head: Option<InstructionId>,
    ) -> Result<(InstructionId, Vec<InstructionId>, InstructionId), BuildError> {
        let (mut now, mut layers) = (x, Vec::new());
        for weights in weights.chunks(network.weights().len()) {
            let layer = self.layer(network, now, weights.to_vec())?;
            now = layer.result;
            layers.push(layer);
        }
        let (loss, mut d, of_head) = self.loss(now, head)?;
        let mut gradients = Vec::new();
        for layer in layers.iter().rev() {
            let wanted = [&[layer.x][..], &layer.weights].concat();
            let found = self.gradients(&layer.tape, &|id| id, (layer.result, d), &wanted)?;
            d = found[0];
            gradients.push(found[1..].to_vec());
        }
        gradients.reverse();
        Ok((d, gradients.into_iter().flatten().chain(of_head).collect(), loss))
    }

    /// The same of a network that is scanned.
    fn through_loops(
        &mut self,
        loops: &Loops,
        x: InstructionId,
        weights: &[InstructionId],
        head: Option<InstructionId>,
    ) -> Result<(InstructionId, Vec<InstructionId>, InstructionId), BuildError> {
        let zero = self.computation.constant(Literal::s32(0));
        let kept = &loops.state.as_tuple().expect("it is a tuple")[2 + weights.len()..];
        let mut initial = [&[zero, x], weights].concat();
        for stack in kept {
            initial.push(self.zeros(stack)?);
        }
        let first = self.run(&loops.forward, initial)?;
        let (loss, d, of_head) = self.loss(first[1], head)?;
        let mut initial = vec![zero, d];
        initial.extend(&first[2..]);
        for &stack in weights {
            initial.push(self.number_like(0.0, stack)?);
        }
        let second = self.run(&loops.backward, initial)?;
        let gradients = second[first.len()..].iter().copied().chain(of_head).collect();
        Ok((second[1], gradients, loss))
    }

    /// The state that a loop ends with.
    fn run(&mut self, of: &Loop, initial: Vec<InstructionId>) -> Result<Vec<InstructionId>, BuildError> {
        let n = initial.len() as u32;
        let initial = self.computation.tuple(initial)?;
        let state = self.computation.while_loop(initial, of.condition, of.body)?;
        (0..n).map(|index| self.computation.get_tuple_element(state, index)).collect()
    }

    /// The loss of the last layer's rows, the gradient of these, and that of the head.
    fn loss(
        &mut self,
        x: InstructionId,
        head: Option<InstructionId>,
    ) -> Result<(InstructionId, InstructionId, Option<InstructionId>), BuildError> {
        use BinaryOp::{Divide, Multiply, Subtract};
        let extents = self.array(x).dimensions.to_vec();
        let share = 1.0 / extents[0] as f32;
        let Some(head) = head else {
            let target = self.computation.parameter("target", Shape::array(F32, extents));
            let apart = self.computation.binary(Subtract, x, target)?;
            let squares = self.computation.binary(Multiply, apart, apart)?;
            let gradient = self.scaled(apart, share)?;
            return Ok((self.total(squares, share / 2.0)?, gradient, None));
        };
        let labels = self.computation.parameter("labels", Shape::array(S32, [extents[0], 1]));
        let logits = self.computation.matmul(x, head)?;
        let least = self.computation.constant(Literal::f32(f32::NEG_INFINITY));
        let most = self.computation.reduce(logits, least, [1], self.combiners.maximum_f32)?;
        let most = self.along(most, logits, 0)?;
        let below = self.computation.binary(Subtract, logits, most)?;
        let powers = self.computation.unary(UnaryOp::Exponential, below)?;
        let sums = self.sum_over(powers, 1)?;
        let logarithms = self.computation.unary(UnaryOp::Log, sums)?;
        let logarithms = self.along(logarithms, logits, 0)?;
        let likely = self.computation.binary(Subtract, below, logarithms)?;
        let chosen = self.chosen_of_rows(likely, labels)?;
        let loss = self.total(chosen, -share)?;
        let of_chosen = self.number_like(-share, chosen)?;
        let of_likely = self.put_into_rows(likely, labels, of_chosen)?;
        let sums = self.along(sums, logits, 0)?;
        let shares = self.computation.binary(Divide, powers, sums)?;
        let of_row = self.sum_over(of_likely, 1)?;
        let of_row = self.along(of_row, logits, 0)?;
        let pulled = self.computation.binary(Multiply, shares, of_row)?;
        let of_logits = self.computation.binary(Subtract, of_likely, pulled)?;
        let dx = self.computation.dot(of_logits, head, DotDimensions::new([1], [1]))?;
        let of_head = self.computation.dot(x, of_logits, DotDimensions::new([0], [0]))?;
        Ok((loss, dx, Some(of_head)))
    }

    /// The sum of all elements, times a number.
    fn total(&mut self, x: InstructionId, factor: f32) -> Built {
        let zero = self.computation.constant(Literal::f32(0.0));
        let all: Vec<i64> = (0..self.array(x).rank() as i64).collect();
        let sum = self.computation.reduce(x, zero, all, self.combiners.sum_f32)?;
        self.scaled(sum, factor)
    }

    fn scaled(&mut self, x: InstructionId, factor: f32) -> Built {
        let factor = self.number_like(factor, x)?;
        self.computation.binary(BinaryOp::Multiply, x, factor)
    }

    fn zeros(&mut self, shape: &Shape) -> Built {
        let zero = self.computation.constant(Literal::f32(0.0));
        let extents = shape.as_array().expect("stacks are arrays").dimensions.to_vec();
        self.computation.broadcast(zero, extents, [])
    }

    /// The rows of a table that tokens name.
    fn rows_of(&mut self, table: InstructionId, tokens: InstructionId) -> Built {
        let width = self.array(table).dimensions[1];
        let dimensions = GatherDimensions {
            offset_dims: [1].into_iter().collect(),
            collapsed_slice_dims: [0].into_iter().collect(),
            start_index_map: [0].into_iter().collect(),
            index_vector_dim: 1,
            slice_sizes: [1, width].into_iter().collect(),
            ..GatherDimensions::default()
        };
        self.computation.insert(Op::Gather(Box::new(dimensions)), [table, tokens])
    }

    /// The gradient of a table: each row of examples goes to that of its token.
    fn add_rows_to(&mut self, table: InstructionId, tokens: InstructionId, rows: InstructionId) -> Built {
        let none = self.number_like(0.0, table)?;
        self.add_at_rows(none, tokens, rows)
    }

    /// An element of each row.
    fn chosen_of_rows(&mut self, rows: InstructionId, columns: InstructionId) -> Built {
        let dimensions = GatherDimensions {
            collapsed_slice_dims: [1].into_iter().collect(),
            start_index_map: [1].into_iter().collect(),
            index_vector_dim: 1,
            operand_batching_dims: [0].into_iter().collect(),
            start_indices_batching_dims: [0].into_iter().collect(),
            slice_sizes: [1, 1].into_iter().collect(),
            ..GatherDimensions::default()
        };
        self.computation.insert(Op::Gather(Box::new(dimensions)), [rows, columns])
    }

    /// Zeros like some rows, with a number in one column of each.
    fn put_into_rows(&mut self, like: InstructionId, columns: InstructionId, values: InstructionId) -> Built {
        let dimensions = ScatterDimensions {
            inserted_window_dims: [1].into_iter().collect(),
            scatter_dims_to_operand_dims: [1].into_iter().collect(),
            index_vector_dim: 1,
            input_batching_dims: [0].into_iter().collect(),
            scatter_indices_batching_dims: [0].into_iter().collect(),
            ..ScatterDimensions::default()
        };
        let none = self.number_like(0.0, like)?;
        let op = Op::Scatter(Box::new(dimensions));
        self.computation.insert_calling(op, [none, columns, values], [self.combiners.sum_f32])
    }
}

/// A loop over layers, each of which writes a row of a cache and reads all of its rows.
fn cache(
    module: &mut ModuleBuilder,
    random: &mut Random,
    combiners: Combiners,
    options: &GenerateOptions,
) -> Result<ComputationId, BuildError> {
    let [layers, length, width] = [2 + random.below(3) as i64, random.pick(&[4, 8]), random.pick(&[4, 8])];
    let place = random.below(length as usize) as i32;
    let shapes = [
        Shape::scalar(S32),
        Shape::array(F32, [1, width]),
        Shape::array(F32, [layers, length, width]),
        Shape::array(F32, [layers, width, width]),
    ];
    let state = Shape::Tuple(shapes.iter().cloned().collect());
    let mut body = Body::new(module, "token", random, combiners, options);
    let root = body.token(&state, place)?;
    let computation = body.computation.finish(root)?;
    let of = Loop { condition: condition(module, state, layers)?, body: computation };
    let mut body = Body::new(module, "main", random, combiners, options);
    let [cache, weights, x] = [("cache", 2), ("weights", 3), ("x", 1)]
        .map(|(name, i): (&str, usize)| body.computation.parameter(name, shapes[i].clone()));
    let zero = body.computation.constant(Literal::s32(0));
    let after = body.run(&of, vec![zero, x, cache, weights])?;
    let root = body.computation.tuple([after[2], after[1]])?;
    let entry = body.computation.finish(root)?;
    if !random.one_in(4) {
        module.alias([0].into(), 0, [].into());
    }
    Ok(entry)
}

impl Body<'_, '_> {
    /// What a layer does for one token.
    fn token(&mut self, state: &Shape, place: i32) -> Built {
        let parts = self.state(state)?;
        let [count, x, cache, weights] = parts[..] else { unreachable!("the state has four elements") };
        let w = self.row(weights, count)?;
        let made = self.computation.matmul(x, w)?;
        let made = self.bounded(made)?;
        let width = self.array(x).dimensions[1];
        let written = self.computation.reshape(made, [1, 1, width])?;
        let [place, zero] = [place, 0].map(|number| self.computation.constant(Literal::s32(number)));
        let cache = self.computation.dynamic_update_slice(cache, written, [count, place, zero])?;
        let rows = self.row(cache, count)?;
        let scores = self.computation.dot(made, rows, DotDimensions::new([1], [1]))?;
        let scores = self.bounded(scores)?;
        let read = self.computation.matmul(scores, rows)?;
        let read = self.bounded(read)?;
        let next = self.computation.binary(BinaryOp::Add, x, read)?;
        let next = vec![self.successor(count)?, next, cache, weights];
        self.computation.tuple(next)
    }
}
