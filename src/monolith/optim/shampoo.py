"""Shampoo: gradients preconditioned along every axis, blended in after a warm-up."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from monolith.embedding.arguments import as_integer
from monolith.optim.dense import LEAST_EPSILON, DenseOptimizer, LearningRate
from monolith.optim.rules import Rate

__all__ = ["ShampooOptimizer", "apply_sparse_precond", "eigen_inverse_root"]

_NORM_EPSILON = 1e-10
_SQUARES_EPSILON = 1e-30


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
    program calls `step` as it is, outside of its graph; the schedule and the eigenvectors are
    decided on the host.

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
        global_step: gives t, in place of the count in the parameter groups.
    """

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
        global_step: Callable[[], int] | None = None,
    ) -> None:
        if global_step is not None and not callable(global_step):
            raise TypeError(
                f"[ShampooOptimizer] expected global_step as a function, got {global_step!r}"
            )
        self._global_step = global_step
        self._given_step: int | None = None
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

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def _step_groups(self) -> None:
        self._given_step = None if self._global_step is None else int(self._global_step())
        super()._step_groups()
        for group in self.param_groups:
            group["step"] += 1

    def _step_of(self, group: dict[str, Any]) -> int:
        """The number t of the current step."""
        given = self._given_step
        return int(group["step"]) if given is None else given

    def _init_state(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        for axis, dim in enumerate(parameter.shape):
            eigens = min(dim, group["eigen_head"] + group["eigen_tail"])
            shapes = {"s": (dim, dim), "g": (dim, dim), "pvec": (dim, eigens), "pval": (eigens,)}
            for slot, shape in {**shapes, "o": ()}.items():
                state[f"{slot}{axis}"] = parameter.new_zeros(shape, requires_grad=False)
        for slot in ("d", "m", "pm"):
            state[slot] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    def _update(
        self,
        group: dict[str, Any],
        rate: Rate,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        t, warmup, beta_1 = self._step_of(group), group["warmup"], group["beta_1"]
        is_warm = t > warmup or warmup <= 0
        if is_warm and t % group["tau_1"] == 0:
            group["is_preconditioned"] = True
        found = [self.state[parameter] for parameter in parameters]
        pairs = zip(found, gradients, strict=True)
        conditioned = [self._precondition(group, is_warm, state, g) for state, g in pairs]
        d, m, pm = ([state[slot] for state in found] for slot in ("d", "m", "pm"))
        torch._foreach_addcmul_(d, gradients, gradients)
        roots = torch._foreach_add(d, _SQUARES_EPSILON)
        torch._foreach_sqrt_(roots)
        torch._foreach_mul_(m, beta_1)
        torch._foreach_addcdiv_(m, gradients, roots, value=1.0 - beta_1)
        share = 1.0 if warmup <= 0 else min(max(t / warmup - 1.0, 0.0), 1.0)
        moved = [(x, g) for x, g in zip(pm, conditioned, strict=True) if g is not None]
        if moved:
            momenta, taken = [x for x, _ in moved], [g for _, g in moved]
            torch._foreach_mul_(momenta, beta_1)
            torch._foreach_add_(momenta, taken, alpha=1.0 - beta_1)
        change: list[torch.Tensor] | tuple[torch.Tensor, ...] = m
        if is_warm:
            scales = torch._foreach_norm(m)
            norms = torch._foreach_norm(pm)
            torch._foreach_add_(norms, _NORM_EPSILON)
            torch._foreach_div_(scales, norms)
            second = [x * scale for x, scale in zip(pm, scales, strict=True)]
            change = torch._foreach_mul(m, 1.0 - share)
            torch._foreach_add_(change, second, alpha=share)
        if isinstance(rate, torch.Tensor):
            rate = rate.to(parameters[0].device)
        torch._foreach_sub_(parameters, torch._foreach_mul(change, rate))

    def _precondition(
        self,
        group: dict[str, Any],
        is_warm: bool,
        state: dict[str, torch.Tensor],
        gradient: torch.Tensor,
    ) -> torch.Tensor | None:
        """Update the statistics of a parameter; its preconditioned gradient, None where it is 0."""
        t, beta_2, rank = self._step_of(group), group["beta_2"], gradient.dim()
        conditioned: torch.Tensor | None = gradient
        for axis in range(rank):
            statistics, sums = state[f"g{axis}"], state[f"s{axis}"]
            if t % group["tau_2"] == 0:
                dim = gradient.shape[axis]
                rows = gradient.movedim(axis, 0).reshape(dim, gradient.numel() // max(dim, 1))
                torch.matmul(rows, rows.mT, out=statistics)
            if beta_2 < 1.0 - 1e-10:
                sums.mul_(beta_2).add_(statistics, alpha=1.0 - beta_2)
            else:
                sums.add_(statistics)
            if not group["is_preconditioned"]:
                conditioned = None
                continue
            assert conditioned is not None
            own = [state[f"{slot}{axis}"] for slot in ("pvec", "pval", "o")]
            if is_warm and t % group["tau_1"] == 0:
                ends = group["eigen_head"], group["eigen_tail"], group["damping_epsilon"]
                for kept, new in zip(own, eigen_inverse_root(sums, 2 * rank, *ends), strict=True):
                    kept.copy_(new)
            conditioned = apply_sparse_precond(conditioned, *own)
        return conditioned

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_global_step": self._global_step}
