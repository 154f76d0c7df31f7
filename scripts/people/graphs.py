"""Graph networks: jraph's models and plain segment operations."""

import functools

import jax
import jax.numpy as jnp
import optax
from program import integers, normal, program


def batch(seed, nodes, edges, width):
    """Two graphs padded to fixed sizes, as jraph.pad_with_graphs leaves them."""
    import jraph

    graph = jraph.GraphsTuple(
        nodes=normal(seed, nodes, width), edges=normal(seed + 1, edges, width // 2), globals=normal(seed + 2, 2, width),
        senders=integers(seed + 3, nodes, edges), receivers=integers(seed + 4, nodes, edges),
        n_node=jnp.array([nodes // 2, nodes - nodes // 2]), n_edge=jnp.array([edges // 3, edges - edges // 3]),
    )
    return jraph.pad_with_graphs(graph, nodes + 5, edges + 6, 3)


@program("jraph")
def graph_network_train():
    """A GraphNetwork of MLPs with flax, two rounds of messages, graphs classified, padding masked."""
    import flax.linen as nn
    import jraph

    class Net(nn.Module):
        @nn.compact
        def __call__(self, graph):
            graph = jraph.GraphMapFeatures(nn.Dense(16), nn.Dense(16), nn.Dense(16))(graph)
            for _ in range(2):
                mlp = lambda: jraph.concatenated_args(lambda x: nn.LayerNorm()(nn.relu(nn.Dense(16)(x))))
                graph = jraph.GraphNetwork(mlp(), mlp(), mlp())(graph)
            return graph._replace(globals=nn.Dense(4)(graph.globals))

    graph, labels = batch(0, 20, 50, 8), integers(9, 4, 3)
    net, optimizer = Net(), optax.adam(1e-3)
    params = net.init(jax.random.key(0), graph)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, graph, labels):
        def loss(params):
            each = optax.softmax_cross_entropy_with_integer_labels(net.apply(params, graph).globals, labels)
            mask = jraph.get_graph_padding_mask(graph)
            return jnp.sum(each * mask) / jnp.sum(mask)

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), graph, labels)


@program("jraph")
def graph_attention_inference():
    """GAT: softmax over incoming edges by segments, two heads averaged, then a GCN layer with normalised degrees."""
    import jraph

    @jax.jit
    def infer(params, graph):
        for w, a in params:
            layer = jraph.GAT(lambda n: n @ w, lambda s, r, e: jax.nn.leaky_relu(jnp.concatenate([s, r], -1) @ a), jax.nn.elu)
            graph = layer(graph._replace(edges=None))
        graph = jraph.GraphConvolution(lambda n: n, add_self_edges=True, symmetric_normalization=True)(graph)
        return jax.nn.log_softmax(graph.nodes)

    params = [(normal(i, a, b) / 4, normal(i + 5, 2 * b, 1)) for i, (a, b) in enumerate([(8, 12), (12, 6)])]
    return infer, (params, batch(20, 18, 40, 8))


@program("jax")
def point_cloud_neighbours():
    """Nearest neighbours by top_k on distances, edge convolutions with max, a global pool: a DGCNN layer and its gradient."""

    @jax.jit
    def run(params, points):
        def network(params):
            x = points
            for w in params[:-1]:
                distance = jnp.sum((x[:, :, None] - x[:, None]) ** 2, -1)
                _, near = jax.lax.top_k(-distance, 4)
                neighbours = jax.vmap(lambda x, i: x[i])(x, near)
                centre = jnp.broadcast_to(x[:, :, None], neighbours.shape)
                x = jnp.max(jax.nn.leaky_relu(jnp.concatenate([centre, neighbours - centre], -1) @ w), 2)
            return jnp.mean(x.max(1) @ params[-1])

        return jax.value_and_grad(network)(params)

    return run, ([normal(0, 6, 12), normal(1, 24, 16), normal(2, 16, 3)], normal(3, 2, 20, 3))
