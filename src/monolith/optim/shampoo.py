"""Shampoo: gradients preconditioned along every axis, blended in after a warm-up."""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch

from monolith.optim.dense import LEAST_EPSILON, DenseOptimizer, LearningRate
from monolith.optim.update_rules import Rate
from monolith.table.arguments import as_integer

_NORM_EPSILON = 1e-10
_SQUARES_EPSILON = 1e-30
_OF_AN_AXIS = ("s", "g", "pvec", "pval", "o")
_MOMENTA = ("d", "m", "pm")

State = dict[str, torch.Tensor]


class _Turn(NamedTuple):
    """What the schedule of a group says of one step."""

    is_warm: bool
    with_statistics: bool  # they are refreshed
    with_roots: bool  # preconditioners are computed
    is_preconditioned: bool  # there are some
    share: float  # of the preconditioned momentum


def eigen_inverse_root(
    mat: torch.Tensor, p: int, head: int, tail: int, damping: float = 1e-3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse p-th root of a symmetric matrix, of some of its eigenvalues.

    Of the eigenvalues in ascending order, `head` of those above `damping` and the last `tail` are
    kept; all of them if there are no more than `head + tail`.

    Args:
        mat: symmetric, (dim, dim).
        p: the root.
        head: number of small eigenvalues.
        tail: number of large ones.
        damping: least value of an eigenvalue that is powered.

    Returns:
        Eigenvectors (dim, k), powered eigenvalues minus the offset (k,), and the offset: the mean
        of the eigenvalues in between, 0 where there are none.

    Example:
        >>> eigen_inverse_root(torch.diag(torch.tensor([4.0, 16.0])), p=2, head=1, tail=1)[1]
        tensor([0.5000, 0.2500])
    """
    dim = mat.shape[0]
    # LAPACK has no half precision.
    exact = mat if mat.dtype in (torch.float32, torch.float64) else mat.float()
    values, vectors = torch.linalg.eigh(exact)
    powered = values.clamp(min=damping).pow(-1.0 / p)
    zeros = int((values <= damping).sum())
    if zeros == dim:
        zeros = 0
    if head + tail > dim:
        zeros, head, tail = 0, dim, 0
    elif zeros + head + tail > dim:
        zeros = dim - head - tail
    middle = slice(zeros + head, dim - tail)
    offset = values.new_zeros(()) if middle.start == middle.stop else values[middle].mean()
    chosen = [slice(zeros, zeros + head), slice(dim - tail, dim)]
    selected = torch.cat([powered[part] for part in chosen]) - offset
    kept = torch.cat([vectors[:, part] for part in chosen], dim=1)
    return kept.to(mat.dtype), selected.to(mat.dtype), offset.to(mat.dtype)


def apply_sparse_precond(
    tensor: torch.Tensor, pvec: torch.Tensor, pval: torch.Tensor, offset: torch.Tensor | float
) -> torch.Tensor:
    """Multiply axis 0 by `pvec diag(pval) pvec^T + offset`, and move it to the end.

    After as many calls as the tensor has axes their order is the old one.

    Args:
        tensor: any shape; its first axis has `dim` elements.
        pvec: (dim, k).
        pval: (k,).
        offset: a number, or a tensor of one element.
    """
    within = torch.tensordot(tensor, pvec, dims=([0], [0])) * pval
    back: torch.Tensor = torch.tensordot(within, pvec, dims=([-1], [-1]))
    return back + offset * tensor.movedim(0, -1)


class ShampooOptimizer(DenseOptimizer):
    """Shampoo with a few eigenvectors per axis, and a diagonal step until it is warmed up.

    With t the number of earlier steps, of a parameter of rank r:

    ```
    for each axis i, from G = g on:
        every tau_2 steps: g_i <- g times itself, summed over all other axes
        s_i <- s_i + g_i                              beta_2 < 1: beta_2 * s_i + (1 - beta_2) * g_i
        every tau_1 steps, t > warmup: the 2r-th inverse root of s_i (eigen_inverse_root)
        G <- G preconditioned along axis i (apply_sparse_precond)
    d <- d + g^2
    m <- beta_1 * m + (1 - beta_1) * g / sqrt(d + 1e-30)
    pm <- beta_1 * pm + (1 - beta_1) * G
    w <- w - lr * m                                                                    t <= warmup
    w <- w - lr * ((1 - x) * m + x * |m| / (|pm| + 1e-10) * pm)      x = min(t / warmup - 1, 1)
    ```

    For dense parameters only: state takes two matrices of dim x dim for every axis. A compiled
    graph has one op for each group; the schedule and the eigenvectors are decided on the host.

    Args:
        params: parameters or groups of them.
        learning_rate: see `DenseOptimizer`.
        beta_1: what is kept of both momenta.
        beta_2: what is kept of the statistics; 1 adds them up.
        warmup: steps of diagonal updates; 0 or less is none.
        tau_1: steps between two computations of the preconditioners.
        tau_2: steps between two refreshes of the statistics.
        eigen_head: number of small eigenvalues that are kept.
        eigen_tail: number of large ones.
        damping_epsilon: least eigenvalue.
        use_locking: whether several threads may call `step` at once.
        name: part of the names of the state.
        global_step: gives t, an integer or a tensor, in place of the count in the parameter groups.
    """

    is_traced = False
    ranges: ClassVar = {
        "beta_1": (0.0, 1.0),
        "beta_2": (0.0, 1.0),
        "damping_epsilon": (LEAST_EPSILON, 1e38),
    }

    def __init__(
        self,
        params: Any,
        learning_rate: LearningRate = 0.03,
        *,
        beta_1: float = 0.9,
        beta_2: float = 1.0,
        warmup: int = 5000,
        tau_1: int = 200,
        tau_2: int = 20,
        eigen_head: int = 100,
        eigen_tail: int = 100,
        damping_epsilon: float = 1e-3,
        use_locking: bool = False,
        name: str = "Shampoo",
        global_step: Callable[[], int | torch.Tensor] | None = None,
    ) -> None:
        if global_step is not None and not callable(global_step):
            raise TypeError(
                f"[ShampooOptimizer] expected global_step as a function, got {global_step!r}"
            )
        self._global_step = global_step
        options = {
            "lr": learning_rate,
            "beta_1": beta_1,
            "beta_2": beta_2,
            "warmup": warmup,
            "tau_1": tau_1,
            "tau_2": tau_2,
            "eigen_head": eigen_head,
            "eigen_tail": eigen_tail,
            "damping_epsilon": damping_epsilon,
        }
        super().__init__(params, options, name=name, use_locking=use_locking)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As of `DenseOptimizer`."""
        least = {"warmup": -math.inf, "tau_1": 1, "tau_2": 1, "eigen_head": 0, "eigen_tail": 0}
        options, where = {**self.defaults, **param_group}, "[ShampooOptimizer]"
        for name, bound in least.items():
            if as_integer(where, name, options[name]) < bound:
                raise ValueError(f"{where} expected {name} >= {bound}, got {options[name]}")
        if options["eigen_head"] + options["eigen_tail"] < 1:
            raise ValueError(f"{where} expected eigen_head + eigen_tail >= 1, got 0")
        # Until the first preconditioners all that belongs to them is 0, and is left alone.
        super().add_param_group({**param_group, "step": 0, "is_preconditioned": False})
        _hold_counters(self.param_groups[-1])

    def _num_kinds(self) -> int:
        # A graph has to see the tensors: all the state of a parameter, then that of the next.
        return int(torch.compiler.is_compiling())

    def _clock(self) -> list[torch.Tensor]:
        if self._global_step is None:
            return []
        given = self._global_step()
        if isinstance(given, torch.Tensor):
            return [given]
        return [torch.full((), int(given), dtype=torch.int64, device="cpu")]

    def _counters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        return [group["step"], group["is_preconditioned"]]

    def _init_state(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        for axis, dim in enumerate(parameter.shape):
            eigens = min(dim, group["eigen_head"] + group["eigen_tail"])
            shapes = ((dim, dim), (dim, dim), (dim, eigens), (eigens,), ())
            for slot, shape in zip(_OF_AN_AXIS, shapes, strict=True):
                state[f"{slot}{axis}"] = parameter.new_zeros(shape, requires_grad=False)
        for slot in _MOMENTA:
            state[slot] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    def _init_group(
        self,
        group: dict[str, Any],
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        super()._init_group(group, parameters, gradients)
        for tensors in states:
            for p in parameters:
                tensors.extend([self.state[p][slot] for slot in _slots(p.dim())])

    def _update(
        self,
        group: dict[str, Any],
        rate: Rate,
        parameters: list[torch.Tensor],
        inputs: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        *of_parameters, (step, is_preconditioned) = states
        gradients, given = inputs[: len(parameters)], inputs[len(parameters) :]
        if parameters:
            turn = _turn(group, int(given[0] if given else step), is_preconditioned)
            found = self._states(parameters, *of_parameters)
            triples = zip(parameters, found, gradients, strict=True)
            conditioned = [self._precondition(group, turn, *each) for each in triples]
            changes = _changes(group["beta_1"], turn, found, gradients, conditioned)
            if isinstance(rate, torch.Tensor):
                rate = rate.to(parameters[0].device)
            torch._foreach_sub_(parameters, torch._foreach_mul(changes, rate))
        step += 1

    def _states(
        self, parameters: list[torch.Tensor], tensors: list[torch.Tensor] | None = None
    ) -> list[State]:
        """Of each parameter, by name; out of the list in a graph, which may hold copies."""
        if tensors is None:
            return [self.state[p] for p in parameters]
        rest = iter(tensors)  # `zip` asks for a name first: when they end, it has taken no tensor
        return [dict(zip(_slots(p.dim()), rest, strict=False)) for p in parameters]

    def _precondition(
        self,
        group: dict[str, Any],
        turn: _Turn,
        parameter: torch.Tensor,
        state: State,
        gradient: torch.Tensor,
    ) -> torch.Tensor | None:
        """Update the statistics of a parameter; its preconditioned gradient, None where it is 0."""
        beta_2, rank = group["beta_2"], gradient.dim()
        conditioned: torch.Tensor | None = gradient
        for axis in range(rank):
            statistics, sums = state[f"g{axis}"], state[f"s{axis}"]
            if turn.with_statistics:
                dim = gradient.shape[axis]
                rows = gradient.movedim(axis, 0).reshape(dim, gradient.numel() // max(dim, 1))
                torch.matmul(rows, rows.mT, out=statistics)
            if beta_2 < 1.0 - 1e-10:
                sums.mul_(beta_2).add_(statistics, alpha=1.0 - beta_2)
            else:
                sums.add_(statistics)
            if not turn.is_preconditioned:
                conditioned = None
                continue
            assert conditioned is not None
            own = [state[f"{slot}{axis}"] for slot in ("pvec", "pval", "o")]
            if turn.with_roots:
                self._check_finite(parameter, axis, sums)
                ends = group["eigen_head"], group["eigen_tail"], group["damping_epsilon"]
                for kept, new in zip(own, eigen_inverse_root(sums, 2 * rank, *ends), strict=True):
                    kept.copy_(new)
            conditioned = apply_sparse_precond(conditioned, *own)
        return conditioned

    def _check_finite(self, parameter: torch.Tensor, axis: int, sums: torch.Tensor) -> None:
        if sums.isfinite().all():
            return
        raise ValueError(
            f"[ShampooOptimizer.step] expected finite statistics, got NaN or Inf in s{axis} of "
            f"parameter {self._name_of(parameter)} of shape {tuple(parameter.shape)}: one of its "
            "gradients was not finite, or its square was not; load a state from before, and skip "
            "such steps (torch.amp.GradScaler) or clip them"
        )

    def _name_of(self, parameter: torch.Tensor) -> str:
        """By name, or by number over all groups; neither is known of a copy."""
        number = 0
        for group in self.param_groups:
            for i, own in enumerate(group["params"]):
                if own.data_ptr() == parameter.data_ptr():
                    names = group.get("param_names")
                    return f"number {number}" if names is None else str(names[i])
                number += 1
        return "(a copy made by the compiler)"

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_global_step": self._global_step}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            _hold_counters(group)


def _slots(rank: int) -> tuple[str, ...]:
    """Names of the state of a parameter, in the order of the list."""
    return (*(f"{slot}{axis}" for axis in range(rank) for slot in _OF_AN_AXIS), *_MOMENTA)


def _hold_counters(group: dict[str, Any]) -> None:
    """Make tensors of the counters: a graph can change them. They are read on the host."""
    for name, dtype in (("step", torch.int64), ("is_preconditioned", torch.bool)):
        group[name] = torch.as_tensor(group[name], dtype=dtype, device="cpu")


def _turn(group: dict[str, Any], t: int, is_preconditioned: torch.Tensor) -> _Turn:
    """Of step t; `is_preconditioned` is set with the first preconditioners."""
    warmup = group["warmup"]
    is_warm = t > warmup or warmup <= 0
    with_roots = is_warm and t % group["tau_1"] == 0
    if with_roots:
        is_preconditioned.fill_(True)
    share = 1.0 if warmup <= 0 else min(max(t / warmup - 1.0, 0.0), 1.0)
    with_statistics = t % group["tau_2"] == 0
    return _Turn(is_warm, with_statistics, with_roots, bool(is_preconditioned), share)


def _changes(
    beta_1: float,
    turn: _Turn,
    found: list[State],
    gradients: list[torch.Tensor],
    conditioned: list[torch.Tensor | None],
) -> list[torch.Tensor] | tuple[torch.Tensor, ...]:
    """What the rate multiplies, after an update of the momenta."""
    d, m, pm = ([state[slot] for state in found] for slot in _MOMENTA)
    torch._foreach_addcmul_(d, gradients, gradients)
    roots = torch._foreach_add(d, _SQUARES_EPSILON)
    torch._foreach_sqrt_(roots)
    torch._foreach_mul_(m, beta_1)
    torch._foreach_addcdiv_(m, gradients, roots, value=1.0 - beta_1)
    moved = [(x, g) for x, g in zip(pm, conditioned, strict=True) if g is not None]
    if moved:
        momenta, taken = [x for x, _ in moved], [g for _, g in moved]
        torch._foreach_mul_(momenta, beta_1)
        torch._foreach_add_(momenta, taken, alpha=1.0 - beta_1)
    if not turn.is_warm:
        return m
    scales = torch._foreach_norm(m)
    norms = torch._foreach_norm(pm)
    torch._foreach_add_(norms, _NORM_EPSILON)
    torch._foreach_div_(scales, norms)
    second = [x * scale for x, scale in zip(pm, scales, strict=True)]
    changes = torch._foreach_mul(m, 1.0 - turn.share)
    torch._foreach_add_(changes, second, alpha=turn.share)
    return changes
