"""Dense optimizers with an independent implementation of each, in numpy and float64."""

import numpy as np
import torch

from monolith.optim import AdamomOptimizer, RmspropOptimizer, ShampooOptimizer

SHAPES = ((3, 2), (4,), (), (2, 3, 2))


def parameters(shapes=SHAPES, *, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return [torch.nn.Parameter(value.to(device, dtype)) for value in made]


def give_gradients(params, step):
    """Gradients that depend on the step alone, whatever dtype and device the parameters have."""
    generator = torch.Generator().manual_seed(1000 + step)
    for parameter in params:
        gradient = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.grad = gradient.to(parameter.device, parameter.dtype)


def run(optimizer, params, num_steps, first=0):
    for step in range(first, first + num_steps):
        give_gradients(params, step)
        optimizer.step()


def everything(optimizer, params):
    """Parameters and state, as a flat list."""
    states = [tensor for p in params for _, tensor in sorted(optimizer.state[p].items())]
    return [p.detach().clone() for p in params] + [tensor.clone() for tensor in states]


def same_bits(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


class AdamomByHand:
    def __init__(self, learning_rate, ada_decay, mom_decay, epsilon, weight_decay):
        self.numbers = learning_rate, ada_decay, mom_decay, epsilon, weight_decay
        self.state = {}

    def step(self, number, w, g, t):
        rate, ada, mom, epsilon, decay = self.numbers
        m, v, c = self.state.get(number, (0.0, 0.0, 0.0))
        h = g + decay * w
        m, v, c = mom * m + (1 - mom) * h, ada * v + h**2, ada * c + 1
        self.state[number] = m, v, c
        return w - rate * m / np.sqrt(v / c + epsilon)


class RmspropByHand:
    def __init__(self, learning_rate, beta1, beta2, epsilon, weight_decay, use_v2):
        self.numbers = learning_rate, beta1, beta2, epsilon, weight_decay
        self.use_v2, self.state = use_v2, {}

    def step(self, number, w, g, t):
        rate, beta1, beta2, epsilon, decay = self.numbers
        m, v = self.state.get(number, (0.0, 0.0))
        h = g + decay * w
        v = beta2 * v + (h**2 if self.use_v2 else (1 - beta2) * h**2)
        root = np.sqrt(v) + epsilon if self.use_v2 else np.sqrt(v + epsilon)
        m = beta1 * m + rate * h / root
        self.state[number] = m, v
        return w - m


def inverse_root_by_hand(mat, p, head, tail, damping):
    """The preconditioner as a whole matrix."""
    dim = len(mat)
    values, vectors = np.linalg.eigh(mat)
    above = [i for i, value in enumerate(values) if value > damping]
    zeros = above[0] if above else 0
    if head + tail > dim:
        zeros, head, tail = 0, dim, 0
    elif zeros + head + tail > dim:
        zeros = dim - head - tail
    middle = values[zeros + head : dim - tail]
    offset = middle.mean() if zeros + head + tail != dim else 0.0
    chosen = [*range(zeros, zeros + head), *range(dim - tail, dim)]
    powered = np.maximum(values, damping) ** (-1 / p) - offset
    return sum((powered[i] * np.outer(vectors[:, i], vectors[:, i]) for i in chosen), 0.0) + (
        offset * np.eye(dim)
    )


class ShampooByHand:
    def __init__(self, learning_rate, beta_1, beta_2, warmup, tau_1, tau_2, head, tail, damping):
        self.rate, self.beta_1, self.beta_2 = learning_rate, beta_1, beta_2
        self.warmup, self.tau_1, self.tau_2 = warmup, tau_1, tau_2
        self.ends, self.state = (head, tail, damping), {}

    def step(self, number, w, g, t):
        rank, state = g.ndim, self.state.setdefault(number, {})
        conditioned = g
        for i in range(rank):
            dim = g.shape[i]
            if t % self.tau_2 == 0:
                others = [a for a in range(rank) if a != i]
                state["g", i] = np.tensordot(g, g, axes=(others, others))
            old, new = state.get(("s", i), np.zeros((dim, dim))), state["g", i]
            is_mean = self.beta_2 < 1
            state["s", i] = self.beta_2 * old + (1 - self.beta_2) * new if is_mean else old + new
            if (t > self.warmup or self.warmup <= 0) and t % self.tau_1 == 0:
                root = inverse_root_by_hand(state["s", i], 2 * rank, *self.ends)
                state["p", i] = root
            whole = state.get(("p", i), np.zeros((dim, dim)))
            conditioned = np.moveaxis(np.tensordot(whole, conditioned, axes=(1, i)), 0, i)
        d = state["d"] = state.get("d", 0.0) + g**2
        m = state["m"] = self.beta_1 * state.get("m", 0.0) + (1 - self.beta_1) * g / np.sqrt(
            d + 1e-30
        )
        pm = state["pm"] = self.beta_1 * state.get("pm", 0.0) + (1 - self.beta_1) * conditioned
        if t <= self.warmup and self.warmup > 0:
            return w - self.rate * m
        share = 1.0 if self.warmup <= 0 else min(max(t / self.warmup - 1, 0), 1)
        size = np.sqrt((m**2).sum()) / (np.sqrt((pm**2).sum()) + 1e-10)
        return w - self.rate * ((1 - share) * m + share * size * pm)


# By name: how to make the optimizer, and its double.
CASES = {
    "adamom": (
        lambda params, **more: AdamomOptimizer(
            params, **{"learning_rate": 0.02, "ada_decay": 0.99, "mom_decay": 0.9, **more}
        ),
        lambda: AdamomByHand(0.02, 0.99, 0.9, 1e-6, 0.0),
    ),
    "adamom_decay": (
        lambda params, **more: AdamomOptimizer(
            params, **{"learning_rate": 0.02, "weight_decay": 0.1, "epsilon": 0.01, **more}
        ),
        lambda: AdamomByHand(0.02, 0.9999, 0.99, 0.01, 0.1),
    ),
    "rmsprop": (
        lambda params, **more: RmspropOptimizer(
            params, **{"learning_rate": 0.01, "beta1": 0.9, "weight_decay": 0.1, **more}
        ),
        lambda: RmspropByHand(0.01, 0.9, 0.999, 1e-8, 0.1, False),
    ),
    "rmsprop_v2": (
        lambda params, **more: RmspropOptimizer(
            params, **{"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.9, "use_v2": True, **more}
        ),
        lambda: RmspropByHand(0.01, 0.9, 0.9, 1e-8, 0.0, True),
    ),
    "shampoo": (
        lambda params, **more: ShampooOptimizer(
            params, **{"learning_rate": 0.01, "warmup": 20, "tau_1": 10, "tau_2": 3, **more}
        ),
        lambda: ShampooByHand(0.01, 0.9, 1.0, 20, 10, 3, 100, 100, 1e-3),
    ),
    "shampoo_mean": (
        lambda params, **more: ShampooOptimizer(
            params,
            learning_rate=0.01,
            beta_2=0.9,
            warmup=11,
            tau_1=4,
            tau_2=1,
            **{"eigen_head": 1, "eigen_tail": 1, **more},
        ),
        lambda: ShampooByHand(0.01, 0.9, 0.9, 11, 4, 1, 1, 1, 1e-3),
    ),
}
MAKERS = {name: make for name, (make, _) in CASES.items()}
