"""`monolith inspect` of a task file: features, tables, columns, settings and the dense model."""

import dataclasses
from typing import Any

from monolith.cli.console import emit_json, emit_table, say
from monolith.cli.tasks.task_file import load_task_class
from monolith.nn import Feature
from monolith.nn.feature import table_configs
from monolith.table.config import segments_of
from monolith.train import Task
from monolith.train.inputs import TaskColumns


def inspect_task(place: str, as_json: bool) -> None:
    """Print the task of a file. Nothing is read or trained, but the dense model is built.

    Args:
        place: path of the task file, in the form that `load_task_class` accepts.
        as_json: whether to print one line of JSON instead of tables.
    """
    task_class = load_task_class(place)
    task = task_class.from_settings(task_class.Settings())
    features = [_feature_row(task, feature) for feature in task.features]
    settings = {field.name: getattr(task.settings, field.name) for field in _settings(task)}
    num_parameters = sum(parameter.numel() for parameter in task.build().parameters())
    columns = TaskColumns.of(task)
    if as_json:
        emit_json(
            {
                "task": task.name,
                "features": features,
                "dense": list(task.dense),
                "labels": columns.labels,
                "columns": columns.others,
                "settings": settings,
                "num_parameters": num_parameters,
            }
        )
        return
    if features:
        emit_table(list(features[0]), [list(row.values()) for row in features])
    say(
        f"task {task.name}: {len(features)} features in "
        f"{len({row['table'] for row in features})} tables; dense columns: "
        f"{', '.join(task.dense) or 'none'}; label: {', '.join(columns.labels)}; "
        f"{_words_of_others(columns)}{num_parameters:,} dense parameters\n"
        f"settings: {', '.join(f'{name}={value!r}' for name, value in settings.items())}; "
        f"next: monolith train {place}"
    )


def _words_of_others(columns: TaskColumns) -> str:
    """Name further columns that the task reads; no words without any."""
    if columns.others is None:
        return "further columns: all; "
    return f"further columns: {', '.join(columns.others)}; " if columns.others else ""


def _settings(task: Task) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(task.settings)


def _feature_row(task: Task, feature: Feature) -> dict[str, object]:
    config = {config.name: config for config in table_configs(task.features)}[feature.table]
    expiry, admission = config.expiry, config.admission
    return {
        "feature": feature.name,
        "table": feature.table,
        "dim": config.dim,
        "combiner": feature.combiner,
        "max length": feature.max_length or "",
        "optimizer": ", ".join(_short(segment.optimizer) for segment in segments_of(config)),
        "admission": "" if admission is None else _short(admission),
        "expiry": "" if expiry is None else f"{expiry.days} d",
    }


def _short(value: Any) -> str:
    """Return the name of a dataclass with the fields that differ from their defaults.

    Example:
        >>> from monolith.table.optimizers import Adagrad
        >>> _short(Adagrad(0.05))
        'Adagrad(learning_rate=0.05)'
    """
    plain = type(value)()
    changed = [
        f"{field.name}={getattr(value, field.name)!r}"
        for field in dataclasses.fields(value)
        if getattr(value, field.name) != getattr(plain, field.name)
    ]
    return f"{type(value).__name__}({', '.join(changed)})"
