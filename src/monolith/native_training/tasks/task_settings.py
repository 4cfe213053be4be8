"""Set the parameters of a `NativeTask` from the settings of the command line."""

from dataclasses import dataclass, field

from monolith.native_training.tasks.native_params import set_by_name
from monolith.native_training.util.params import Params
from monolith.train.task import TaskSettings

Value = int | float | bool | str | None


@dataclass
class NativeSettings(TaskSettings):
    """Hold the settings of a `NativeTask`: its data, and parameters by their dotted names.

    Args:
        data: Mode -> file, glob or folder; that of training becomes `train.file_pattern`.
        batch_size: Becomes `per_replica_batch_size` of training and evaluation; None changes
            nothing.
        params: Dotted name of a parameter -> its value.
    """

    batch_size: int | None = None  # type: ignore[assignment]
    params: dict[str, Value] = field(default_factory=dict)


def set_params(params: Params, settings: NativeSettings) -> Params:
    """Write settings into parameters, and return the parameters.

    Raises:
        ValueError: there is no such parameter.
    """
    if "train" in settings.data and params.train.file_pattern is None:
        params.train.file_pattern = settings.data["train"]
    if settings.batch_size is not None:
        params.train.per_replica_batch_size = settings.batch_size
        params.eval.per_replica_batch_size = settings.batch_size
    for name, value in settings.params.items():
        try:
            set_by_name(params, {name: value})
        except (AttributeError, AssertionError) as error:
            raise ValueError(
                f"[settings] expected a parameter of the task, got 'params.{name}': {error}"
            ) from error
    return params
