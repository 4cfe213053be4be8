"""`DenseShard`: the dense parameters of a task that live on one server, with their optimizer."""

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from monolith.checkpoint.state_tree import flatten_state, unflatten_state
from monolith.errors import DataLossError, InvalidArgumentError
from monolith.ops.devices import to_host

NamedTensors = list[tuple[str, torch.Tensor]]

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def place_parameters(parameters: Mapping[str, torch.Tensor], num_servers: int) -> dict[str, int]:
    """Return the server of each parameter: the largest first, each to the server with least bytes.

    Every process of a job finds the same places, from names and sizes alone.

    Example:
        >>> sizes = {"bias": torch.ones(4), "weight": torch.ones(4, 8), "wide": torch.ones(40)}
        >>> place_parameters(sizes, 2)
        {'bias': 1, 'weight': 1, 'wide': 0}
    """
    loads, places = [0] * num_servers, {}
    sizes = {name: value.numel() * value.element_size() for name, value in parameters.items()}
    for name in sorted(parameters, key=lambda name: (-sizes[name], name)):
        server = min(range(num_servers), key=lambda i: (loads[i], i))
        places[name] = server
        loads[server] += sizes[name]
    return {name: places[name] for name in parameters}


def trained_parameters(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None
) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that the optimizer steps, by name, in the order of the model.

    A parameter with two names has the first one.
    """
    groups = [] if optimizer is None else optimizer.param_groups
    stepped = {id(parameter) for group in groups for parameter in group["params"]}
    return {n: p for n, p in model.named_parameters() if id(p) in stepped}


def describe_features(features: Iterable[object]) -> list[str]:
    """Return lines that are equal in all processes of a job.

    A function, such as a schedule of learning rates, counts by its name: its address differs.

    Example:
        >>> describe_features([len, lambda step: 1.0])
        ['<built-in function len>', '<function <lambda>>']
    """
    return [_ADDRESS.sub("", str(feature)) for feature in features]


def describe_dense(
    parameters: Mapping[str, torch.Tensor], optimizer: torch.optim.Optimizer | None
) -> list[str]:
    """Return lines that are equal in all processes of a job: parameters and optimizer."""
    lines = [
        f"parameter {name}: {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
        for name, value in parameters.items()
    ]
    if optimizer is not None:
        names = {id(value): name for name, value in parameters.items()}
        lines.append(f"optimizer {type(optimizer).__name__}")
        for number, group in enumerate(optimizer.param_groups):
            of_group = [names[id(p)] for p in group["params"] if id(p) in names]
            lines.append(f"group {number}: {', '.join(of_group)}")
    return lines


def group_options(optimizer: torch.optim.Optimizer) -> str:
    """Return the options of all groups as JSON: learning rates, and all else that is a number.

    What a schedule keeps in the groups, such as `initial_lr`, is no option of the optimizer.
    """
    names = optimizer.defaults
    return json.dumps(
        [
            {n: value for n, value in group.items() if n in names and _is_option(value)}
            for group in optimizer.param_groups
        ],
        sort_keys=True,
    )


def _is_option(value: Any) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    return all(isinstance(item, bool | int | float) and math.isfinite(item) for item in values)


def _are_options(new: Any, group: Mapping[str, Any]) -> bool:
    """Whether new options are of a group, each like the value that it replaces."""
    return type(new) is dict and all(
        name in group and _is_option(group[name]) and _is_like(value, group[name])
        for name, value in new.items()
    )


def _is_like(new: Any, old: Any) -> bool:
    """Whether a value of JSON may replace an option: a list replaces a tuple."""
    if isinstance(old, tuple):
        return type(new) is list and len(new) == len(old) and all(map(_is_like, new, old))
    if type(old) is bool or type(new) is bool:
        return type(new) is type(old)
    return type(new) in (int, float) and math.isfinite(new)


class DenseState(NamedTuple):
    """Everything that a server knows of its dense parameters, as it travels.

    Attributes:
        version: Number of steps.
        values: Parameters by name.
        tree: JSON of the optimizer's state, parameter by parameter.
        tensors: Tensors of the state.
    """

    version: int
    values: NamedTensors
    tree: str
    tensors: NamedTensors

    def states(self) -> dict[str, dict[str, Any]]:
        """Return the optimizer's state by the names of the parameters."""
        states: dict[str, dict[str, Any]] = unflatten_state(
            json.loads(self.tree), dict(self.tensors)
        )
        return states

    @classmethod
    def of(
        cls, version: int, values: NamedTensors, states: Mapping[str, Mapping[str, Any]]
    ) -> "DenseState":
        """Return the state of parameters, with copies of all tensors."""
        tree, tensors = flatten_state(dict(states), "state")
        copies = [(name, _copy(tensor)) for name, tensor in tensors.items()]
        copied = [(name, _copy(value)) for name, value in values]
        return cls(version, copied, json.dumps(tree), copies)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return to_host([tensor])[0]


class DenseShard:
    """Steps the dense parameters of one server. Any thread may call at any time.

    Args:
        parameters: Parameters of the whole task that are trained, by name.
        optimizer: Optimizer of the parameters; None for a task without them.
        index: Number of the server.
        num_servers: Number of servers of the job.

    Attributes:
        version: Number of steps that were made here.
        lines: Description of the task's dense part, equal in all processes of a job.

    Example:
        >>> weight = torch.nn.Parameter(torch.ones(2))
        >>> shard = DenseShard({"weight": weight}, torch.optim.SGD([weight], lr=0.5), 0, 1)
        >>> shard.step([("weight", torch.ones(2))], "")
        1
        >>> shard.read(0)
        (1, [('weight', tensor([0.5000, 0.5000]))])
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer | None,
        index: int,
        num_servers: int,
    ) -> None:
        self._parameters, self._optimizer = dict(parameters), optimizer
        self._lock = threading.Lock()
        self.place(index, num_servers)
        self._options = ""
        self._copies: tuple[int, NamedTensors] | None = None  # which readers share
        self.version = 0
        self.lines = describe_dense(parameters, optimizer)

    def place(self, index: int, num_servers: int) -> None:
        """Take the parameters of a server; only before the first step."""
        places = place_parameters(self._parameters, num_servers)
        self._own = {n: p for n, p in self._parameters.items() if places[n] == index}

    @property
    def names(self) -> list[str]:
        """Names of the parameters of this server."""
        return list(self._own)

    def check(self, gradients: NamedTensors, options: str) -> None:
        """Refuse a step that `step` cannot make; nothing changes.

        Raises:
            InvalidArgumentError: A gradient is of no parameter of this server, or of another shape;
                or the options are not those of the optimizer.
        """
        for name, gradient in gradients:
            self._check_like(name, gradient, "a gradient")
        if options and options != self._options:
            self._parse(options)

    def _check_like(self, name: str, value: torch.Tensor, what: str) -> None:
        parameter = self._own.get(name)
        if parameter is None:
            raise InvalidArgumentError(
                f"[DenseShard] expected {what} of a parameter of this server "
                f"({', '.join(self._own) or 'there is none'}), got {name!r}; start servers and "
                "workers with the same task"
            )
        expected, got = (tuple(parameter.shape), parameter.dtype), (tuple(value.shape), value.dtype)
        if expected != got:
            raise InvalidArgumentError(
                f"[DenseShard] expected {what} of {name!r} with shape {expected[0]} and "
                f"{expected[1]}, got {got[0]} and {got[1]}"
            )

    def _parse(self, options: str) -> list[dict[str, Any]]:
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        try:
            parsed = json.loads(options)
            is_right = len(parsed) == len(groups) and all(
                _are_options(new, group) for new, group in zip(parsed, groups, strict=True)
            )
        except (ValueError, TypeError, RecursionError):
            is_right = False
        if not is_right:
            raise InvalidArgumentError(
                f"[DenseShard] expected options of the {len(groups)} groups of the optimizer as "
                f"JSON, got {options[:100]!r}"
            )
        result: list[dict[str, Any]] = parsed
        return result

    def step(self, gradients: NamedTensors, options: str) -> int:
        """Make one step with checked gradients; return the number of steps.

        A parameter without a gradient is left as it is, as the optimizer does it.

        Args:
            gradients: Gradients by name.
            options: Options of the optimizer's groups, of `group_options`; empty keeps them.
        """
        with self._lock:
            if options and options != self._options:
                self._set_options(options)
            if self._optimizer is not None:
                for name, gradient in gradients:
                    self._own[name].grad = gradient
                try:
                    self._optimizer.step()
                finally:
                    for name, _ in gradients:
                        self._own[name].grad = None
            self.version += 1
            return self.version

    def _set_options(self, options: str) -> None:
        assert self._optimizer is not None
        for group, new in zip(self._optimizer.param_groups, self._parse(options), strict=True):
            for name, value in new.items():
                group[name] = tuple(value) if isinstance(value, list) else value
        self._options = options

    def read(self, known: int) -> tuple[int, NamedTensors]:
        """Return version and parameters; no parameters if the reader knows the version."""
        with self._lock:
            if known == self.version:
                return self.version, []
            if self._copies is None or self._copies[0] != self.version:
                copies = [(name, _copy(value)) for name, value in self._own.items()]
                self._copies = self.version, copies
            return self._copies

    def export(self) -> DenseState:
        """Return copies of the parameters and of the optimizer's state."""
        with self._lock:
            state = {} if self._optimizer is None else self._optimizer.state
            states = {name: state[p] for name, p in self._own.items() if p in state}
            return DenseState.of(self.version, list(self._own.items()), states)

    def load(self, state: DenseState) -> None:
        """Take over parameters and the optimizer's state.

        Raises:
            InvalidArgumentError: A parameter is not of this server, or of another shape, or the
                state of the optimizer is none; nothing changes.
        """
        for name, value in state.values:
            self._check_like(name, value, "a value")
        try:
            states = {name: dict(of_one) for name, of_one in state.states().items()}
        except (KeyError, TypeError, ValueError, AttributeError, DataLossError) as error:
            raise InvalidArgumentError(
                f"[DenseShard.load] expected the state of an optimizer, got {state.tree[:100]!r}: "
                f"{error!r}"
            ) from error
        with self._lock, torch.no_grad():
            for name, value in state.values:
                self._own[name].copy_(value)
            if self._optimizer is not None:
                for name, parameter in self._own.items():
                    self._optimizer.state.pop(parameter, None)
                    if name in states:
                        self._optimizer.state[parameter] = states[name]
            self.version, self._copies, self._options = state.version, None, ""


def join_values(answers: Sequence[tuple[int, NamedTensors]]) -> dict[str, torch.Tensor]:
    """Return the parameters that several servers have answered, by name."""
    return {name: value for _, values in answers for name, value in values}
