#!/usr/bin/env python3
"""Training steps under the usual policies of `jax.checkpoint`, to set `memplan rewrite` beside: lowers each to
FOLDER/PROGRAM.POLICY/before.hlo.txt, as scripts/rewritten_with_xla.py takes them. usage: checkpoint_programs.py FOLDER"""
import os
import sys

import estimate_programs as parts
import jax
import jax.numpy as jnp
from jax import ShapeDtypeStruct as Shape
from jax import lax

POLICIES = dict(
    as_written=None,
    dots_saveable=jax.checkpoint_policies.dots_saveable,
    dots_with_no_batch_dims_saveable=jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
    nothing_saveable=jax.checkpoint_policies.nothing_saveable,
)
BATCH, LENGTH, VOCABULARY = 16, 512, 8000


def layer(x, q):
    """A layer of a decoder."""
    h = parts.normalize(x, q['ln1'])
    mask = jnp.tril(jnp.ones((x.shape[1],) * 2, bool))
    return parts.perceptron(q, x + parts.attend(q, h, h, mask))


def language_model(checkpoint, is_scanned):
    """A decoder of which every layer is checkpointed, unrolled or scanned."""
    one = checkpoint(layer)

    def loss(p, tokens):
        x = p['embedding'][tokens]
        if is_scanned:
            x, _ = lax.scan(lambda x, q: (one(x, q), None), x, p['layers'])
        else:
            for i in range(parts.LAYERS):
                x = one(x, jax.tree.map(lambda leaf: leaf[i], p['layers']))
        return parts.cross_entropy(x @ p['embedding'].T, tokens)

    parameters = dict(embedding=Shape((VOCABULARY, parts.WIDTH), parts.F32), layers=parts.layers(parts.F32))
    return parts.training(loss, parameters, Shape((BATCH, LENGTH), parts.S32))


def recurrence(checkpoint, _):
    """A gated recurrence over time, of which every step is checkpointed."""
    width = parts.WIDTH

    def loss(p, batch):
        def step(h, x):
            both = jnp.concatenate([h, x], -1)
            z, r = jax.nn.sigmoid(both @ p['z']), jax.nn.sigmoid(both @ p['r'])
            n = jnp.tanh(jnp.concatenate([r * h, x], -1) @ p['n'])
            h = (1 - z) * n + z * h
            return h, h
        inputs, labels = batch
        _, hs = lax.scan(checkpoint(step), jnp.zeros((inputs.shape[1], width)), inputs)
        return parts.cross_entropy(hs @ p['out'], labels)

    of = lambda *extents: Shape(extents, parts.F32)
    parameters = dict(z=of(2 * width, width), r=of(2 * width, width), n=of(2 * width, width), out=of(width, 256))
    return parts.training(loss, parameters, (of(256, 64, width), Shape((256, 64), parts.S32)))


PROGRAMS = dict(
    language_model=(language_model, False),
    language_model_scan=(language_model, True),
    recurrence_scan=(recurrence, True),
)


def main():
    for name, (make, is_scanned) in PROGRAMS.items():
        for policy_name, policy in POLICIES.items():
            checkpoint = (lambda f, policy=policy: jax.checkpoint(f, policy=policy)) if policy else (lambda f: f)
            function, arguments = make(checkpoint, is_scanned)
            folder = os.path.join(sys.argv[1], f'{name}.{policy_name}')
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, 'before.hlo.txt'), 'w') as out:
                out.write(function.lower(*arguments).as_text('hlo'))


if __name__ == '__main__':
    main()
