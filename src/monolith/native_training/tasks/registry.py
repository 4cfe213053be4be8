"""Register parameters of tasks by key, and find them again."""

import difflib
import sys
import threading
from abc import abstractmethod
from importlib import import_module
from typing import Any, TypeVar

from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params
from monolith.train.task import Task, TaskParams

_KEYS: dict[str, type["SingleTaskModelParams"]] = {}
_KEYS_LOCK = threading.Lock()

_ClassT = TypeVar("_ClassT", bound=type["SingleTaskModelParams"])


class SingleTaskModelParams(TaskParams):
    """Choose the parameters of a task; the registry has such classes by key."""

    @abstractmethod
    def task(self) -> InstantiableParams:
        """Return the parameters of the task; their `cls` is the class of the task."""

    def task_class(self) -> type[Task]:
        """Return a subclass of the task whose `params()` are these.

        Raises:
            TypeError: `task()` returns no parameters of a `Task`.
        """
        params = self.task()
        cls = params.cls if isinstance(params, InstantiableParams) else None
        if not (isinstance(cls, type) and issubclass(cls, Task) and hasattr(cls, "params")):
            raise TypeError(
                f"[{type(self).__name__}.task] expected the parameters of a NativeTask, got "
                f"{type(params).__name__} of {cls!r}; return MyTask.params()"
            )

        def params_of_class(owner: type) -> Params:
            return params.copy().set(cls=owner)

        return type(cls.__name__, (cls,), {"params": classmethod(params_of_class)})


def register_single_task_model(cls: _ClassT) -> _ClassT:
    """Register a class under `<module>.<class>`, and without `monolith.tasks.` and `params.`.

    Raises:
        TypeError: the class is no `SingleTaskModelParams`.
        ValueError: another class has the key.

    Example:
        >>> @register_single_task_model
        ... class Clicks(SingleTaskModelParams):
        ...     def task(self):
        ...         return InstantiableParams(Task)
        >>> get_params(f"{Clicks.__module__}.Clicks").cls is Task
        True
    """
    if not (isinstance(cls, type) and issubclass(cls, SingleTaskModelParams)):
        raise TypeError(
            f"[RegisterSingleTaskModel] expected a subclass of SingleTaskModelParams, got {cls!r}"
        )
    key = f"{cls.__module__}.{cls.__qualname__}"
    with _KEYS_LOCK:
        for name in (key, _short(key)):
            if name in _KEYS and _is_current(_KEYS[name]):
                raise ValueError(f"Duplicate model registered for key {name}")
        _KEYS.update({key: cls, _short(key): cls})
    return cls


def get_params(key: str) -> InstantiableParams:
    """Return `task()` of the class with this key; its module is imported first.

    Raises:
        ValueError: the key has no module.
        LookupError: the module cannot be imported, or registers no such class.
    """
    module, dot, _ = key.rpartition(".")
    if not dot:
        raise ValueError(f"Invalid model name {key}")
    if key not in _KEYS:
        try:
            import_module(module)
        except ImportError as error:
            raise LookupError(
                f"[GetParams] expected a module at {module!r} (key {key!r}), got: {error}"
            ) from error
    with _KEYS_LOCK:
        cls, keys = _KEYS.get(key), sorted(_KEYS)
    if cls is None:
        near = difflib.get_close_matches(key, keys, 1)
        hint = f"did you mean {near[0]!r}?" if near else "decorate it with RegisterSingleTaskModel"
        raise LookupError(f"[GetParams] expected a registered key, got {key!r}; {hint}")
    return cls().task()


def _short(key: str) -> str:
    *parts, name = key.removeprefix("monolith.tasks.").split(".")
    return ".".join([*(part for part in parts if part != "params"), name])


def _is_current(cls: type) -> bool:
    # A task file that is loaded again is a new module, and its classes replace the old ones.
    value: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        value = getattr(value, part, None)
    return value is cls
