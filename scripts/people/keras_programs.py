"""Keras 3 on JAX: its own train_step as the trainer jits it, and stateless inference."""

import jax
import jax.numpy as jnp
import keras
from program import integers, normal, program


def train_step(model, optimizer, loss, x, y):
    """`Model.fit`'s step: the trainer's train_step over the values of all variables, donated as the trainer does."""
    model.compile(optimizer, loss=loss, metrics=["accuracy"])
    # What `fit` does before its first step: variables of the optimizer, of metrics and of losses.
    model._symbolic_build(data_batch=(x, y))
    variables = [model.trainable_variables, model.non_trainable_variables, model.optimizer.variables, model.metrics_variables]
    state = tuple([variable.value for variable in group] for group in variables)
    return jax.jit(model.train_step, donate_argnums=0), (state, (x, y))


@program("keras")
def keras_cnn_fit():
    """The convnet of Keras's first guide, with batch normalisation, dropout and a learning rate schedule."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((14, 14, 1)), layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization(), layers.MaxPooling2D(),
        layers.SeparableConv2D(16, 3, activation="relu"), layers.GlobalAveragePooling2D(), layers.Dropout(0.3), layers.Dense(10, activation="softmax"),
    ])
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.ExponentialDecay(1e-3, 100, 0.9))
    return train_step(model, optimizer, "sparse_categorical_crossentropy", normal(0, 8, 14, 14, 1), integers(1, 10, 8))


@program("keras")
def keras_lstm_fit():
    """Bidirectional LSTM and GRU over an embedding with a mask."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((12,), dtype="int32"), layers.Embedding(50, 8, mask_zero=True), layers.Bidirectional(layers.LSTM(8, return_sequences=True)),
        layers.GRU(8), layers.Dense(1, activation="sigmoid"),
    ])
    return train_step(model, keras.optimizers.RMSprop(1e-3), "binary_crossentropy", integers(0, 50, 4, 12), integers(1, 2, 4, 1))


@program("keras")
def keras_mixed_bf16_transformer():
    """A functional model in mixed_bfloat16 with MultiHeadAttention, AdamW with weight decay and clipping."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    tokens = keras.Input((10,), dtype="int32")
    x = layers.Embedding(40, 16)(tokens)
    y = layers.MultiHeadAttention(2, 8, dropout=0.1)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    y = layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
    x = layers.LayerNormalization()(x + y)
    model = keras.Model(tokens, layers.Dense(40, dtype="float32", activation="softmax")(x))
    keras.config.set_dtype_policy(policy)
    optimizer = keras.optimizers.AdamW(1e-3, global_clipnorm=1.0)
    return train_step(model, optimizer, "sparse_categorical_crossentropy", integers(0, 40, 3, 10), integers(1, 40, 3, 10))


@program("keras")
def keras_mobilenet_inference():
    """keras.applications.MobileNetV2 without weights, on small pictures, stateless_call."""
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10)
    x = normal(0, 1, 32, 32, 3)
    state = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]

    @jax.jit
    def infer(trainable, others, x):
        return model.stateless_call(trainable, others, x, training=False)[0]

    return infer, (*state, x)
