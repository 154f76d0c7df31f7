"""Programs of libraries, for unseen.py: language, speech and graphs with Flax, Haiku, jraph and Optax.

They were written when all rules of memplan were there, to tell what an estimate is worth for programs that it does not know.
"""

import math

import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax import nnx

from layers import BF16, F16, F32, shape, tokens

KEY = shape(2, dtype=jnp.uint32)
PROGRAMS = {}  # name: function that returns a function, the shapes of its arguments, and the numbers of those donated


def program(make):
    """Adds a program. Its name is that of the function."""
    assert make.__name__ not in PROGRAMS, make.__name__
    PROGRAMS[make.__name__] = make
    return make


# A step of training.


def is_shape(leaf):
    return isinstance(leaf, jax.ShapeDtypeStruct)


def initial(model, *arguments):
    """The shapes of a network's variables."""
    return jax.eval_shape(model.init, KEY, *arguments)


def updated(optimizer, loss, parameters, state):
    """Parameters and state after a step of an optimizer, and the loss."""
    value, gradients = jax.value_and_grad(loss)(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


def updated_with(optimizer, loss, parameters, state):
    """As `updated`, of a loss that returns something beside it."""
    (value, other), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value, other


def training(loss, optimizer, parameters, *batch):
    """A program that is one step; the loss is a function of parameters and the batch."""

    def step(parameters, state, *batch):
        return updated(optimizer, lambda p: loss(p, *batch), parameters, state)

    return step, (parameters, jax.eval_shape(optimizer.init, parameters), *batch), (0, 1)


def training_keras(model, optimizer, error, examples, labels, measure=None):
    """A program that is one step of a Keras model with an error, and perhaps a measure, of labels and what is predicted."""
    optimizer.build(model.trainable_variables)

    def step(trained, others, state, x, y):
        def loss(trained):
            predicted, after = model.stateless_call(trained, others, x, training=True)
            return error(y, predicted), (predicted, after)

        (value, (predicted, after)), gradients = jax.value_and_grad(loss, has_aux=True)(trained)
        trained, state = optimizer.stateless_apply(state, gradients, trained)
        return trained, after, state, value, *([measure(y, predicted)] if measure else [])

    variables = [model.trainable_variables, model.non_trainable_variables, optimizer.variables]
    shapes = [[shape(*v.shape, dtype=jnp.dtype(v.dtype)) for v in some] for some in variables]
    return step, (*shapes, examples, labels), (0, 1, 2)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


# Language.


class Block(nnx.Module):
    """A layer of a transformer."""

    def __init__(self, width, heads, rngs, dtype):
        self.ln1 = nnx.LayerNorm(width, rngs=rngs, dtype=dtype)
        self.ln2 = nnx.LayerNorm(width, rngs=rngs, dtype=dtype)
        self.att = nnx.MultiHeadAttention(heads, width, rngs=rngs, decode=False, dtype=dtype)
        self.up = nnx.Linear(width, 4 * width, rngs=rngs, dtype=dtype)
        self.down = nnx.Linear(4 * width, width, rngs=rngs, dtype=dtype)
        self.drop = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x, mask):
        x = x + self.drop(self.att(self.ln1(x), mask=mask))
        return x + self.drop(self.down(jax.nn.gelu(self.up(self.ln2(x)))))


class GPT(nnx.Module):
    def __init__(self, words, width, heads, depth, length, rngs, dtype=BF16):
        self.emb = nnx.Embed(words, width, rngs=rngs)
        self.pos = nnx.Param(jax.random.normal(rngs.params(), (length, width)) * 0.02)
        self.blocks = nnx.List([Block(width, heads, rngs, dtype) for _ in range(depth)])
        self.ln = nnx.LayerNorm(width, rngs=rngs, dtype=dtype)

    def __call__(self, words):
        x = (self.emb(words) + self.pos[...]).astype(BF16)
        mask = nnx.make_causal_mask(words)
        for block in self.blocks:
            x = block(x, mask)
        return self.emb.attend(self.ln(x))


@program
def nnx_gpt_ema():
    """Flax NNX: a language model with AdamW, clipping, and an average of its weights."""
    model = nnx.eval_shape(lambda: GPT(32000, 768, 12, 3, 1024, nnx.Rngs(0)))
    definition, parameters, rest = nnx.split(model, nnx.Param, ...)
    schedule = optax.warmup_cosine_decay_schedule(0, 3e-4, 100, 1000)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule, b2=0.95, weight_decay=0.1))
    state = jax.eval_shape(optimizer.init, parameters)

    def step(parameters, rest, state, average, batch):
        def loss(p):
            model = nnx.merge(definition, p, rest, copy=True)
            logits = model(batch[:, :-1]).astype(F32)
            _, _, after = nnx.split(model, nnx.Param, ...)
            return cross_entropy(logits, batch[:, 1:]).mean(), after

        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        average = optax.incremental_update(parameters, average, 1e-3)
        return parameters, after, state, average, dict(loss=value, norm=optax.global_norm(gradients))

    return step, (parameters, rest, state, parameters, tokens(16, 1025)), (0, 1, 2, 3)


@program
def haiku_lstm_lm():
    """Haiku: a language model of two LSTMs with RMSProp."""

    def net(words):
        x = hk.Embed(10000, 512)(words)
        core = hk.DeepRNN([hk.LSTM(1024), jax.nn.relu, hk.LSTM(1024)])
        y, _ = hk.dynamic_unroll(core, x, core.initial_state(words.shape[1]))
        return hk.BatchApply(hk.Linear(10000))(y)

    model = hk.without_apply_rng(hk.transform(net))

    def loss(p, words):
        logits = jax.nn.log_softmax(model.apply(p, words[:-1]))
        return -jnp.mean(jnp.take_along_axis(logits, words[1:, :, None], -1))

    return training(loss, optax.rmsprop(1e-3, momentum=0.9), initial(model, tokens(64, 64)), tokens(65, 64))


@program
def muon_optax():
    """Flax Linen: a language model with gated perceptrons and Muon."""
    from optax import contrib

    class Net(nn.Module):
        @nn.compact
        def __call__(self, words):
            x = nn.Embed(16000, 512)(words)
            for _ in range(3):
                x = x + nn.MultiHeadDotProductAttention(8)(nn.RMSNorm()(x), mask=nn.make_causal_mask(words))
                h = nn.RMSNorm()(x)
                x = x + nn.Dense(512)(nn.silu(nn.Dense(1536)(h)) * nn.Dense(1536)(h))
            return nn.Dense(16000)(x)

    model, words = Net(), tokens(8, 512)

    def loss(p, words):
        return cross_entropy(model.apply(dict(params=p), words)[:, :-1], words[:, 1:]).mean()

    return training(loss, contrib.muon(1e-3), initial(model, words)['params'], words)


@program
def seq2seq_bigru_f16():
    """Flax Linen: translation with recurrent cells in half precision and a scaled loss."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, source, target):
            x = nn.Embed(8000, 256, dtype=F16)(source)
            h = nn.Bidirectional(nn.RNN(nn.GRUCell(256, dtype=F16)), nn.RNN(nn.GRUCell(256, dtype=F16)))(x)
            d = nn.RNN(nn.OptimizedLSTMCell(512, dtype=F16))(nn.Embed(8000, 256, dtype=F16)(target))
            weights = jax.nn.softmax(jnp.einsum('btd,bsd->bts', d, h))
            mixed = jnp.concatenate([d, weights @ h], -1)
            return nn.Dense(8000, dtype=F16)(jnp.tanh(nn.Dense(512, dtype=F16)(mixed)))

    model, source = Net(), tokens(64, 50)
    parameters = initial(model, source, source)['params']
    optimizer = optax.apply_if_finite(optax.adamw(1e-3), 5)

    def step(p, state, scale, source, target):
        def loss(p):
            logits = model.apply(dict(params=p), source, target[:, :-1]).astype(F32)
            each = cross_entropy(logits, target[:, 1:])
            is_word = target[:, 1:] != 0
            return jnp.sum(each * is_word) / is_word.sum() * scale

        value, gradients = jax.value_and_grad(loss)(p)
        gradients = jax.tree.map(lambda g: g / scale, gradients)
        is_finite = jnp.all(jnp.array([jnp.all(jnp.isfinite(g)) for g in jax.tree.leaves(gradients)]))
        updates, state = optimizer.update(gradients, state, p)
        return optax.apply_updates(p, updates), state, jnp.where(is_finite, scale * 1.001, scale / 2), value

    state = jax.eval_shape(optimizer.init, parameters)
    return step, (parameters, state, shape(), source, tokens(64, 51)), (0, 1)


@program
def lora_kd():
    """Plain JAX with Optax: adapters of low rank learn from a teacher."""
    width, words, length, batch, depth, rank = 1024, 32000, 512, 8, 2, 16

    def layer(w, a, x):
        def adapted(x, name):
            return x @ w[name] + (0 if a is None else (x @ a[name + 'A']) @ a[name + 'B'])

        q, k, v = [adapted(x, name).reshape(batch, length, 16, 64) for name in 'qkv']
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(batch, length, width)
        x = x + adapted(y, 'o')
        return x + jax.nn.gelu(x @ w['u']) @ w['d']

    def net(w, adapters, text):
        x = w['emb'][text]
        for i in range(depth):
            x = layer(w['l'][i], None if adapters is None else adapters[i], x)
        return x @ w['emb'].T

    def soft(logits):
        return jax.nn.log_softmax(logits.astype(F32) / 2)

    weights = dict(
        emb=shape(words, width, dtype=BF16),
        l=[
            {name: shape(width, width, dtype=BF16) for name in 'qkvo'}
            | dict(u=shape(width, 4 * width, dtype=BF16), d=shape(4 * width, width, dtype=BF16))
        ]
        * depth,
    )
    down = {name + 'A': shape(width, rank) for name in 'qkvo'}
    up = {name + 'B': shape(rank, width) for name in 'qkvo'}
    adapters = [down | up] * depth
    optimizer = optax.adamw(1e-4)

    def step(adapters, state, w, teacher, text):
        taught = soft(net(teacher, None, text))

        def loss(adapters):
            learnt = soft(net(w, jax.tree.map(lambda x: x.astype(BF16), adapters), text))
            return jnp.mean(jnp.sum(jnp.exp(taught) * (taught - learnt), -1))

        return updated(optimizer, loss, adapters, state)

    state = jax.eval_shape(optimizer.init, adapters)
    return step, (adapters, state, weights, weights, tokens(batch, length)), (0, 1)


# Speech and graphs.


class Conformer(nn.Module):
    d: int
    h: int

    @nn.compact
    def __call__(self, x):
        def perceptron(x):
            return nn.Dense(self.d, dtype=BF16)(nn.silu(nn.Dense(4 * self.d, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x))))

        x = x + 0.5 * perceptron(x)
        x = x + self.attention(nn.LayerNorm(dtype=BF16)(x))
        x = x + self.convolution(x)
        return nn.LayerNorm(dtype=BF16)(x + 0.5 * perceptron(x))

    def attention(self, y):
        """With positions relative to one another."""
        b, t, d = y.shape
        width = d // self.h
        q, k, v = [nn.DenseGeneral((self.h, width), dtype=BF16)(y) for _ in range(3)]
        u = self.param('u', nn.initializers.zeros, (self.h, width)).astype(BF16)
        w = self.param('w', nn.initializers.zeros, (self.h, width)).astype(BF16)
        r = self.param('r', nn.initializers.normal(0.02), (2 * t - 1, self.h, width)).astype(BF16)
        by_content = jnp.einsum('bqhd,bkhd->bhqk', q + u, k)
        by_position = jnp.einsum('bqhd,rhd->bhqr', q + w, r)
        shifted = jnp.pad(by_position, ((0, 0), (0, 0), (0, 0), (1, 0))).reshape(b, self.h, 2 * t, t)[:, :, 1:]
        by_position = shifted.reshape(b, self.h, t, 2 * t - 1)[..., :t]
        weights = jax.nn.softmax((by_content + by_position).astype(F32) / math.sqrt(width), -1).astype(BF16)
        return nn.DenseGeneral(d, axis=(-2, -1), dtype=BF16)(jnp.einsum('bhqk,bkhd->bqhd', weights, v))

    def convolution(self, x):
        d = x.shape[-1]
        y = nn.glu(nn.Dense(2 * d, dtype=BF16)(nn.LayerNorm(dtype=BF16)(x)))
        y = nn.Conv(d, (31,), feature_group_count=d, dtype=BF16)(y)
        return nn.Dense(d, dtype=BF16)(nn.silu(nn.LayerNorm(dtype=BF16)(y)))


@program
def conformer_ctc():
    """Flax Linen: speech with checkpointed conformer layers and the CTC loss."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Conv(128, (3, 3), (2, 2), dtype=BF16)(x[..., None]))
            x = nn.relu(nn.Conv(128, (3, 3), (2, 2), dtype=BF16)(x))
            x = nn.Dense(256, dtype=BF16)(x.reshape(*x.shape[:2], -1))
            checkpointed = nn.remat(Conformer)
            for _ in range(2):
                x = checkpointed(256, 4)(x)
            return nn.Dense(1024)(x)

    model, sound = Net(), shape(16, 1600, 80)

    def loss(p, x, x_padding, y, y_padding):
        return optax.ctc_loss(model.apply(dict(params=p), x), x_padding, y, y_padding).mean()

    batch = sound, shape(16, 400), tokens(16, 60), shape(16, 60)
    return training(loss, optax.adam(1e-3, mu_dtype=BF16), initial(model, sound)['params'], *batch)


@program
def gat_jraph():
    """jraph: attention over the edges of a graph, with dropout."""
    import jraph

    nodes, edges, width, heads = 20000, 200000, 128, 4

    def layer(p, x, senders, receivers):
        h = (x @ p['w']).reshape(nodes, heads, -1)
        scores = jax.nn.leaky_relu((h * p['a']).sum(-1)[senders] + (h * p['b']).sum(-1)[receivers])
        weights = jraph.segment_softmax(scores, receivers, nodes)
        return jax.ops.segment_sum(h[senders] * weights[..., None], receivers, nodes).reshape(nodes, -1)

    def of_layer(given):
        return dict(w=shape(given, width), a=shape(heads, width // heads), b=shape(heads, width // heads))

    def loss(p, x, senders, receivers, labels, mask, key):
        h = x
        for i, q in enumerate(p['l']):
            h = jax.nn.elu(layer(q, h, senders, receivers))
            kept = jax.random.bernoulli(jax.random.fold_in(key, i), 0.6, h.shape)
            h = jnp.where(kept, h / 0.6, 0)
        return jnp.sum(cross_entropy(h @ p['o'], labels) * mask) / mask.sum()

    parameters = dict(l=[of_layer(256), of_layer(width), of_layer(width)], o=shape(width, 40))
    graph = shape(nodes, 256), tokens(edges), tokens(edges), tokens(nodes), shape(nodes), KEY
    return training(loss, optax.adamw(1e-3), parameters, *graph)
