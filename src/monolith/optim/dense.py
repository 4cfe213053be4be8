"""What the dense optimizers share: numbers per group, learning rates, locking, named state."""

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import torch

from monolith.errors import FailedPreconditionError
from monolith.optim.graph_step import handle_of, step_in_graph
from monolith.optim.update_rules import Rate
from monolith.table.arguments import check_kind, check_number
from monolith.table.optimizers.schedules import LearningRateFunction

LearningRate = Rate | Callable[[], Rate]
LEAST_EPSILON = 2.0**-126  # the smallest normal float32: no rule divides by 0


class DenseOptimizer(torch.optim.Optimizer):
    """A `torch.optim.Optimizer` of dense parameters; base of Adamom, RMSprop and Shampoo.

    Every number may be given per parameter group, by the name of its argument. The learning rate is
    called `lr` in the groups, as everywhere in torch; a group takes `learning_rate` too. It is a
    number, a tensor of one element (a compiled step then need not be compiled again when it
    changes), or a function without arguments, which is called once per step, also where several
    groups share it; `lr` is then the value of the last step, NaN before the first.

    One thread steps at a time, unless `use_locking` is set: then steps of several threads through
    this optimizer follow one another, with their parameters and state; in a graph of torch.compile
    the steps of each group do.

    Args:
        params: as of every torch optimizer; `model.named_parameters()` gives names to messages.
        options: default of every number, and `lr`.
        name: part of the names of the state, see `named_state`.
        use_locking: whether several threads may call `step` at once.
    """

    slots: ClassVar[tuple[str, ...]] = ()  # names of state tensors with the parameter's shape
    is_traced: ClassVar[bool] = True  # whether torch.compile can follow `_update`
    # Least and greatest value of each number.
    ranges: ClassVar[Mapping[str, tuple[float, float]]]

    def __init__(
        self, params: Any, options: dict[str, Any], *, name: str, use_locking: bool
    ) -> None:
        where = f"[{type(self).__name__}]"
        check_kind(where, "name", name, str)
        check_kind(where, "use_locking", use_locking, bool)
        self.name, self.use_locking = name, use_locking
        self._schedules: list[Callable[[], Rate] | None] = []  # of each group
        self._lock, self._handle = threading.Lock(), handle_of(self)
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with numbers of their own.

        Raises:
            NotImplementedError: a parameter cannot be changed in place: it is the result of an
                operation, or was made in inference mode.
            TypeError: a number is none, a learning rate needs the step, or a parameter is complex.
            ValueError: a number is out of its range.
        """
        where = f"[{type(self).__name__}]"
        check_kind(where, "a parameter group", param_group, dict)
        group = dict(param_group)
        if "learning_rate" in group:
            if "lr" in group:
                raise ValueError(f"{where} expected learning_rate or lr in a group, got both")
            group["lr"] = group.pop("learning_rate")
        rate = group.get("lr", self.defaults["lr"])
        if isinstance(rate, LearningRateFunction):
            raise TypeError(
                f"{where} expected a learning_rate without arguments, got a "
                f"{type(rate).__name__}, which needs the step; pass a ScheduledRate of it"
            )
        schedule = rate if callable(rate) else None
        if schedule is not None:
            group["lr"] = math.nan
        self._check_numbers(where, {**self.defaults, **group}, has_rate=schedule is None)
        given = group["params"]
        if not isinstance(given, set):  # which torch refuses
            group["params"] = [given] if isinstance(given, torch.Tensor) else list(given)
            self._check_parameters(where, group["params"])
        super().add_param_group(group)
        self._schedules.append(schedule)

    def _check_numbers(self, where: str, options: Mapping[str, Any], *, has_rate: bool) -> None:
        rate = {"lr": (0.0, 1e38)} if has_rate else {}
        for name, (least, greatest) in {**rate, **self.ranges}.items():
            value, shown = options[name], "learning_rate" if name == "lr" else name
            check_number(where, shown, value)
            if not least <= value <= greatest:
                raise ValueError(
                    f"{where} expected {shown} in [{least:g}, {greatest:g}], got {value}"
                )

    def _check_parameters(self, where: str, parameters: list[Any]) -> None:
        """Refuse what cannot be updated in place; what is no parameter at all is torch's matter."""
        for number, given in enumerate(parameters):
            name, parameter = given if isinstance(given, tuple) else (f"number {number}", given)
            if not isinstance(parameter, torch.Tensor):
                continue
            if not parameter.is_leaf or parameter.is_inference():
                found = "an inference tensor" if parameter.is_inference() else "no leaf"
                raise NotImplementedError(
                    f"{where} expected parameters that can be updated in place, got parameter "
                    f"{name}, which is {found}; pass the parameters of a module"
                )
            if parameter.is_complex():
                raise TypeError(
                    f"{where} expected real parameters, got parameter {name} of dtype "
                    f"{parameter.dtype}; pass torch.view_as_real of it"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        Nothing is changed if a gradient or a learning rate is refused.

        Args:
            closure: computes the loss and its gradients again, once, before the step.

        Returns:
            What the closure returned.

        Raises:
            RuntimeError: a gradient is sparse.
            TypeError: a function gave no number as learning rate.
            ValueError: a learning rate is negative or not finite, or is a function beside a
                scheduler.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.use_locking and not torch.compiler.is_compiling():
            with self._lock:
                self._step_groups()
        else:
            self._step_groups()
        return loss

    def _step_groups(self) -> None:
        clock = self._clock()
        rates = self._rates()
        collected = []
        for group in self.param_groups:
            lists: list[list[torch.Tensor]] = [[] for _ in range(2 + self._num_kinds())]
            self._init_group(group, *lists)
            lists[1] += clock
            counters = self._counters(group)
            collected.append([*lists, counters] if counters else lists)
        is_op = torch.compiler.is_compiling() and (self.use_locking or not self.is_traced)
        for number, (rate, lists) in enumerate(zip(rates, collected, strict=True)):
            if not any(lists):
                continue
            if is_op:
                step_in_graph(self._handle, number, rate, lists)
            else:
                self._update(self.param_groups[number], rate, *lists)

    def step_group(self, number: int, rate: Rate, lists: list[list[torch.Tensor]]) -> None:
        """Run the step of a group in a graph of torch.compile; see `graph_step`.

        Raises:
            FailedPreconditionError: with `use_locking`, for copies of the parameters or state.
        """
        group = self.param_groups[number]
        if not self.use_locking:
            self._update(group, rate, *lists)
            return
        with self._lock:
            self._check_own(group, [tensor for part in (lists[0], *lists[2:]) for tensor in part])
            self._update(group, rate, *lists)

    def _check_own(self, group: dict[str, Any], changed: list[torch.Tensor]) -> None:
        """Refuse copies: they are written back when the lock is no longer held."""
        states = (self.state.get(parameter, {}).values() for parameter in group["params"])
        own = (*group["params"], *itertools.chain(*states), *self._counters(group))
        addresses = {tensor.data_ptr() for tensor in own}
        num_copies = sum(tensor.data_ptr() not in addresses for tensor in changed)
        if num_copies:
            raise FailedPreconditionError(
                f"[{type(self).__name__}.step] expected a graph that updates in place, for "
                f"use_locking, got copies of {num_copies} of {len(changed)} tensors; compile with "
                "the backend 'inductor' or 'eager', or step in one thread without use_locking"
            )

    def _num_kinds(self) -> int:
        """Number of lists of state that `_init_group` fills."""
        return len(self.slots)

    def _clock(self) -> list[torch.Tensor]:
        """What a step reads beside gradients."""
        return []

    def _counters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """State of a group as a whole; `_update` takes it after that of the parameters."""
        return []

    def _rates(self) -> list[Rate]:
        """Of each group; every function is called once."""
        rates: list[Rate] = []
        called: list[tuple[Callable[[], Rate], Rate]] = []
        for group, schedule in zip(self.param_groups, self._schedules, strict=True):
            if schedule is None:
                rates.append(group["lr"])
                continue
            if "initial_lr" in group:
                raise ValueError(
                    f"[{type(self).__name__}.step] expected one source of the learning rate, got a "
                    "scheduler beside a function; give the optimizer a number"
                )
            known = [value for function, value in called if function is schedule]
            rate = known[0] if known else schedule()
            if not isinstance(rate, torch.Tensor):
                check_number(f"[{type(self).__name__}.step]", "the learning rate", rate)
            called.append((schedule, rate))
            if not torch.compiler.is_compiling():
                group["lr"] = rate
            rates.append(rate)
        for rate in rates:
            # A tensor may be on a device, for which nobody waits here.
            if not isinstance(rate, torch.Tensor) and not 0.0 <= rate < math.inf:
                raise ValueError(
                    f"[{type(self).__name__}.step] expected a finite learning rate >= 0, got {rate}"
                )
        return [rate.reshape(()) if isinstance(rate, torch.Tensor) else rate for rate in rates]

    # torch.compile runs this method itself and follows the tensors that it puts into the lists.
    def _init_group(
        self,
        group: dict[str, Any],
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        """Collect what has a gradient, with its state, which is made on first use."""
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            state = self.state[parameter]
            if not state:
                self._init_state(group, parameter, state)
            parameters.append(parameter)
            gradients.append(gradient)
            for slot, tensors in zip(self.slots, states, strict=True):
                tensors.append(state[slot])

    def _init_state(
        self, group: dict[str, Any], parameter: torch.Tensor, state: dict[str, torch.Tensor]
    ) -> None:
        for slot in self.slots:
            state[slot] = torch.zeros_like(parameter, memory_format=torch.preserve_format)

    def _update(
        self,
        group: dict[str, Any],
        rate: Rate,
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        raise NotImplementedError

    def named_state(
        self, named_parameters: Iterable[tuple[str, torch.Tensor]]
    ) -> dict[str, torch.Tensor]:
        """The state tensors themselves, by `<parameter>/<name>/<slot>`, as checkpoints call them.

        Args:
            named_parameters: as of `torch.nn.Module.named_parameters`. One that has made no step
                has no state.
        """
        return {
            f"{name}/{self.name}/{slot}": tensor
            for name, parameter in named_parameters
            for slot, tensor in self.state.get(parameter, {}).items()
        }

    def __getstate__(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in ("name", "use_locking", "_schedules")}
        return {**super().__getstate__(), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_handle" not in self.__dict__:  # a copy
            self._lock, self._handle = threading.Lock(), handle_of(self)
        super().__setstate__(state)
