"""Define `RunnerFlags`: what the accelerator runner is told by its command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from monolith.table.routing import PARTITION_STRATEGIES
from monolith.util.layered_settings import convert_value

MODES = ("train_and_eval", "train", "eval")


def _flag(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


_CLOUD = "refused: start the runner on the machine that has the device"


@dataclass(frozen=True)
class RunnerFlags:
    """Hold the flags of the accelerator runner: names and defaults of the reference system.

    Raises:
        NotImplementedError: A flag names a machine of a cloud.
        ValueError: A flag has none of the values that it may have.

    Example:
        >>> RunnerFlags.parse(["--task=clicks.params.Clicks", "--cpu_test"]).cpu_test
        True
    """

    tpu: str | None = _flag(None, "accelerator: tpu or cuda, both a CUDA device; or cuda:1")
    gcp_project: str | None = _flag(None, _CLOUD)
    tpu_zone: str | None = _flag(None, _CLOUD)
    task: str | None = _flag(None, "key of the task in the model registry")
    model_dir: str | None = _flag(None, "folder for checkpoints and summaries")
    mode: str = _flag("train", "one of train, eval and train_and_eval, which is refused")
    save_checkpoints_steps: int | None = _flag(
        None, "steps between two checkpoints, unless the task says so"
    )
    iterations_per_loop: int = _flag(10000, "changes nothing: hooks see every step")
    pipeline_execution: bool = _flag(False, "whether rows are looked up one step ahead")
    enable_tpu_version_config: bool = _flag(
        True, "whether the device is tried out before the training"
    )
    host_call_every_n_steps: int = _flag(500, "steps between two summaries; 0 writes none")
    enable_stopping_signals: bool = _flag(False, "changes nothing: every end of a run is saved")
    cpu_test: bool = _flag(False, "whether to train on the CPU, without a device")
    partition_strategy: str = _flag(
        "mod", "which of the ranks that torchrun starts has a row: mod, by id, or div, by its hash"
    )
    overwrite_end_date: str = _flag("", "replaces train.end_date of a task that has it")
    tf_version: str = _flag("nightly", "ignored")

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("partition_strategy", PARTITION_STRATEGIES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"[RunnerFlags] expected {name} in {', '.join(known)}, got "
                    f"{getattr(self, name)!r}"
                )
        for name, least in (("iterations_per_loop", 1), ("host_call_every_n_steps", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"[RunnerFlags] expected {name} >= {least}, got {getattr(self, name)}"
                )
        if self.save_checkpoints_steps is not None and self.save_checkpoints_steps < 1:
            raise ValueError(
                "[RunnerFlags] expected save_checkpoints_steps >= 1, got "
                f"{self.save_checkpoints_steps}"
            )
        for name in ("gcp_project", "tpu_zone"):
            if getattr(self, name):
                raise NotImplementedError(
                    f"[RunnerFlags] expected no {name}, got {getattr(self, name)!r}; start the "
                    "runner on the machine that has the device"
                )

    @classmethod
    def parse(cls, arguments: Sequence[str] | None = None) -> "RunnerFlags":
        """Return the flags of a command line; None takes that of the process.

        A flag of true or false stands alone, or as `--no<flag>`. A wrong flag ends the process with
        status 2.
        """
        parser = argparse.ArgumentParser(
            prog="monolith.tpu_runner",
            description="Train or evaluate a task on an accelerator.",
            allow_abbrev=False,
        )
        hints = get_type_hints(cls)
        for flag in fields(cls):
            _add(parser, flag.name, hints[flag.name], flag.metadata["meaning"], flag.default)
        values = vars(parser.parse_args(arguments))
        try:
            return cls(**values)
        except (ValueError, NotImplementedError) as error:
            parser.error(str(error))


def _add(parser: argparse.ArgumentParser, name: str, hint: Any, meaning: str, default: Any) -> None:
    def convert(text: str) -> Any:
        try:
            return convert_value(hint, text, is_text=True)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    options: dict[str, Any] = {"type": convert, "default": default, "help": meaning}
    if hint is bool:
        options.update(nargs="?", const=True)
        parser.add_argument(
            f"--no{name}",
            dest=name,
            action="store_false",
            default=argparse.SUPPRESS,
            help=argparse.SUPPRESS,
        )
    parser.add_argument(f"--{name}", dest=name, **options)
