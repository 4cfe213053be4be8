"""Clip gradients by functions of tensors: new tensors out, arguments unchanged.

A gradient that is None stays None.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import torch

Gradients = Sequence[torch.Tensor | None]
Clipped = list[torch.Tensor | None]


class GradClipType(enum.IntEnum):
    """Name the ways to clip gradients."""

    ClipByNorm = 1
    ClipByGlobalNorm = 2
    ClipByValue = 3
    ClipByDenseAndSparse = 4
    NoClip = 5


class ClippedGradients(NamedTuple):
    """Hold clipped gradients; `norm` is the global norm, None without a clip by it."""

    dense: Clipped
    sparse: Clipped
    norm: torch.Tensor | None


def global_norm(t_list: Gradients) -> torch.Tensor:
    """The norm of all tensors as one vector; 0 of none.

    Example:
        >>> global_norm([torch.tensor([3.0]), torch.tensor([4.0])])
        tensor(5.)
    """
    tensors = [t.detach() for t in t_list if t is not None]
    halves = (torch.float16, torch.bfloat16)  # whose norm would be rounded to 3 digits
    return torch.nn.utils.get_total_norm(
        [
            torch.linalg.vector_norm(t, dtype=torch.float32) if t.dtype in halves else t
            for t in tensors
        ]
    )


def clip_by_global_norm(
    t_list: Gradients, clip_norm: float, use_norm: torch.Tensor | float | None = None
) -> tuple[Clipped, torch.Tensor]:
    """Multiply all tensors by `clip_norm / norm` if the norm of all together is larger.

    Args:
        t_list: a list of tensors.
        clip_norm: greatest norm, 0 or more.
        use_norm: taken as the norm, in place of the one of the tensors.

    Returns:
        The clipped tensors, NaN where the norm is not finite, and the norm.

    Raises:
        TypeError: the tensors are not in a list.
        ValueError: `clip_norm` is negative or NaN.

    Example:
        >>> clip_by_global_norm([torch.tensor([-3.0, 0.0]), torch.tensor([4.0, 0.0])], 4.0)[0]
        [tensor([-2.4000,  0.0000]), tensor([3.2000, 0.0000])]
    """
    if not isinstance(t_list, list):
        raise TypeError("t_list should be a list")
    _check_bound("clip_by_global_norm", clip_norm)
    norm = global_norm(t_list) if use_norm is None else torch.as_tensor(use_norm)
    scale = torch.where(norm > clip_norm, clip_norm / norm, 1.0)
    scale = torch.where(norm.isfinite(), scale, torch.nan)
    return [None if t is None else t * scale.to(t.device, t.dtype) for t in t_list], norm


def clip_by_norm(t: torch.Tensor, clip_norm: float) -> torch.Tensor:
    """Multiply a tensor by `clip_norm / norm` if its norm is larger; NaN if it is not finite."""
    clipped = clip_by_global_norm([t], clip_norm)[0][0]
    assert clipped is not None
    return clipped


def clip_by_value(t: torch.Tensor, clip_value: float) -> torch.Tensor:
    """Every element held between `-clip_value` and `clip_value`.

    Raises:
        ValueError: `clip_value` is negative or NaN.
    """
    _check_bound("clip_by_value", clip_value)
    return t.clamp(-clip_value, clip_value)


def warmed_up_norm(clip_norm: float, step: int, warmup_steps: int | None) -> float:
    """The bound of a step: it grows from 0 to `clip_norm` in `warmup_steps`; None is no warm-up.

    Raises:
        ValueError: `warmup_steps` is below 1.

    Example:
        >>> warmed_up_norm(8.0, 3, 12)
        2.0
    """
    if warmup_steps is None:
        return clip_norm
    if warmup_steps < 1:
        raise ValueError(f"[warmed_up_norm] expected warmup_steps >= 1, got {warmup_steps}")
    return clip_norm * min(step / warmup_steps, 1.0)


def clip_gradients(
    dense: Gradients,
    sparse: Gradients = (),
    *,
    clip_type: GradClipType = GradClipType.ClipByGlobalNorm,
    clip_norm: float | None = None,
    sparse_clip_norm: float | None = None,
) -> ClippedGradients:
    """Clip gradients of dense parameters and of rows of tables.

    - ClipByNorm, ClipByValue: each tensor on its own, by `clip_norm`.
    - ClipByGlobalNorm: by one norm over all; dense ones to `clip_norm`, sparse ones to
      `sparse_clip_norm` if it is given, else to `clip_norm`.
    - ClipByDenseAndSparse: dense ones by their norm, sparse ones by theirs, if `sparse_clip_norm`
      is given.
    - NoClip, or no `clip_norm`: as they are.

    Args:
        dense: gradients of dense parameters.
        sparse: gradients of rows.
        clip_type: see above.
        clip_norm: bound of the dense ones.
        sparse_clip_norm: bound of the sparse ones; `warmed_up_norm` lets it grow.

    Raises:
        ValueError: a bound is negative or NaN.
    """
    kept = ClippedGradients(list(dense), list(sparse), None)
    clip_type = GradClipType(clip_type)
    if clip_norm is None or clip_type is GradClipType.NoClip:
        return kept
    if clip_type is GradClipType.ClipByGlobalNorm:
        norm = global_norm([*dense, *sparse])
        of_sparse = clip_norm if sparse_clip_norm is None else sparse_clip_norm
        clipped = clip_by_global_norm(kept.dense, clip_norm, norm)[0]
        return ClippedGradients(clipped, clip_by_global_norm(kept.sparse, of_sparse, norm)[0], norm)
    if clip_type is GradClipType.ClipByDenseAndSparse:
        clipped = clip_by_global_norm(kept.dense, clip_norm)[0]
        if sparse_clip_norm is None:
            return ClippedGradients(clipped, kept.sparse, None)
        return ClippedGradients(
            clipped, clip_by_global_norm(kept.sparse, sparse_clip_norm)[0], None
        )
    clip = clip_by_norm if clip_type is GradClipType.ClipByNorm else clip_by_value

    def clip_each(tensors: Clipped) -> Clipped:
        return [None if t is None else clip(t, clip_norm) for t in tensors]

    return ClippedGradients(clip_each(kept.dense), clip_each(kept.sparse), None)


def _check_bound(where: str, bound: float) -> None:
    if not bound >= 0:
        raise ValueError(f"[{where}] expected a bound >= 0, got {bound}")
