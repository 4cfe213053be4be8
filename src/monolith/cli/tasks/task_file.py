"""Task files, `ranker.py`, or `ranker.py:Ranker` if a file has several tasks, and their settings.

A task, or parameters of a task, of a module that can be imported has a key: `ads.ranker.Ranker`.
"""

import dataclasses
import importlib.util
import inspect
import linecache
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from monolith.cli.tasks.task_imports import check_imports
from monolith.cli.user_errors import TASK_MODULE
from monolith.environment import variables
from monolith.errors import InvalidArgumentError, NotFoundError
from monolith.train import EarlyStop, Task, TrainSettings
from monolith.train.task import TaskParams
from monolith.util.layered_settings import SETTING_PREFIX, Resolved, resolve

# A user watches the run; and the process ends after a non-finite loss, so its batch is kept.
_DEFAULTS = MappingProxyType({"log_every": 20, "keep_dir": "kept"})
_KEY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def load_task_class(place: str) -> type[Task]:
    """Return the task class of a file, or of a key.

    Args:
        place: path of a Python file, followed by `:Class` if the file has several tasks; or
            `<module>.<Class>` of a module that can be imported.

    Raises:
        NotFoundError: no such file or module, or no such class there.
        InvalidArgumentError: the file fails to run, or has no task, or several tasks.
        TaskImportError: the file imports TensorFlow, or a module that is not there.
    """
    path, _, name = place.partition(".py:")
    file = Path(f"{path}.py" if name else path)
    if not file.is_file() and _KEY.fullmatch(place) and file.suffix != ".py":
        return _class_of_key(place)
    if not file.is_file():
        raise NotFoundError(
            f"[task file] expected a Python file, got none at {str(file)!r}; write one with: "
            f"monolith new {file.name if file.suffix == '.py' else 'ranker.py'}"
        )
    if file.suffix != ".py":
        raise InvalidArgumentError(f"[task file] expected a file that ends in .py, got {file}")
    check_imports(file)
    classes = _tasks_of(_run(file))
    tasks = {key: task for key, task in classes.items() if not inspect.isabstract(task)}
    names = ", ".join(tasks)
    if name in tasks:
        return tasks[name]
    unfinished = {key: task for key, task in classes.items() if name in ("", key)}
    if unfinished and (name or not tasks):
        raise InvalidArgumentError(_words_of_unfinished(unfinished, file))
    if name:
        raise NotFoundError(
            f"[task file] expected one of the tasks {names or 'of the file'}, got {name!r} ({file})"
        )
    if not tasks:
        raise InvalidArgumentError(
            f"[task file] expected a class that derives from monolith.Task, got none in {file}"
        )
    if len(tasks) > 1:
        raise InvalidArgumentError(
            f"[task file] expected one task, got {names} in {file}; choose one: "
            f"{file}:{next(iter(tasks))}"
        )
    return next(iter(tasks.values()))


def _class_of_key(key: str) -> type[Task]:
    """Return the class of a key, whose module is imported."""
    module, _, name = key.rpartition(".")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            file = Path(spec.origin)
            check_imports(file, file.parents[module.count(".") + (file.stem == "__init__")])
        value = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise NotFoundError(
            f"[task key] expected <module>.<Class> or a file that ends in .py, got {key!r}: no "
            f"module {error.name!r}"
        ) from error
    tasks = {} if value is None else _task_classes({name: value})
    if name not in tasks:
        raise NotFoundError(
            f"[task key] expected a task or SingleTaskModelParams, got {value!r} ({key})"
        )
    return tasks[name]


def _run(file: Path) -> ModuleType:
    """Run the file as a module; files in its folder can be imported, as with `python file`."""
    name = f"{TASK_MODULE}{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    sys.modules[name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise InvalidArgumentError(
            f"[task file] expected {file} to run, got {_error_text(error, file)}"
        ) from error
    return module


def _error_text(error: Exception | SystemExit, file: Path) -> str:
    """Return the text of an error with the line of the file that raised the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == file.resolve()
    ]
    number = error.lineno if isinstance(error, SyntaxError) else (lines[-1] if lines else None)
    text = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    if number is None:
        return text
    linecache.checkcache(str(file))
    return f"{text}\n  line {number}: {linecache.getline(str(file), number).strip()}"


def _tasks_of(module: ModuleType) -> dict[str, type[Task]]:
    """Return the task classes that the file itself defines; some may lack a method."""
    return _task_classes(
        {
            name: value
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        }
    )


def _task_classes(values: Mapping[str, object]) -> dict[str, type[Task]]:
    """Return the tasks by name: those of parameters, and tasks that no parameters make."""
    classes = {name: value for name, value in values.items() if inspect.isclass(value)}
    from_params = {
        name: value().task_class()
        for name, value in classes.items()
        if issubclass(value, TaskParams) and not inspect.isabstract(value)
    }
    bases = {base for task in from_params.values() for base in task.__mro__}
    tasks = {name: value for name, value in classes.items() if issubclass(value, Task)}
    return from_params | {name: task for name, task in tasks.items() if task not in bases}


def _words_of_unfinished(tasks: Mapping[str, type[Task]], file: Path) -> str:
    lacking = [
        f"{name} without {', '.join(sorted(task.__abstractmethods__))}"
        for name, task in tasks.items()
    ]
    return (
        f"[task file] expected a task with source, build and loss, got {'; '.join(lacking)} in "
        f"{file}; define them in the class"
    )


def resolve_settings(
    task: type[Task], file: str | None, flags: Sequence[str]
) -> tuple[Resolved[Any], TrainSettings]:
    """Return the settings of a task with those of its trainer as `train`, and the latter alone.

    Args:
        task: Class of the task.
        file: Settings file; None without one.
        flags: `KEY=VALUE` of the command line, which come after file and environment.
    """
    resolved = resolve(_schema(task), file=file, environment=variables(SETTING_PREFIX), flags=flags)
    return resolved, _train_settings(resolved.value.train)


def _schema(task: type[Task]) -> type[Any]:
    """Return the settings class of a task with those of the trainer as its field `train`.

    `train.early_stop` is text.
    """
    fields = [
        (field.name, field.type, _DEFAULTS.get(field.name, field.default))
        for field in dataclasses.fields(TrainSettings)
        if field.name != "early_stop"
    ]
    how = dataclasses.make_dataclass("Train", [*fields, ("early_stop", str | None, None)])
    train = ("train", how, dataclasses.field(default_factory=how))
    return dataclasses.make_dataclass("Settings", [train], bases=(task.Settings,))


def _train_settings(section: Any) -> TrainSettings:
    values = vars(section)
    return TrainSettings(**{**values, "early_stop": _early_stop(values["early_stop"])})


def _early_stop(text: str | None) -> EarlyStop | None:
    """Parse `auc`, or `auc:3` with a patience of 3 evaluations."""
    if text is None:
        return None
    metric, _, patience = text.partition(":")
    if patience and not patience.isdigit():
        raise ValueError(
            f"[settings] expected 'train.early_stop' as METRIC:PATIENCE, such as auc:3, got "
            f"{text!r}"
        )
    return EarlyStop(metric, int(patience)) if patience else EarlyStop(metric)
