"""How to train: the options of a `Trainer`."""

import math
from dataclasses import dataclass

AUTO = "auto"
"""As `TrainSettings.prefetch`: measure, and prefetch only where it pays."""

_PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True)
class EarlyStop:
    """Ends a run when a figure of the evaluation has not become better for a while.

    Args:
        metric: name of the figure: "loss", or one of `Task.metrics`.
        patience: evaluations in a row without a better value after which the run ends.
        is_larger_better: None: larger is better unless the name ends in "loss".

    Example:
        >>> EarlyStop("auc", patience=2).is_better(0.7, 0.6)
        True
    """

    metric: str = "loss"
    patience: int = 3
    is_larger_better: bool | None = None

    def __post_init__(self) -> None:
        _check_at_least("EarlyStop", "patience", self.patience, 1)

    def is_better(self, value: float, best: float) -> bool:
        """Whether a value is better than the best one so far."""
        larger = self.is_larger_better
        if larger is None:
            larger = not self.metric.endswith("loss")
        return value > best if larger else value < best


@dataclass(frozen=True)
class TrainSettings:
    """How to train. `prefetch` 0 and `push` 0 are sequential: a run gives the same bits each time.

    Args:
        steps: most steps of a `fit`; until the data ends if None.
        seed: of the dense model, and of the generators of torch, Python and numpy. Rows have seeds
            of their own.
        precision: of the dense part: "fp32", or "bf16" (autocast; parameters stay float32).
        clip_norm: bound on the L2 norm of the gradients of dense parameters and tables together.
        accumulate: batches of a step; their gradients are averaged.
        threads: of torch and the tables while `fit` runs; as they are if None.
        prefetch: steps whose batches are read and looked up ahead, on a thread; "auto" measures.
        push: 1 applies the gradients of tables on a thread while the next step computes.
        log_every: steps between two reports of figures; 0 for none but the last.
        eval_every: steps between two evaluations; 0 for none.
        early_stop: ends the run by its evaluations.
        evict_every: steps between two evictions of expired rows; 0 for none.
        keep_dir: folder for the batch whose loss is not finite; nothing is written if None.
        checkpoint_dir: folder for checkpoints; none are saved if None.
        save_every: steps between two checkpoints; 0 for none but that of the end.
        keep: number of checkpoints that are kept; 0 keeps all.
        ignore_save_errors: whether a run goes on after a save that failed.

    Raises:
        ValueError: an option is out of range, or needs another one.

    Example:
        >>> TrainSettings(steps=100, prefetch=2, push=1).staleness_bound
        3
    """

    steps: int | None = None
    seed: int = 0
    precision: str = "fp32"
    clip_norm: float | None = None
    accumulate: int = 1
    threads: int | None = None
    prefetch: int | str = 0
    push: int = 0
    log_every: int = 100
    eval_every: int = 0
    early_stop: EarlyStop | None = None
    evict_every: int = 0
    keep_dir: str | None = None
    checkpoint_dir: str | None = None
    save_every: int = 1000
    keep: int = 5
    ignore_save_errors: bool = False

    def __post_init__(self) -> None:
        for name, least in (("accumulate", 1), ("log_every", 0), ("eval_every", 0)):
            _check_at_least("TrainSettings", name, getattr(self, name), least)
        for name in ("evict_every", "save_every", "keep"):
            _check_at_least("TrainSettings", name, getattr(self, name), 0)
        for name in ("steps", "threads"):
            if getattr(self, name) is not None:
                _check_at_least("TrainSettings", name, getattr(self, name), 1)
        if self.prefetch != AUTO:
            _check_at_least("TrainSettings", "prefetch", self.prefetch, 0, f" or {AUTO!r}")
        if self.push not in (0, 1):
            raise ValueError(f"[TrainSettings] expected push 0 or 1, got {self.push!r}")
        if self.precision not in _PRECISIONS:
            raise ValueError(
                f"[TrainSettings] expected precision in {', '.join(_PRECISIONS)}, got "
                f"{self.precision!r}"
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"[TrainSettings] expected clip_norm above 0 and finite, got {self.clip_norm!r}"
            )
        if self.early_stop is not None and not self.eval_every:
            raise ValueError(
                "[TrainSettings] expected eval_every with early_stop, got 0; an early stop looks "
                "at evaluations"
            )

    @property
    def staleness_bound(self) -> int:
        """Most updates, in steps, that a lookup may not have seen; `auto` may prefetch one."""
        ahead = 1 if isinstance(self.prefetch, str) else self.prefetch
        return ahead + self.push


def _check_at_least(where: str, name: str, value: object, least: int, more: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"[{where}] expected {name} >= {least}{more}, got {value!r}")
