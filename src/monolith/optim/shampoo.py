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
_AXIS_SLOTS = ("s", "g", "pvec", "pval", "o")
_MOMENTA = ("d", "m", "pm")

State = dict[str, torch.Tensor]


class _Phase(NamedTuple):
    """The schedule of a group in one step."""

    is_warm: bool
    with_statistics: bool  # refresh the statistics
    with_roots: bool  # compute the preconditioners
    is_preconditioned: bool  # preconditioners exist
    share: float  # of the preconditioned momentum


def eigen_inverse_root(
    mat: torch.Tensor, p: int, head: int, tail: int, damping: float = 1e-3
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the inverse p-th root of a symmetric matrix, approximated by some eigenvalues.

    The root keeps the `head` smallest eigenvalues above `damping` and the `tail` largest ones, or
    all if there are at most `head + tail`.

    Args:
        mat: Symmetric matrix, (dim, dim).
        p: Degree of the root.
        head: Number of small eigenvalues to keep.
        tail: Number of large eigenvalues to keep.
        damping: Lower bound on eigenvalues before the root.

    Returns:
        Eigenvectors (dim, k), powered eigenvalues minus the offset (k,), and the offset: the mean
        of the eigenvalues in between, 0 if there are none.

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
    ends = [slice(zeros, zeros + head), slice(dim - tail, dim)]
    pval = torch.cat([powered[part] for part in ends]) - offset
    pvec = torch.cat([vectors[:, part] for part in ends], dim=1)
    return pvec.to(mat.dtype), pval.to(mat.dtype), offset.to(mat.dtype)


def apply_sparse_precond(
    tensor: torch.Tensor, pvec: torch.Tensor, pval: torch.Tensor, offset: torch.Tensor | float
) -> torch.Tensor:
    """Multiply axis 0 by `pvec diag(pval) pvec^T + offset`, and move this axis to the end.

    One call for each axis restores the order of the axes.

    Args:
        tensor: Tensor of any shape whose first axis has `dim` elements.
        pvec: Eigenvectors, (dim, k).
        pval: Powered eigenvalues minus the offset, (k,).
        offset: Number, or tensor of one element.
    """
    within = torch.tensordot(tensor, pvec, dims=([0], [0])) * pval
    back: torch.Tensor = torch.tensordot(within, pvec, dims=([-1], [-1]))
    return back + offset * tensor.movedim(0, -1)


class ShampooOptimizer(DenseOptimizer):
    """The Shampoo optimizer with a few eigenvectors per axis, and diagonal steps as a warm-up.

    Step of a parameter of rank r after t earlier steps:

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

    Shampoo is for dense parameters only: the state has two matrices of dim x dim for every axis. A
    compiled graph has one op for each group; the host runs the schedule and the eigenvectors.

    Args:
        params: Parameters or parameter groups.
        learning_rate: Learning rate: a number, a tensor of one element, or a function without
            arguments; see `DenseOptimizer`.
        beta_1: Decay of both momenta.
        beta_2: Decay of the statistics; 1 adds them up.
        warmup: Number of steps with diagonal updates; 0 or less means none.
        tau_1: Number of steps between two computations of the preconditioners.
        tau_2: Number of steps between two refreshes of the statistics.
        eigen_head: Number of small eigenvalues to keep.
        eigen_tail: Number of large eigenvalues to keep.
        damping_epsilon: Lower bound on eigenvalues.
        use_locking: Whether several threads may call `step` concurrently.
        name: Middle part of the state's names, `<parameter>/<name>/<slot>`.
        global_step: Function that returns t, an integer or a tensor; None counts t in the parameter
            groups.
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
        """Add a group of parameters; see `DenseOptimizer.add_param_group`."""
        least = {"warmup": -math.inf, "tau_1": 1, "tau_2": 1, "eigen_head": 0, "eigen_tail": 0}
        options, where = {**self.defaults, **param_group}, "[ShampooOptimizer]"
        for name, bound in least.items():
            if as_integer(where, name, options[name]) < bound:
                raise ValueError(f"{where} expected {name} >= {bound}, got {options[name]}")
        if options["eigen_head"] + options["eigen_tail"] < 1:
            raise ValueError(f"{where} expected eigen_head + eigen_tail >= 1, got 0")
        # The state of preconditioners is 0 and unused until the first ones are computed.
        super().add_param_group({**param_group, "step": 0, "is_preconditioned": False})
        _hold_counters(self.param_groups[-1])

    def _num_kinds(self) -> int:
        # A graph must see the tensors: one list with all states, parameter after parameter.
        return int(torch.compiler.is_compiling())

    def _clock(self) -> list[torch.Tensor]:
        if self._global_step is None:
            return []
        step = self._global_step()
        if isinstance(step, torch.Tensor):
            return [step]
        return [torch.full((), int(step), dtype=torch.int64, device="cpu")]

    def _counters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        return [group["step"], group["is_preconditioned"]]

    def _init_state(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        for axis, dim in enumerate(parameter.shape):
            eigens = min(dim, group["eigen_head"] + group["eigen_tail"])
            shapes = ((dim, dim), (dim, dim), (dim, eigens), (eigens,), ())
            for slot, shape in zip(_AXIS_SLOTS, shapes, strict=True):
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
        *lists, (step, is_preconditioned) = states
        gradients, clock = inputs[: len(parameters)], inputs[len(parameters) :]
        if parameters:
            phase = _phase_of(group, int(clock[0] if clock else step), is_preconditioned)
            by_name = self._states(parameters, *lists)
            triples = zip(parameters, by_name, gradients, strict=True)
            conditioned = [self._precondition(group, phase, *triple) for triple in triples]
            changes = _changes(group["beta_1"], phase, by_name, gradients, conditioned)
            if isinstance(rate, torch.Tensor):
                rate = rate.to(parameters[0].device)
            torch._foreach_sub_(parameters, torch._foreach_mul(changes, rate))
        step += 1

    def _states(
        self, parameters: list[torch.Tensor], tensors: list[torch.Tensor] | None = None
    ) -> list[State]:
        """Return the state of each parameter by name; in a graph, from `tensors`, maybe copies."""
        if tensors is None:
            return [self.state[p] for p in parameters]
        rest = iter(tensors)  # `zip` takes a name first, so that no tensor is lost after the last
        return [dict(zip(_slots(p.dim()), rest, strict=False)) for p in parameters]

    def _precondition(
        self,
        group: dict[str, Any],
        phase: _Phase,
        parameter: torch.Tensor,
        state: State,
        gradient: torch.Tensor,
    ) -> torch.Tensor | None:
        """Update the statistics of a parameter and return its preconditioned gradient.

        None means a gradient of 0, before the first preconditioners.
        """
        beta_2, rank = group["beta_2"], gradient.dim()
        conditioned: torch.Tensor | None = gradient
        for axis in range(rank):
            statistics, sums = state[f"g{axis}"], state[f"s{axis}"]
            if phase.with_statistics:
                dim = gradient.shape[axis]
                rows = gradient.movedim(axis, 0).reshape(dim, gradient.numel() // max(dim, 1))
                torch.matmul(rows, rows.mT, out=statistics)
            if beta_2 < 1.0 - 1e-10:
                sums.mul_(beta_2).add_(statistics, alpha=1.0 - beta_2)
            else:
                sums.add_(statistics)
            if not phase.is_preconditioned:
                conditioned = None
                continue
            assert conditioned is not None
            root = [state[f"{slot}{axis}"] for slot in ("pvec", "pval", "o")]
            if phase.with_roots:
                self._check_finite(parameter, axis, sums)
                ends = group["eigen_head"], group["eigen_tail"], group["damping_epsilon"]
                for old, new in zip(root, eigen_inverse_root(sums, 2 * rank, *ends), strict=True):
                    old.copy_(new)
            conditioned = apply_sparse_precond(conditioned, *root)
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
        """Return the name of a parameter, or its number over all groups; a copy has neither."""
        number = 0
        for group in self.param_groups:
            for i, candidate in enumerate(group["params"]):
                if candidate.data_ptr() == parameter.data_ptr():
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
    """Return the names of a parameter's state tensors, in the order of their list."""
    return (*(f"{slot}{axis}" for axis in range(rank) for slot in _AXIS_SLOTS), *_MOMENTA)


def _hold_counters(group: dict[str, Any]) -> None:
    """Replace the counters of a group by tensors on the host, which a graph can change."""
    for name, dtype in (("step", torch.int64), ("is_preconditioned", torch.bool)):
        group[name] = torch.as_tensor(group[name], dtype=dtype, device="cpu")


def _phase_of(group: dict[str, Any], t: int, is_preconditioned: torch.Tensor) -> _Phase:
    """Return the schedule of step t; set `is_preconditioned` with the first preconditioners."""
    warmup = group["warmup"]
    is_warm = t > warmup or warmup <= 0
    with_roots = is_warm and t % group["tau_1"] == 0
    if with_roots:
        is_preconditioned.fill_(True)
    share = 1.0 if warmup <= 0 else min(max(t / warmup - 1.0, 0.0), 1.0)
    with_statistics = t % group["tau_2"] == 0
    return _Phase(is_warm, with_statistics, with_roots, bool(is_preconditioned), share)


def _changes(
    beta_1: float,
    phase: _Phase,
    states: list[State],
    gradients: list[torch.Tensor],
    conditioned: list[torch.Tensor | None],
) -> list[torch.Tensor] | tuple[torch.Tensor, ...]:
    """Update the momenta and return the changes of the weights at a learning rate of 1."""
    d, m, pm = ([state[slot] for state in states] for slot in _MOMENTA)
    torch._foreach_addcmul_(d, gradients, gradients)
    roots = torch._foreach_add(d, _SQUARES_EPSILON)
    torch._foreach_sqrt_(roots)
    torch._foreach_mul_(m, beta_1)
    torch._foreach_addcdiv_(m, gradients, roots, value=1.0 - beta_1)
    pairs = [(x, g) for x, g in zip(pm, conditioned, strict=True) if g is not None]
    if pairs:
        momenta, terms = [x for x, _ in pairs], [g for _, g in pairs]
        torch._foreach_mul_(momenta, beta_1)
        torch._foreach_add_(momenta, terms, alpha=1.0 - beta_1)
    if not phase.is_warm:
        return m
    scales = torch._foreach_norm(m)
    norms = torch._foreach_norm(pm)
    torch._foreach_add_(norms, _NORM_EPSILON)
    torch._foreach_div_(scales, norms)
    second = [x * scale for x, scale in zip(pm, scales, strict=True)]
    changes = torch._foreach_mul(m, 1.0 - phase.share)
    torch._foreach_add_(changes, second, alpha=phase.share)
    return changes
