"""Cache parameters of servers in a worker: local copies that are refreshed between steps.

A step reads the local copies, and the next values arrive while it computes; between two steps they
are copied in place. Gradients go to the parameters of the servers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from monolith.cluster.servers import LocalServer
from monolith.train.driver import (
    Action,
    Coordinator,
    Hook,
    Run,
    StepContext,
    StepResults,
    current_or_default_run,
)

_CACHED_VARIABLES = "monolith_cached_variables"
"""Collection of a run with its cached parameters."""

LOCAL_VARIABLES = "local_variables"
"""Collection of a run with tensors that are in no checkpoint."""

_META = "cached_variables_meta"


def _of_value(name: str) -> Callable[..., torch.Tensor]:
    def method(self: "HostedParameter", *others: Any) -> torch.Tensor:
        plain = [o.value() if isinstance(o, HostedParameter) else o for o in others]
        result: torch.Tensor = getattr(self.value(), name)(*plain)
        return result

    method.__name__ = name
    return method


class HostedParameter(ABC):
    """A parameter that another process or a server holds, as a worker uses it.

    In an expression it is `value()`: the cached copy once it is cached, else the parameter. It is
    no tensor: `torch.nn.functional` and modules get `value()`.

    Args:
        name: Name of the parameter on its host.
        device: Label of the host.
        host: The host; None if the worker itself holds the parameter.
        parameter: Leaf whose `grad` gets the gradients.

    Attributes:
        cached_copy: Local copy that expressions read; None for a parameter that is not cached.
    """

    def __init__(
        self, name: str, device: str, host: object | None, parameter: torch.nn.Parameter
    ) -> None:
        self.name, self.device, self.host, self.parameter = name, device, host, parameter
        self.cached_copy: torch.Tensor | None = None

    @property
    def identity(self) -> Hashable:
        """Return what tells the parameter from all others of the job."""
        return self.device, self.name

    @abstractmethod
    def read_value(self) -> torch.Tensor:
        """Return a copy of the true value, read from the host now."""

    @abstractmethod
    def assign(self, value: Any) -> None:
        """Replace the true value."""

    @abstractmethod
    def assign_add(self, value: Any) -> None:
        """Add to the true value."""

    def assign_sub(self, value: Any) -> None:
        """Subtract from the true value."""
        self.assign_add(-value)

    @classmethod
    def read_together(
        cls, parameters: "Sequence[HostedParameter]"
    ) -> Callable[[], list[torch.Tensor]]:
        """Ask one host for the values of several of its parameters.

        A host of another process is asked by one message.

        Args:
            parameters: Parameters of this class and of one host.

        Returns:
            A function that waits for the values.
        """
        return lambda: [parameter.read_value() for parameter in parameters]

    def value(self) -> torch.Tensor:
        """Return what expressions read; its gradient goes to the parameter."""
        if self.cached_copy is None:
            return self._live_value()
        return cached_value(self.parameter, self.cached_copy)

    def _live_value(self) -> torch.Tensor:
        return cached_value(self.parameter, self.read_value())

    __add__ = _of_value("__add__")
    __radd__ = _of_value("__radd__")
    __sub__ = _of_value("__sub__")
    __rsub__ = _of_value("__rsub__")
    __mul__ = _of_value("__mul__")
    __rmul__ = _of_value("__rmul__")
    __truediv__ = _of_value("__truediv__")
    __rtruediv__ = _of_value("__rtruediv__")
    __matmul__ = _of_value("__matmul__")
    __rmatmul__ = _of_value("__rmatmul__")
    __pow__ = _of_value("__pow__")
    __neg__ = _of_value("__neg__")
    __pos__ = _of_value("__pos__")
    __getitem__ = _of_value("__getitem__")


class ServerParameter(HostedParameter):
    """A dense parameter of a server of this process, or of the worker itself.

    A value may be read while another thread steps the parameter: it may then have elements from
    before and after the step.

    Args:
        server: Server that holds the parameter, made there if it has none of the name; None for a
            parameter of the worker.
        name: Name of the parameter.
        initial_value: Value of a parameter that is made.

    Example:
        >>> from monolith.cluster import LocalServers
        >>> with LocalServers(2) as servers:
        ...     weight = ServerParameter(servers[1], "weight", torch.tensor(5.0))
        ...     weight.assign_add(2.0)
        ...     weight.read_value().item(), weight.device
        (7.0, '/job:ps/task:1/device:CPU:0')
    """

    def __init__(self, server: LocalServer | None, name: str, initial_value: torch.Tensor) -> None:
        if server is None:
            parameter = torch.nn.Parameter(initial_value.detach().clone())
        else:
            parameter = server.parameter(name, initial_value)
        super().__init__(name, "" if server is None else server.label, server, parameter)

    def read_value(self) -> torch.Tensor:
        """See `HostedParameter`."""
        return self.parameter.detach().clone()

    @torch.no_grad()
    def assign(self, value: Any) -> None:
        """See `HostedParameter`."""
        self.parameter.copy_(torch.as_tensor(value))

    @torch.no_grad()
    def assign_add(self, value: Any) -> None:
        """See `HostedParameter`."""
        self.parameter.add_(value)

    def _live_value(self) -> torch.Tensor:
        return self.parameter


class _CachedValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, var: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        return cached.detach()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grads[0], None


def cached_value(var: torch.Tensor, async_cached_var: torch.Tensor) -> torch.Tensor:
    """Return the cached copy of a parameter; gradients go to the parameter unchanged.

    Args:
        var: The parameter.
        async_cached_var: Its copy, which gets no gradient. It must not change between this call and
            the backward.

    Example:
        >>> parameter = torch.tensor(5.0, requires_grad=True)
        >>> loss = 3 * cached_value(parameter, torch.tensor(4.0))
        >>> loss.backward()
        >>> loss.item(), parameter.grad.item()
        (12.0, 3.0)
    """
    value: torch.Tensor = _CachedValue.apply(var, async_cached_var)  # type: ignore[no-untyped-call]
    return value


@dataclass(frozen=True)
class CachedVariableAssociates:
    """Hold the local copies of a cached parameter.

    Args:
        async_fetched_var: The newest value that arrived.
        async_cached_var: The value that steps read.
    """

    async_fetched_var: torch.Tensor
    async_cached_var: torch.Tensor


@dataclass
class CachedVariableMeta:
    """Hold the cached parameters of a run.

    Args:
        var_id_to_assoc: Identity of a parameter -> its local copies.
    """

    var_id_to_assoc: dict[Hashable, CachedVariableAssociates] = field(default_factory=dict)


def _get_meta() -> CachedVariableMeta:
    metadata = current_or_default_run().metadata
    meta: CachedVariableMeta = metadata.setdefault(_META, CachedVariableMeta())
    return meta


def _get_valid_op_name(name: str) -> str:
    return name.replace(":", "_").replace("/", "_")


def cached_variable_creator(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
    """Create a parameter on a server, and cache it in the worker.

    Args:
        next_creator: Creates the parameter, a `HostedParameter`.
        kwargs: Arguments of `next_creator`.

    Returns:
        The parameter. Expressions with it read its local copy, unless the worker holds it itself.

    Raises:
        ValueError: `next_creator` has made something else, or the parameter is cached already.
    """
    var = next_creator(**kwargs)
    if not isinstance(var, HostedParameter):
        raise ValueError(
            "Only ResourceVariable is supported. Do you disable V2 behavior or use strategy?"
        )
    run, meta = current_or_default_run(), _get_meta()
    if var.cached_copy is not None or var.identity in meta.var_id_to_assoc:
        raise ValueError(
            "The variable has already been cached. Consider about removing cache_device."
        )
    if var.host is None:
        return var
    copies = CachedVariableAssociates(var.read_value(), var.read_value())
    for copy in (copies.async_cached_var, copies.async_fetched_var):
        run.add(LOCAL_VARIABLES, copy)
    meta.var_id_to_assoc[var.identity] = copies
    run.add(_CACHED_VARIABLES, var)
    var.cached_copy = copies.async_cached_var
    return var


def fetch_all_cached_variables() -> Callable[[], None]:
    """Return the function that reads all cached parameters of the run from their hosts.

    All hosts are asked before the first answer is waited for. The values go to the fetched copies,
    each by an action `fetch_from_<device>` of the run; steps do not read these copies.
    """
    run, meta = current_or_default_run(), _get_meta()
    by_host: dict[tuple[type, int], list[tuple[HostedParameter, Action]]] = {}
    for var in run.collection(_CACHED_VARIABLES):
        name = run.unique_name(f"fetch_from_{_get_valid_op_name(var.device)}")
        copy = meta.var_id_to_assoc[var.identity].async_fetched_var.copy_
        pairs = by_host.setdefault((type(var), id(var.host)), [])
        pairs.append((var, run.action(name, copy)))

    def fetch() -> None:
        asked = [
            (pairs, pairs[0][0].read_together([var for var, _ in pairs]))
            for pairs in by_host.values()
        ]
        for pairs, wait in asked:
            for (_, copy), value in zip(pairs, wait(), strict=True):
                copy(value)

    return fetch


def assign_all_cached_variables() -> Action:
    """Return the action that copies the fetched copies into the copies that steps read, in place.

    It is `assign_all_cached_variables` of the run, and consists of actions `assign_cached_var`. It
    must not run during a step.
    """
    run, meta = current_or_default_run(), _get_meta()
    actions = []
    for var in run.collection(_CACHED_VARIABLES):
        copies = meta.var_id_to_assoc[var.identity]
        assign = partial(copies.async_cached_var.copy_, copies.async_fetched_var)
        actions.append(run.action(run.unique_name("assign_cached_var"), assign))

    def assign_all() -> None:
        for action in actions:
            action()

    return run.action(run.unique_name("assign_all_cached_variables"), assign_all, actions)


def _do_nothing() -> None: ...


class FetchAllCachedVariablesHook(Hook):
    """The hook that refreshes the cached parameters of a run: fetch during a step, assign after it.

    Values that are fetched during a step are those of the next step. Before the first step of a
    session they are fetched and assigned at once.
    """

    def __init__(self) -> None:
        self._fetch: Callable[[], None] = _do_nothing
        self._assign: Callable[[], None] = _do_nothing
        self._num_cached = 0
        self._is_first = True

    def begin(self) -> None:
        """Forget the parameters of an earlier run."""
        self._num_cached, self._fetch, self._assign = 0, _do_nothing, _do_nothing

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Refresh at once before the next step."""
        self._is_first = True

    def before_run(self, ctx: StepContext) -> Callable[[], None]:
        """Return the fetch, which overlaps with the step."""
        self._find(ctx.run)
        if self._is_first:
            self._is_first = False
            self._fetch()
            self._assign()
        return self._fetch

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Assign what was fetched."""
        self._assign()

    def _find(self, run: Run) -> None:
        """Take up parameters that were cached since the last step."""
        if len(run.collection(_CACHED_VARIABLES)) != self._num_cached:
            self._num_cached = len(run.collection(_CACHED_VARIABLES))
            self._fetch, self._assign = fetch_all_cached_variables(), assign_all_cached_variables()
