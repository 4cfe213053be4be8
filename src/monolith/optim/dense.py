"""Base class of the dense optimizers: options per group, learning rates, locking, named state."""

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
    """A `torch.optim.Optimizer` of dense parameters; base class of Adamom, RMSprop and Shampoo.

    A parameter group may set every option by the name of its argument. The learning rate is called
    `lr` in a group, as in torch; `learning_rate` is accepted too. A learning rate is a number, a
    tensor of one element, whose value may change without a new compilation of a compiled step, or a
    function without arguments. A function is called once per step, also if several groups share it;
    `lr` is then the rate of the last step, NaN before the first step.

    One thread may call `step` at a time. With `use_locking`, several threads may: steps of this
    optimizer then run one after the other; in a graph of torch.compile, the steps of each group do.

    Args:
        params: Parameters or parameter groups; error messages name `model.named_parameters()`.
        options: Default of every option, and `lr`.
        name: Middle part of the state's names, see `named_state`.
        use_locking: Whether several threads may call `step` concurrently.
    """

    slots: ClassVar[tuple[str, ...]] = ()  # names of state tensors with the parameter's shape
    is_traced: ClassVar[bool] = True  # whether torch.compile can follow `_update`
    # Smallest and largest value of each option.
    ranges: ClassVar[Mapping[str, tuple[float, float]]]

    def __init__(
        self, params: Any, options: dict[str, Any], *, name: str, use_locking: bool
    ) -> None:
        where = f"[{type(self).__name__}]"
        check_kind(where, "name", name, str)
        check_kind(where, "use_locking", use_locking, bool)
        self.name, self.use_locking = name, use_locking
        self._schedules: list[Callable[[], Rate] | None] = []  # one per group
        self._lock, self._handle = threading.Lock(), handle_of(self)
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters with its own options.

        Raises:
            NotImplementedError: A parameter cannot be updated in place, because it is the result of
                an operation or was made in inference mode.
            TypeError: An option is not a number, a learning rate requires the step as an argument,
                or a parameter is complex.
            ValueError: An option is out of its range.
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
        params = group["params"]
        if not isinstance(params, set):  # torch refuses a set
            group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
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
        """Refuse tensors that cannot be updated in place; torch refuses other types."""
        for number, item in enumerate(parameters):
            name, parameter = item if isinstance(item, tuple) else (f"number {number}", item)
            if not isinstance(parameter, torch.Tensor):
                continue
            if not parameter.is_leaf or parameter.is_inference():
                kind = "an inference tensor" if parameter.is_inference() else "no leaf"
                raise NotImplementedError(
                    f"{where} expected parameters that can be updated in place, got parameter "
                    f"{name}, which is {kind}; pass the parameters of a module"
                )
            if parameter.is_complex():
                raise TypeError(
                    f"{where} expected real parameters, got parameter {name} of dtype "
                    f"{parameter.dtype}; pass torch.view_as_real of it"
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient.

        An error leaves all parameters unchanged.

        Args:
            closure: Function that computes the loss and the gradients, called once before the step.

        Returns:
            The return value of the closure; None without a closure.

        Raises:
            RuntimeError: A gradient is sparse.
            TypeError: A function did not return a number as learning rate.
            ValueError: A learning rate is negative or not finite, or is a function although a
                scheduler sets the rate.
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
        """Step a group for the op `monolith::step_group`; see `graph_step`.

        Raises:
            FailedPreconditionError: With `use_locking`, a tensor is a copy of a parameter or state.
        """
        group = self.param_groups[number]
        if not self.use_locking:
            self._update(group, rate, *lists)
            return
        with self._lock:
            self._check_no_copies(group, [x for part in (lists[0], *lists[2:]) for x in part])
            self._update(group, rate, *lists)

    def _check_no_copies(self, group: dict[str, Any], outputs: list[torch.Tensor]) -> None:
        """Refuse copies, which the graph writes back after the lock is released."""
        states = (self.state.get(parameter, {}).values() for parameter in group["params"])
        tensors = (*group["params"], *itertools.chain(*states), *self._counters(group))
        addresses = {tensor.data_ptr() for tensor in tensors}
        num_copies = sum(tensor.data_ptr() not in addresses for tensor in outputs)
        if num_copies:
            raise FailedPreconditionError(
                f"[{type(self).__name__}.step] expected a graph that updates in place, for "
                f"use_locking, got copies of {num_copies} of {len(outputs)} tensors; compile with "
                "the backend 'inductor' or 'eager', or step in one thread without use_locking"
            )

    def _num_kinds(self) -> int:
        """Return the number of lists of state that `_init_group` fills."""
        return len(self.slots)

    def _clock(self) -> list[torch.Tensor]:
        """Return the tensors that a step reads in addition to gradients."""
        return []

    def _counters(self, group: dict[str, Any]) -> list[torch.Tensor]:
        """Return the state of the whole group, which `_update` takes after that of parameters."""
        return []

    def _rates(self) -> list[Rate]:
        """Return the learning rate of each group; every function is called once."""
        rates: list[Rate] = []
        results: list[tuple[Callable[[], Rate], Rate]] = []
        for group, schedule in zip(self.param_groups, self._schedules, strict=True):
            if schedule is None:
                rates.append(group["lr"])
                continue
            if "initial_lr" in group:
                raise ValueError(
                    f"[{type(self).__name__}.step] expected one source of the learning rate, got a "
                    "scheduler beside a function; give the optimizer a number"
                )
            earlier = [value for function, value in results if function is schedule]
            rate = earlier[0] if earlier else schedule()
            if not isinstance(rate, torch.Tensor):
                check_number(f"[{type(self).__name__}.step]", "the learning rate", rate)
            results.append((schedule, rate))
            if not torch.compiler.is_compiling():
                group["lr"] = rate
            rates.append(rate)
        for rate in rates:
            # A tensor is not checked, because reading one would wait for its device.
            if not isinstance(rate, torch.Tensor) and not 0.0 <= rate < math.inf:
                raise ValueError(
                    f"[{type(self).__name__}.step] expected a finite learning rate >= 0, got {rate}"
                )
        return [rate.reshape(()) if isinstance(rate, torch.Tensor) else rate for rate in rates]

    # torch.compile calls this method by its name and traces the tensors in the lists.
    def _init_group(
        self,
        group: dict[str, Any],
        parameters: list[torch.Tensor],
        gradients: list[torch.Tensor],
        *states: list[torch.Tensor],
    ) -> None:
        """Append the parameters with a gradient, their gradients and states to the lists.

        The state of a parameter is made on first use.
        """
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
        """Return the state tensors, not copies, by their names in checkpoints.

        Args:
            named_parameters: Names and parameters, as `torch.nn.Module.named_parameters` returns.

        Returns:
            `<parameter>/<name>/<slot>` -> state tensor. A parameter without a step has no state.
        """
        return {
            f"{name}/{self.name}/{slot}": tensor
            for name, parameter in named_parameters
            for slot, tensor in self.state.get(parameter, {}).items()
        }

    def __getstate__(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("name", "use_locking", "_schedules")}
        return {**super().__getstate__(), **fields}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_handle" not in self.__dict__:  # a copy
            self._lock, self._handle = threading.Lock(), handle_of(self)
        super().__setstate__(state)
