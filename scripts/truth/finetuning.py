"""Models that were trained before: adapters, preferences, rewards."""

import jax
import jax.numpy as jnp
from jax import lax

from language import decoder
from layers import BF16, F32, S8, as_type, causal, cross_entropy, inference, layers, llama_layer, rms_norm, shape, through, tokens, training
from program import family


def log_odds(p, words, heads, policy=None):
    """How probable each text is to a decoder."""
    x = through(lambda q, x: llama_layer(q, x, heads), p['layers'], p['embedding'][words[:, :-1]], policy)
    odds = jax.nn.log_softmax((rms_norm(x, p['norm']) @ p['head']).astype(F32))
    return jnp.take_along_axis(odds, words[:, 1:, None], -1)[..., 0].sum(-1)


@family
def lora():
    """Low-rank adapters of attention and perceptrons: only they are trained, and only they have a state."""

    def of(
        batch, length, width=1024, depth=4, rank=16, words=16384, heads=16, is_scanned=True, policy=None, base=BF16, merged=False, **options
    ):
        frozen = decoder(width, depth, words, 1, is_scanned)
        one = frozen['layers'] if is_scanned else frozen['layers'][0]
        adapted = {name: one['attention'][name].shape[-2:] for name in 'qkvo'} | {
            name: one[name].shape[-2:] for name in ('gate', 'up', 'down')
        }
        low = {name: dict(a=shape(rows, rank), b=shape(rank, columns)) for name, (rows, columns) in adapted.items()}
        if base == S8:
            is_matrix = lambda leaf: leaf.shape[-2:-1] > (depth,)
            narrow = lambda leaf: shape(*leaf.shape, dtype=S8 if is_matrix(leaf) else BF16)
            scale = lambda leaf: (
                shape(*leaf.shape[:-2], 1, leaf.shape[-1], dtype=BF16) if is_matrix(leaf) else shape(*leaf.shape[:-1], 1, dtype=BF16)
            )
            held = dict(weights=jax.tree.map(narrow, frozen), scales=jax.tree.map(scale, frozen))
        else:
            held = dict(weights=as_type(frozen, base))

        def whole(w, scale):
            return w.astype(BF16) * scale if w.dtype == S8 else w

        def layer(of, x):
            held, low = of
            p = jax.tree.map(whole, held['weights'], held['scales']) if base == S8 else held['weights']
            delta = lambda name: (low[name]['a'] @ low[name]['b']).astype(x.dtype)
            if merged:
                p = p | {name: p[name] + delta(name) for name in ('gate', 'up', 'down')}
                p['attention'] = {name: p['attention'][name] + delta(name) for name in 'qkvo'}
                return llama_layer(p, x, heads)
            beside = lambda y, name: (
                y @ p['attention'].get(name, p.get(name)) + y @ low[name]['a'].astype(x.dtype) @ low[name]['b'].astype(x.dtype)
            )
            y = rms_norm(x, p['norm1'])
            q, k, v = (beside(y, name).reshape(*x.shape[:2], heads, -1) for name in 'qkv')
            scores = jnp.einsum('bthe,bshe->bhts', q, k).astype(F32) * q.shape[-1] ** -0.5
            weights = jax.nn.softmax(jnp.where(causal(length), scores, -1e9), -1).astype(x.dtype)
            x = x + beside(jnp.einsum('bhts,bshe->bthe', weights, v).reshape(x.shape), 'o')
            y = rms_norm(x, p['norm2'])
            return x + beside(jax.nn.silu(beside(y, 'gate')) * beside(y, 'up'), 'down')

        def loss(low, held, words):
            pick = lambda name: jax.tree.map(whole, held['weights'][name], held['scales'][name]) if base == S8 else held['weights'][name]
            x = pick('embedding')[words[:, :-1]]
            each = {name: of['layers'] for name, of in held.items()}
            if is_scanned:

                def step(x, of):
                    return layer(of, x), None

                if policy:
                    step = jax.checkpoint(step, prevent_cse=False)
                x, _ = lax.scan(step, x, (each, low))
            else:
                x = through(layer, [({name: of[i] for name, of in each.items()}, q) for i, q in enumerate(low)], x, policy)
            return cross_entropy(rms_norm(x, pick('norm')) @ pick('head'), words[:, 1:])

        return training(loss, layers(low, depth, is_scanned), tokens(batch, length + 1), held=(held,), **options)

    yield 'scanned_beside', *of(4, 1024)
    yield 'unrolled_merged', *of(8, 512, is_scanned=False, merged=True)
    yield 'scanned_s8', *of(4, 1024, base=S8)
    yield 'scanned_everything', *of(8, 1024, policy='everything')
    yield 'unrolled_f32', *of(4, 512, is_scanned=False, base=F32)
    yield 'scanned_s8_everything_parts', *of(8, 1024, base=S8, policy='everything', parts=4)


@family
def dpo():
    """Preferences without a reward: chosen and rejected texts, joined to one batch, before a policy and what it was."""

    def of(batch, length, width=1024, depth=3, words=16384, heads=16, is_scanned=True, policy=None, joined=True, known=False, **options):
        def loss(p, reference, chosen, rejected):
            if joined:
                both = jnp.concatenate([chosen, rejected])
                ours = log_odds(p, both, heads, policy)
                theirs = reference if known else lax.stop_gradient(log_odds(reference, both, heads))
                apart = ours - theirs
                apart = apart[:batch] - apart[batch:]
            else:
                ours = log_odds(p, chosen, heads, policy) - log_odds(p, rejected, heads, policy)
                apart = ours - lax.stop_gradient(log_odds(reference, chosen, heads) - log_odds(reference, rejected, heads))
            return -jax.nn.log_sigmoid(0.1 * apart).mean()

        parameters = decoder(width, depth, words, 1, is_scanned)
        reference = shape(2 * batch) if known else as_type(parameters, BF16)
        return training(loss, parameters, tokens(batch, length + 1), tokens(batch, length + 1), held=(reference,), **options)

    yield 'scanned_joined_bf16', *of(4, 512, compute=BF16)
    yield 'unrolled_apart_bf16', *of(2, 512, depth=2, is_scanned=False, joined=False, compute=BF16)
    yield 'scanned_joined_everything', *of(8, 512, policy='everything', compute=BF16)
    yield 'scanned_odds_known', *of(4, 1024, policy='everything', known=True, compute=BF16)
    yield 'scanned_apart_f32', *of(2, 512, depth=2, joined=False)
    yield 'unrolled_joined_everything', *of(4, 512, is_scanned=False, policy='everything', compute=BF16)


@family
def grpo():
    """Policies improved against groups of their own samples: ratios to old odds, clipped, and a divergence from a reference."""

    def of(groups, size, length, width=768, depth=3, words=16384, heads=12, is_scanned=True, policy=None, **options):
        def odds(p, words, policy=None):
            x = through(lambda q, x: llama_layer(q, x, heads), p['layers'], p['embedding'][words[:, :-1]], policy)
            logits = (rms_norm(x, p['norm']) @ p['head']).astype(F32)
            return jnp.take_along_axis(jax.nn.log_softmax(logits), words[:, 1:, None], -1)[..., 0]

        def loss(p, reference, words, old, rewards):
            rewards = rewards.reshape(groups, size)
            better = ((rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, keepdims=True) + 1e-4)).reshape(-1, 1)
            now, theirs = odds(p, words, policy), lax.stop_gradient(odds(reference, words))
            ratio = jnp.exp(now - old)
            gain = jnp.minimum(ratio * better, jnp.clip(ratio, 0.8, 1.2) * better)
            return (-gain + 0.04 * (jnp.exp(theirs - now) - (theirs - now) - 1)).mean()

        parameters, texts = decoder(width, depth, words, 1, is_scanned), groups * size
        batch = tokens(texts, length + 1), shape(texts, length), shape(texts)
        return training(loss, parameters, *batch, held=(as_type(parameters, BF16),), **options)

    yield 'scanned_bf16', *of(2, 8, 512, compute=BF16)
    yield 'unrolled_everything', *of(2, 8, 512, is_scanned=False, policy='everything', compute=BF16)
    yield 'scanned_everything_parts', *of(4, 8, 512, policy='everything', compute=BF16)
    yield 'scanned_f32_small', *of(2, 4, 256, width=512, heads=8, depth=2)
    yield 'unrolled_bf16_clip', *of(1, 8, 512, depth=2, is_scanned=False, clip=True, compute=BF16)


@family
def reward_model():
    """Texts are scored from the state at their end; pairs are ranked."""

    def of(batch, length, width=1024, depth=3, words=16384, heads=16, is_scanned=True, policy=None, trains=True, **options):
        parameters = decoder(width, depth, words, 1, is_scanned) | dict(head=shape(width, 1))

        def score(p, words, ends):
            x = through(lambda q, x: llama_layer(q, x, heads), p['layers'], p['embedding'][words], policy)
            last = jnp.take_along_axis(x, ends[:, None, None], 1)[:, 0]
            return (rms_norm(last, p['norm']) @ p['head'])[:, 0].astype(F32)

        def loss(p, words, ends):
            scores = score(p, words, ends).reshape(-1, 2)
            return -jax.nn.log_sigmoid(scores[:, 0] - scores[:, 1]).mean()

        batch = tokens(batch, length), tokens(batch)
        return training(loss, parameters, *batch, **options) if trains else inference(score, as_type(parameters, BF16), *batch)

    yield 'scanned_bf16', *of(8, 1024, compute=BF16)
    yield 'scores_unrolled', *of(16, 1024, is_scanned=False, trains=False)
    yield 'unrolled_names', *of(8, 512, is_scanned=False, policy='names', compute=BF16)
    yield 'scanned_dots_f32', *of(4, 512, policy='dots')
    yield 'scores_scanned', *of(32, 1024, trains=False)
