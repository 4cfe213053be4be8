"""Put functions off by a step, where a model function calls them in every step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from monolith.native_training.queues.async_functions import AsyncFunctionManager


class StepFunctions(AsyncFunctionManager):
    """An `AsyncFunctionManager` whose functions are found again in every call of a model function.

    The first call, in which everything is collected, only takes notice of the functions: their
    hooks are known before the run begins. Later calls must name as many, in the same order; each
    gives the action of the function with new arguments.

    Example:
        >>> functions, pushed = StepFunctions(), []
        >>> def model(x):
        ...     return functions.add_async_function(pushed.append, [x])
        >>> functions.begin_call(is_first=True)
        >>> _ = model("nothing is called yet")
        >>> from monolith.train.driver import drive
        >>> batches = iter("ab")
        >>> def step():
        ...     functions.begin_call()
        ...     model(next(batches))()
        >>> _ = drive(step, functions.hooks)
        >>> pushed
        ['a', 'b']
    """

    def __init__(self, is_async: bool = True) -> None:
        super().__init__(is_async)
        self._put_off: list[_Function] = []
        self._next = 0
        self._is_first = False

    def begin_call(self, *, is_first: bool = False) -> None:
        """The model function is about to be called; for the first time, to be collected."""
        self._next, self._is_first = 0, is_first
        if is_first:
            self._put_off.clear()
            self._hooks.clear()

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Put a function off, as `AsyncFunctionManager` does; collecting slots calls nothing.

        Raises:
            ValueError: a function that was not collected is put off.
        """
        if not (self._is_async if is_async is None else is_async):
            if self._is_first:
                return None
            return super().add_async_function(target, args, kwargs, False, queue_name)
        if self._is_first:
            function = _Function()
            function.enter = super().add_async_function(
                function.execute, [function.arguments], None, True, queue_name
            )
            self._put_off.append(function)
            return lambda: None
        if self._next >= len(self._put_off):
            raise ValueError(
                f"[StepFunctions] expected {len(self._put_off)} functions to be put off, as they "
                f"were collected, got one more (queue {queue_name!r}); a model function names the "
                "same in every call"
            )
        function = self._put_off[self._next]
        self._next += 1
        function.target, function.last_arguments = target, (list(args or ()), dict(kwargs or {}))
        return function.enter


class _Function:
    """A function, and the arguments of its last call."""

    def __init__(self) -> None:
        self.enter: Callable[[], Any] | None = None
        self.target: Callable[..., Any] | None = None
        self.last_arguments: tuple[list[Any], dict[str, Any]] = ([], {})
        self._targets: dict[int, Callable[..., Any]] = {}  # of calls that were made, by number
        self._num_calls = 0

    def arguments(self) -> tuple[int, list[Any], dict[str, Any]]:
        assert self.target is not None
        args, kwargs = self.last_arguments
        values = [value() if callable(value) else value for value in args]
        named = {k: value() if callable(value) else value for k, value in kwargs.items()}
        self._num_calls += 1
        self._targets[self._num_calls] = self.target
        return self._num_calls, values, named

    def execute(self, call: tuple[int, list[Any], dict[str, Any]]) -> Any:
        # The model function may bring a new target concurrently.
        number, values, named = call
        target = self._targets.pop(number)
        for other in [n for n in list(self._targets) if n < number]:
            del self._targets[other]  # of a call that found no room
        return target(*values, **named)
