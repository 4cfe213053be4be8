"""The options of a `Trainer`."""

import math
import re
from dataclasses import dataclass

from monolith.observe.alerts import AlertRule
from monolith.train.driver import MAX_RECOVERIES
from monolith.util.tide_window import TideWindow

AUTO = "auto"
"""Value of `TrainSettings.prefetch`: measure, and prefetch only if steps become faster."""

SAVE_EVERY = 1000
"""Number of steps between two checkpoints of a run without a pace of its own."""

SAVE_RATE = 100.0
"""Default bound on the rate of saves while training goes on, in MB/s."""

FULL_EVERY = 10
"""Default number of links until a full checkpoint is made."""

SCORE_SAMPLES, SCORE_SECONDS = 100_000, 60.0
"""Windows of progressive scores of a stream."""

SKIP, WAIT = "skip", "wait"
"""Values of `TrainSettings.busy_save`."""

_PRECISIONS = ("fp32", "bf16")
_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


@dataclass(frozen=True)
class EarlyStop:
    """The rule that ends a run when a figure of the evaluation no longer becomes better.

    Args:
        metric: Name of the figure: "loss", or a name of `Task.metrics`.
        patience: Number of evaluations in a row without a better value after which the run ends.
        is_larger_better: Whether a larger value is better; None means True unless the name of the
            metric ends in "loss".

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
        """Whether a value is better than the best value so far."""
        larger = self.is_larger_better
        if larger is None:
            larger = not self.metric.endswith("loss")
        return value > best if larger else value < best


@dataclass(frozen=True)
class TrainSettings:
    """The options of a `Trainer`.

    With `prefetch` 0 and `push` 0 a run is sequential and computes the same bits each time.

    Args:
        steps: Maximum number of steps of a `fit`; None trains until the data ends.
        seed: Seed of the generators of torch, Python and numpy; rows have their features' seeds.
        precision: Precision of the model: "fp32", or "bf16" (autocast); parameters and loss are
            float32 with both.
        device: Device of model, loss and dense optimizer: "cpu", "cuda" or "cuda:1"; tables and ids
            stay in main memory.
        clip_norm: Maximum L2 norm of all gradients, dense and tables together; None does not clip.
        accumulate: Number of batches per step, whose gradients are averaged.
        threads: Number of threads of torch and tables during a `fit`; None keeps torch's number.
        prefetch: Number of steps to read and look up ahead on a thread; "auto" measures 0 and 1.
        push: 1 updates tables on a thread during the next step; 0 updates tables within the step.
        log_every: Number of steps between two reports of figures; 0 reports only at the end.
        eval_every: Number of steps between two evaluations; 0 never evaluates.
        early_stop: Rule that ends the run by its evaluations; None never does.
        evict_every: Number of steps between two evictions of expired rows; 0 never evicts.
        keep_dir: Folder for the batch of a loss that is NaN or infinite; None writes no file.
        checkpoint_dir: Folder for the checkpoints of a run; None saves no checkpoints.
        save_every: Number of steps between two checkpoints; 0 saves none by steps, and None means
            1000, or 0 with `save_seconds`.
        save_seconds: Number of seconds between two checkpoints, or None; with `save_every`,
            whichever comes first.
        full_every: Number of checkpoints with only what changed since the one before (links), until
            a thread makes a full checkpoint of the newest; 1 makes every checkpoint a full one.
        save_rate: Bound on the rate of saves while training goes on, in MB/s; 0 means no bound.
        busy_save: Effect of a due save while the one before is being written: "skip" leaves the due
            save out, "wait" lets the run wait.
        background_saves: Whether training goes on while a checkpoint is written.
        keep: Number of newest checkpoints to keep; 0 keeps all.
        ignore_save_errors: Whether a run goes on after its last checkpoint could not be saved, or
            any checkpoint without `background_saves`.
        max_recoveries: Largest number of recoveries from an `AbortedError` in a row without a new
            step; 0 ends the run at the first one, and saves a copy of the model's buffers per step.
        score_samples: Number of samples of each window of progressive scores, metrics of
            predictions from before the samples were learned; 0 scores none, and None means 100,000
            for a stream, else 0.
        score_seconds: Seconds of event time of each window of progressive scores; 0 scores none,
            and None means 60 for a stream, else 0.
        hours: Hours of the day in UTC in which the run trains, such as "22:00-06:00"; outside of
            them it saves and stands. None trains always.
        alerts: Rules over the figures of a run, such as "loss>1.5". A rule that a figure breaks is
            told once to log and metrics, until the figure has come back.

    Raises:
        ValueError: An option is out of range, or requires another option.

    Example:
        >>> TrainSettings(steps=100, prefetch=2, push=1).staleness_bound
        3
    """

    steps: int | None = None
    seed: int = 0
    precision: str = "fp32"
    device: str = "cpu"
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
    save_every: int | None = None
    save_seconds: float | None = None
    full_every: int = FULL_EVERY
    save_rate: float = SAVE_RATE
    busy_save: str = SKIP
    background_saves: bool = True
    keep: int = 5
    ignore_save_errors: bool = False
    max_recoveries: int = MAX_RECOVERIES
    score_samples: int | None = None
    score_seconds: float | None = None
    hours: str | None = None
    alerts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in (
            ("accumulate", 1),
            ("full_every", 1),
            ("log_every", 0),
            ("eval_every", 0),
        ):
            _check_at_least("TrainSettings", name, getattr(self, name), least)
        for name in ("evict_every", "keep", "max_recoveries"):
            _check_at_least("TrainSettings", name, getattr(self, name), 0)
        for name, least in (
            ("steps", 1),
            ("threads", 1),
            ("save_every", 0),
            ("score_samples", 0),
        ):
            if getattr(self, name) is not None:
                _check_at_least("TrainSettings", name, getattr(self, name), least)
        if self.prefetch != AUTO:
            _check_at_least("TrainSettings", "prefetch", self.prefetch, 0, f" or {AUTO!r}")
        if self.push not in (0, 1):
            raise ValueError(f"[TrainSettings] expected push 0 or 1, got {self.push!r}")
        if self.precision not in _PRECISIONS:
            raise ValueError(
                f"[TrainSettings] expected precision in {', '.join(_PRECISIONS)}, got "
                f"{self.precision!r}"
            )
        if not isinstance(self.device, str) or _DEVICE.fullmatch(self.device) is None:
            raise ValueError(
                f"[TrainSettings] expected device cpu, cuda or cuda:N, got {self.device!r}"
            )
        if self.clip_norm is not None and not 0 < self.clip_norm < math.inf:
            raise ValueError(
                f"[TrainSettings] expected clip_norm above 0 and finite, got {self.clip_norm!r}"
            )
        if self.save_seconds is not None and not 0 < self.save_seconds < math.inf:
            raise ValueError(
                "[TrainSettings] expected save_seconds above 0 and finite, got "
                f"{self.save_seconds!r}"
            )
        if self.score_seconds is not None and not 0 <= self.score_seconds < math.inf:
            raise ValueError(
                "[TrainSettings] expected score_seconds >= 0 and finite, got "
                f"{self.score_seconds!r}"
            )
        if self.hours is not None:
            TideWindow.of(self.hours)
        check_save_options("TrainSettings", save_rate=self.save_rate, busy_save=self.busy_save)
        for text in self.alerts:
            AlertRule.of(text)
        if self.early_stop is not None and not self.eval_every:
            raise ValueError(
                "[TrainSettings] expected eval_every with early_stop, got 0; an early stop looks "
                "at evaluations"
            )

    @property
    def steps_between_saves(self) -> int:
        """Number of steps between two checkpoints; 0 saves none by steps."""
        if self.save_every is None:
            return 0 if self.save_seconds is not None else SAVE_EVERY
        return self.save_every

    @property
    def staleness_bound(self) -> int:
        """Largest number of steps whose updates a lookup may miss; "auto" counts as prefetch 1."""
        ahead = 1 if isinstance(self.prefetch, str) else self.prefetch
        return ahead + self.push


def _check_at_least(where: str, name: str, value: object, least: int, more: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"[{where}] expected {name} >= {least}{more}, got {value!r}")


def check_save_options(where: str, **options: object) -> None:
    """Refuse a wrong rate or a wrong rule for saves while another one is being written.

    Args:
        where: Name of the class, for messages.
        options: The rate, and then the rule, by the names that the class has for them.
    """
    (name, rate), (rule_name, rule) = options.items()
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < math.inf:
        raise ValueError(f"[{where}] expected {name} >= 0 and finite, got {rate!r}")
    if rule not in (SKIP, WAIT):
        raise ValueError(f"[{where}] expected {rule_name} {SKIP!r} or {WAIT!r}, got {rule!r}")
