"""Define `EofAwareTask`: all ranks end after the step in which one had its last batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from monolith.data import Batch
from monolith.native_training.hooks.rank_hooks import EofHook
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.train.driver import current_run
from monolith.train.task import Mode

EOF_KEY = "__EofAwareTask_eof"
"""Column that says whether a batch is the last one of its rank: True for each sample.

A last batch without samples has the shape (0, 1) in place of (0,).
"""

_ELEMENT, _FLAG = "1", "2"  # of input functions that yield no columns


class EofAwareTask(NativeTask):
    """A native task that ends in all ranks after the step in which one rank had its last batch.

    The wrapper is the task, with the same attributes: what is set on one is set on the other. Its
    input function yields each element with a flag, which is true for the last one:

    ```
    {"a": ids}  ->  {"a": ids, "__EofAwareTask_eof": False}
    7           ->  {"1": 7, "2": False}
    ```

    A last element may be a batch without samples: it is trained too, and ends the run.

    The model function of the task sees the elements as they were. `train.repeat` has no last
    element. A run that exports sees the task alone. All ranks need `hvd_lib.init()` before.

    Args:
        task: Task to wrap.
        use_dataservice: Whether the ranks share one input, whose end is that of all of them. The
            wrapper works for both.

    Raises:
        ValueError: A function of the task was set on the object and not in its class.

    Example:
        >>> from monolith.native_training.tasks.ffm import FFMTask
        >>> task = EofAwareTask(FFMTask.params().instantiate())
        >>> isinstance(task, FFMTask), task.name
        (True, 'FFMTask')
    """

    def __new__(cls, task: NativeTask, use_dataservice: bool = False) -> "EofAwareTask":  # noqa: PYI034
        kind = type(task)
        wrapped: type[EofAwareTask] = type(f"EofAware{kind.__name__}", (EofAwareTask, kind), {})
        return object.__new__(wrapped)

    def __init__(self, task: NativeTask, use_dataservice: bool = False) -> None:
        for name in ("create_input_fn", "create_model_fn", "hooks"):
            if name in vars(task):
                raise ValueError(
                    f"[EofAwareTask] expected {name} in the class of the task, got one that is set "
                    f"on the object (task {task.name!r})"
                )
        self.__dict__ = task.__dict__  # one state
        self.has_ended = False

    def create_input_fn(self, mode: Mode) -> Callable[[], Iterable[Any]]:
        """Return the input function of the task, whose elements have a flag."""
        input_fn = super().create_input_fn(mode)  # type: ignore[safe-super]
        if _is_exporting():
            return input_fn
        is_endless = mode == Mode.TRAIN and bool(self.p.train.repeat)

        def flagged() -> Iterable[Any]:
            data = input_fn()
            cls = _ResumableData if hasattr(data, "resume") else _FlaggedData
            return cls(data, is_endless=is_endless)

        return flagged

    def create_model_fn(self) -> Callable[[Any, Mode, Any], ModelSpec]:
        """Return the model function of the task, which takes the flag off its input."""
        model_fn = super().create_model_fn()  # type: ignore[safe-super]
        if _is_exporting():
            return model_fn
        hook = EofHook(lambda: bool(self.has_ended))

        def unflagged(features: Any, mode: Mode, config: Any) -> ModelSpec:
            inner, flag = _without_flag(features)
            spec = model_fn(inner, mode, config)
            if mode != Mode.TRAIN or flag is None:
                return spec
            self.has_ended = _is_last(flag)
            return spec._replace(training_hooks=[*spec.training_hooks, hook])

        return unflagged

    def _as_batch(self, columns: Any) -> Batch:
        inner, flag = _without_flag(columns)
        batch = super()._as_batch(inner)
        if flag is None:
            return batch
        flagged: Batch = _with_flag(batch, flag)
        return flagged

    def _columns_of(self, batch: Batch) -> Any:
        if EOF_KEY not in batch.dense:
            return super()._columns_of(batch)
        dense = {name: column for name, column in batch.dense.items() if name != EOF_KEY}
        flag = batch.dense[EOF_KEY]
        return _with_flag(super()._columns_of(replace(batch, dense=dense)), flag)


def _is_exporting() -> bool:
    run = current_run()
    return run is not None and run.is_exporting


def _with_flag(element: Any, flag: torch.Tensor) -> Any:
    if isinstance(element, Batch):
        column = _flag_column(len(element), is_last=_is_last(flag))
        return replace(element, dense={**element.dense, EOF_KEY: column})
    if isinstance(element, Mapping):
        return {**element, EOF_KEY: flag}
    return {_ELEMENT: element, _FLAG: flag}


def _flag_column(num_samples: int, *, is_last: bool) -> torch.Tensor:
    if not num_samples and is_last:
        return torch.empty(0, 1, dtype=torch.bool, device="cpu")
    return torch.full((num_samples,), is_last, device="cpu")


def _is_last(flag: torch.Tensor) -> bool:
    """Whether a flag, or the column of one, is that of a last element."""
    flag = torch.as_tensor(flag, device="cpu")
    return bool(flag.any()) or (flag.dim() == 2 and not len(flag))


def _without_flag(element: Any) -> tuple[Any, torch.Tensor | None]:
    """Return the element as the task yields it, and its flag; None for one without."""
    if isinstance(element, Batch):
        dense = dict(element.dense)
        flag = dense.pop(EOF_KEY, None)
        return (element, None) if flag is None else (replace(element, dense=dense), flag)
    if isinstance(element, Mapping):
        if EOF_KEY in element:
            inner = {name: value for name, value in element.items() if name != EOF_KEY}
            return inner, element[EOF_KEY]
        if element.keys() == {_ELEMENT, _FLAG}:
            return element[_ELEMENT], element[_FLAG]
    return element, None


class _FlaggedData:
    """The data of an input function, whose elements have a flag."""

    def __init__(self, data: Iterable[Any], *, is_endless: bool) -> None:
        self._data, self._is_endless = data, is_endless

    def __iter__(self) -> Iterator[Any]:
        return _FlaggedElements(iter(self._data), is_endless=self._is_endless)


class _ResumableData(_FlaggedData):
    """The data of an input function that can resume."""

    def resume(self, position: Any) -> Iterator[Any]:
        """Return the elements after a position."""
        inner = self._data.resume(position)  # type: ignore[attr-defined]
        return _FlaggedElements(inner, is_endless=self._is_endless)


class _FlaggedElements(Iterator[Any]):
    """Reads one element ahead, to know the last one; its position is that before the element ahead.

    Nothing is read before the first element is asked for.
    """

    def __init__(self, inner: Iterator[Any], *, is_endless: bool) -> None:
        self._inner, self._is_endless = inner, is_endless
        self._ahead: tuple[Any, Any] | None = None  # element, and position after it
        self._has_begun = False
        self._position: Any = None
        if hasattr(inner, "state_dict"):
            self._position = inner.state_dict()
            self.state_dict = lambda: self._position
        if hasattr(inner, "close"):
            self.close = inner.close

    def __next__(self) -> Any:
        if not self._has_begun:
            self._has_begun = True
            self._read()
        if self._ahead is None:
            raise StopIteration
        element, position = self._ahead
        self._read()
        self._position = position
        is_last = self._ahead is None and not self._is_endless
        return _with_flag(element, torch.tensor(is_last, device="cpu"))

    def _read(self) -> None:
        try:
            element = next(self._inner)
        except StopIteration:
            self._ahead = None
            return
        position = self._inner.state_dict() if hasattr(self._inner, "state_dict") else None
        self._ahead = element, position
