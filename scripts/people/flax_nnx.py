"""flax.nnx: modules that hold their state, nnx.jit, nnx.Optimizer, metrics; and the split-and-merge way."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from program import integers, normal, program, shape


class VisionTransformer(nnx.Module):
    def __init__(self, size, patch, width, layers, heads, classes, dtype, rngs):
        self.patches = nnx.Conv(3, width, (patch, patch), (patch, patch), padding="VALID", dtype=dtype, rngs=rngs)
        self.token = nnx.Param(jnp.zeros((1, 1, width)))
        self.positions = nnx.Param(0.02 * jax.random.normal(rngs.params(), (1, (size // patch) ** 2 + 1, width)))
        self.blocks = nnx.List([EncoderBlock(width, heads, dtype, rngs) for _ in range(layers)])
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, x):
        x = self.patches(x).reshape(len(x), -1, self.token.shape[-1])
        x = jnp.concatenate([jnp.broadcast_to(self.token[...], (len(x), 1, x.shape[-1])).astype(x.dtype), x], 1)
        x = x + self.positions[...].astype(x.dtype)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0].astype(jnp.float32))


class EncoderBlock(nnx.Module):
    def __init__(self, width, heads, dtype, rngs):
        self.norm1, self.norm2 = (nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(heads, width, dtype=dtype, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, dtype=dtype, rngs=rngs), nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.down(nnx.gelu(self.up(self.norm2(x)))))


def functional(model, optimizer):
    """A training step over plain pytrees, as nnx's guide to performance has it."""
    definition, state = nnx.split((model, optimizer))

    def step(state, x, y):
        model, optimizer = nnx.merge(definition, state)

        def loss(model):
            logits = model(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), logits

        (value, logits), grads = nnx.value_and_grad(loss, has_aux=True)(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value, jnp.mean(jnp.argmax(logits, -1) == y)

    return jax.jit(step, donate_argnums=0), state


@program("flax nnx")
def vit_train_bf16_small():
    model = VisionTransformer(16, 4, 32, 2, 4, 10, jnp.bfloat16, nnx.Rngs(0))
    step, state = functional(model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param))
    return step, (state, normal(1, 4, 16, 16, 3), integers(2, 10, 4))


@program("flax nnx", runs=False)
def vit_base_train():
    """ViT-B/16 in bf16, gradients accumulated over four steps by optax.MultiSteps; only compiled."""

    def create():
        model = VisionTransformer(224, 16, 768, 12, 12, 1000, jnp.bfloat16, nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.MultiSteps(optax.adamw(1e-3), 4), wrt=nnx.Param)

    step, state = functional(*nnx.eval_shape(create))
    return step, (state, shape(64, 224, 224, 3), shape(64, dtype=jnp.int32))


class Cnn(nnx.Module):
    def __init__(self, rngs):
        self.conv1 = nnx.Conv(1, 8, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=(2, 2), feature_group_count=4, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.linear = nnx.Linear(16 * 9, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv1(x))), (2, 2), (2, 2))
        x = nnx.relu(self.conv2(x))
        return self.linear(self.dropout(x.reshape(len(x), -1)))


@program("flax nnx")
def cnn_batch_norm_train():
    model = Cnn(nnx.Rngs(0))
    step, state = functional(model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param))
    return step, (state, normal(1, 6, 12, 12, 1), integers(2, 10, 6))


@program("flax nnx")
def stacked_layers_scan():
    """Layers made by nnx.vmap and run by nnx.scan with nnx.remat: gradients with respect to the stack."""

    @nnx.vmap(in_axes=(0,), out_axes=0)
    def create(key):
        return EncoderBlock(16, 2, jnp.float32, nnx.Rngs(key))

    blocks = create(jax.random.split(jax.random.key(0), 3))
    blocks.eval()
    definition, params, rest = nnx.split(blocks, nnx.Param, ...)

    @jax.jit
    def run(params, rest, x):
        @nnx.remat
        def apply(block, x):
            return block(x)

        @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
        def forward(block, x):
            return apply(block, x)

        def loss(params):
            return jnp.mean(forward(nnx.merge(definition, params, rest, copy=True), x) ** 2)

        return jax.value_and_grad(loss)(params)

    return run, (params, rest, normal(1, 2, 10, 16))


@program("flax nnx")
def embedding_classifier_eval():
    """Evaluation with nnx's metrics carried from batch to batch."""

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(60, 12, rngs=rngs)
            self.cell = nnx.RNN(nnx.GRUCell(12, 16, rngs=rngs))
            self.head = nnx.Linear(16, 4, rngs=rngs)

        def __call__(self, tokens):
            return self.head(self.cell(self.embed(tokens))[:, -1])

    model = Model(nnx.Rngs(0))
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Accuracy(), loss=nnx.metrics.Average("loss"))
    definition, state = nnx.split((model, metrics))

    @jax.jit
    def evaluate(state, tokens, labels):
        model, metrics = nnx.merge(definition, state)
        logits = model(tokens)
        metrics.update(logits=logits, labels=labels, loss=optax.softmax_cross_entropy_with_integer_labels(logits, labels))
        return nnx.state(metrics), metrics.compute()

    return evaluate, (state, integers(1, 60, 5, 9), integers(2, 4, 5))


@program("flax nnx")
def greedy_decoding_with_donated_cache():
    """Attention with decode=True: the caches are state that a loop over tokens carries, and that the caller gives up."""

    class Decoder(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(40, 32, rngs=rngs)
            self.attention = nnx.List([nnx.MultiHeadAttention(4, 32, decode=True, rngs=rngs) for _ in range(2)])
            self.norm = nnx.List([nnx.RMSNorm(32, rngs=rngs) for _ in range(2)])

        def __call__(self, tokens):
            x = self.embed(tokens)[:, None]
            for norm, attention in zip(self.norm, self.attention):
                x = x + attention(norm(x))
            return self.embed.attend(x[:, 0])

    model = Decoder(nnx.Rngs(0))
    for attention in model.attention:
        attention.init_cache((3, 12, 32))
    definition, cache, params = nnx.split(model, nnx.Cache, ...)

    @functools.partial(jax.jit, donate_argnums=1)
    def generate(params, cache, tokens):
        def next_token(carry, _):
            cache, tokens = carry
            model = nnx.merge(definition, cache, params)
            tokens = jnp.argmax(model(tokens), -1).astype(jnp.int32)
            return (nnx.state(model, nnx.Cache), tokens), tokens

        (cache, _), out = jax.lax.scan(next_token, (cache, tokens), length=8)
        return cache, out.T

    return generate, (params, cache, integers(5, 40, 3))
