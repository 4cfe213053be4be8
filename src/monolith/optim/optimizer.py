"""Step dense parameters and tables together."""

import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from monolith.features.gradients import PendingGradients, step_all
from monolith.table.base import BaseTable
from monolith.table.config import Segment, segment_name, segments_of

_rate_of = operator.itemgetter("lr")


class DenseServers(Protocol):
    """Steps dense parameters elsewhere, such as on parameter servers."""

    def collect(self) -> AbstractContextManager[None]:
        """Take the gradients; the context that is returned steps their parameters.

        The tables are stepped inside of the context, which any thread may enter, once.
        """


class Optimizer(torch.optim.Optimizer):
    """Step a model with tables: `dense` steps its parameters, and each table makes one step.

    Schedulers, `GradScaler` and `clip_grad_norm_` of torch work on it. Its parameter groups are
    those of `dense`, the same objects, and one for each segment of a table, in the order in which
    the modules come; the `lr` there is the learning rate of the segment. A segment whose optimizer
    has a schedule of its own follows that, by the number of the table's updates.

    One thread steps at a time; lookups may run concurrently.

    Attributes:
        num_begun: Number of steps that began to change parameters or tables; a step that is refused
            or skipped changes nothing.

    Args:
        modules: a module, or several; their tables are stepped. A table used twice is one.
        dense: optimizer of the other parameters; it belongs to this one from now on, and the
            anchors of the tables are taken out of it. None: there are only tables.
        servers: what steps the parameters of `dense` in its place; None lets `dense` step them.

    Example:
        >>> from monolith.nn import EmbeddingBag
        >>> model = torch.nn.Sequential(EmbeddingBag(4), torch.nn.Linear(4, 1))
        >>> optimizer = Optimizer(model, dense=torch.optim.Adam(model.parameters(), lr=0.001))
        >>> model(torch.tensor([[42, -7, 42]])).sum().backward()
        >>> optimizer.step()
        >>> [group["lr"] for group in optimizer.param_groups], len(model[0].table)
        ([0.001, 0.01], 2)
    """

    # GradScaler then tells `step` of a skip, instead of not calling it: the queues are emptied.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        modules: torch.nn.Module | Iterable[torch.nn.Module],
        dense: torch.optim.Optimizer | None = None,
        servers: DenseServers | None = None,
    ) -> None:
        self._is_built, self._servers = False, servers
        listed = _as_modules(modules)
        self.queues = _queues_of(listed)
        self.dense = _checked_dense(dense)
        if dense is None:
            _check_only_tables(listed, self.queues)
        groups = self._take_dense_groups()
        self._num_dense = len(groups)
        with_names = any("param_names" in group for group in groups)
        self._places: list[tuple[int, int]] = []  # of each queue among the groups of tables
        self._schedules: list[tuple[int, BaseTable, Segment]] = []
        self.num_begun = 0
        for queue in self.queues:
            first = len(groups) - self._num_dense
            groups += _groups_of(queue, with_names)
            self._places.append((first, len(groups) - self._num_dense))
            for i, (table, _, segment) in enumerate(_segments_of(queue), first):
                if callable(segment.optimizer.schedule):
                    self._schedules.append((i, table, segment))
        super().__init__(groups, {})
        self._is_built = True
        if self.dense is not None:
            self.state = self.dense.state
            self.defaults = dict(self.dense.defaults)
            # Schedulers that cycle the momentum write it into every group; tables leave it there.
            momentum = {k: v for k, v in self.defaults.items() if k in ("betas", "momentum")}
            for group in self._table_groups():
                group.update(momentum)

    def _take_dense_groups(self) -> list[dict[str, Any]]:
        """Take the anchors out of the groups of the dense optimizer; return the group objects."""
        anchors = {queue.anchor for queue in self.queues}
        groups = [] if self.dense is None else list(self.dense.param_groups)
        for group in groups:
            is_kept = [parameter not in anchors for parameter in group["params"]]
            for name in {"params", "param_names"} & set(group):
                pairs = zip(group[name], is_kept, strict=True)
                group[name] = [value for value, kept in pairs if kept]
        return groups

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Step the dense parameters, and make one update of each table with its whole queue.

        Nothing is stepped if a table would refuse its gradients, its learning rates or the call.

        Args:
            closure: computes the loss and its gradients again, once, before the step.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        queues = self._checked_queues()
        if queues is None:
            return loss
        with self._begin_dense():
            step_all(queues)
        return loss

    def begin_step(self, queue_gradients: Callable[[], None] | None = None) -> Callable[[], None]:
        """Step the dense parameters here; return a function that steps what is elsewhere.

        That is the tables, and dense parameters on servers. Call the function once, on any thread.
        Until it returns, run no `zero_grad` of this optimizer and no backward to the tables;
        lookups may run concurrently. `step` is both, and calls its hooks.

        Args:
            queue_gradients: Function that queues the gradients of the tables, which the returned
                function calls first; a table that refuses the gradients then does so after the step
                of the dense parameters. None means that the gradients are queued.
        """
        if queue_gradients is not None:
            self._opt_called = True  # as torch's frame of `step` says to schedulers
            rates = self._learning_rates()  # of this step: a schedule may change them meanwhile
            return functools.partial(self._step_late, self._begin_dense(), queue_gradients, rates)
        queues = self._checked_queues()
        if queues is None:
            return lambda: None
        return functools.partial(_step_in, self._begin_dense(), queues)

    def _step_late(
        self,
        context: AbstractContextManager[None],
        queue_gradients: Callable[[], None],
        rates: list[list[float]],
    ) -> None:
        with context:
            queue_gradients()
            step_all(self._checked_queues(rates) or [])

    def _begin_dense(self) -> AbstractContextManager[None]:
        """Step the dense parameters, or return the context in which servers step them."""
        self.num_begun += 1
        if self._servers is not None:
            return self._servers.collect()
        if self.dense is not None:
            self.dense.step()
        return nullcontext()

    @staticmethod
    def profile_hook_step(function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `step` in torch's frame, which calls hooks and names the step in a profile.

        Without hooks and profiler the frame is left out: it takes a quarter of the step of a small
        bag (docs/design/0019-tricks-measured.md).
        """
        with_frame = torch.optim.Optimizer.profile_hook_step(function)

        @functools.wraps(function)
        def step(self: "Optimizer", *arguments: Any, **named: Any) -> Any:
            is_framed = torch._C._autograd._profiler_enabled() or self._has_step_hooks()
            return (with_frame if is_framed else function)(self, *arguments, **named)

        return step

    def _has_step_hooks(self) -> bool:
        return bool(
            self._optimizer_step_pre_hooks
            or self._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
        )

    def _checked_queues(
        self, rates_of_queues: list[list[float]] | None = None
    ) -> list[PendingGradients[Any]] | None:
        """Return the queues with gradients; None and empty queues if a gradient scaler skips."""
        self._opt_called = True  # as torch's frame of `step` says to schedulers
        if self._is_skipped():
            for queue in self.queues:
                queue.drop()
            return None
        queues = []
        if rates_of_queues is None:
            rates_of_queues = self._learning_rates()
        for queue, rates in zip(self.queues, rates_of_queues, strict=True):
            if queue.check("[Optimizer.step]", rates):
                queues.append(queue)
            else:
                queue.drop()
        return queues

    def _is_skipped(self) -> bool:
        """Whether a gradient scaler found Inf or NaN; if not, divide gradients by its factor."""
        found_inf = getattr(self, "found_inf", None)
        if found_inf is not None and found_inf.item():
            return True
        scale = getattr(self, "grad_scale", None)
        if scale is not None:
            factor = scale.double().reciprocal().float()
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(factor.to(parameter.grad.device))
        return False

    def _learning_rates(self) -> list[list[float]]:
        """Return the rates of the segments of each queue, at the next update of the tables."""
        groups = self._table_groups()
        for i, table, segment in self._schedules:
            group = groups[i]
            if "initial_lr" in group:
                raise ValueError(
                    f"[Optimizer.step] expected one schedule of the learning rate of segment "
                    f"{group['segment']!r}, got a scheduler beside the segment's own "
                    f"(table {table.name!r}); give the segment a number"
                )
            group["lr"] = segment.optimizer.rate(table._next_update())
        rates = list(map(float, map(_rate_of, groups)))
        return [rates[first:end] for first, end in self._places]

    def _table_groups(self) -> list[dict[str, Any]]:
        return self.param_groups[self._num_dense :]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients of the dense parameters and the queues of the tables."""
        if self.dense is not None:
            self.dense.zero_grad(set_to_none)
        for queue in self.queues:
            queue.drop()

    def __getstate__(self) -> dict[str, Any]:
        """Refuse copies: a copy would step other parameters than those of a copied model."""
        raise TypeError(
            "[Optimizer] expected no copy and no pickle of it, got one; make a new one and call "
            "load_state_dict(optimizer.state_dict())"
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refuse groups after construction, because groups of `dense` come first."""
        if self._is_built:
            raise ValueError(
                "[Optimizer.add_param_group] expected groups in the constructor, got one "
                "afterwards; add it to dense and make a new Optimizer"
            )
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over state and options; rows and their state come with the module's state_dict."""
        groups = state_dict["param_groups"]
        saved = [((g.get("table"), g.get("segment")), g) for g in groups[self._num_dense :]]
        names = [(group["table"], group["segment"]) for group in self._table_groups()]
        if Counter(name for name, _ in saved) != Counter(names):
            raise ValueError(
                f"[Optimizer.load_state_dict] expected groups of the tables and segments {names}, "
                f"got {[name for name, _ in saved]}"
            )
        by_name: dict[Any, list[dict[str, Any]]] = {}
        for name, group in saved:
            by_name.setdefault(name, []).append(group)
        # Anchors have no state, and which groups hold them differs between versions.
        of_tables = [
            {**by_name[name].pop(0), "params": [("anchor", name)] * len(group["params"])}
            for name, group in zip(names, self._table_groups(), strict=True)
        ]
        groups = [*groups[: self._num_dense], *of_tables]
        super().load_state_dict({**state_dict, "param_groups": groups})
        if self.dense is not None:
            groups = self.param_groups[: self._num_dense]
            self.dense.__setstate__({"state": self.state, "param_groups": groups})


def _step_in(context: AbstractContextManager[None], queues: list[PendingGradients[Any]]) -> None:
    with context:
        step_all(queues)


def _as_modules(modules: torch.nn.Module | Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    listed = [modules] if isinstance(modules, torch.nn.Module) else list(modules)
    for module in listed:
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"[Optimizer] expected a module or several, got {type(module).__name__}; pass the "
                "model, not its parameters"
            )
    return listed


def _check_only_tables(listed: list[torch.nn.Module], queues: list[PendingGradients[Any]]) -> None:
    """Refuse parameters that no optimizer would step."""
    anchors = {queue.anchor for queue in queues}
    others = [
        name
        for module in listed
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and parameter not in anchors
    ]
    if others:
        raise ValueError(
            f"[Optimizer] expected dense, an optimizer of the other parameters, got none beside "
            f"{', '.join(others[:3])}{' ...' if len(others) > 3 else ''} ({len(others)} in all); "
            "pass dense=torch.optim.Adam(model.parameters()), or only the modules with tables"
        )


def _queues_of(listed: list[torch.nn.Module]) -> list[PendingGradients[Any]]:
    """Return the queues of all tables, each once."""
    inner = (part for module in listed for part in module.modules())
    attributes = (getattr(part, "queue", None) for part in inner)
    queues = {id(queue): queue for queue in attributes if isinstance(queue, PendingGradients)}
    counts = Counter(id(table) for queue in queues.values() for table in queue.tables)
    for table in (table for queue in queues.values() for table in queue.tables):
        if counts[id(table)] > 1:
            raise ValueError(
                f"[Optimizer] expected every table in one queue, got one in {counts[id(table)]}: a "
                f"step would update it as often (table {table.name!r}); read it by one "
                "Features, or by modules that share it"
            )
    if not queues:
        raise ValueError(
            "[Optimizer] expected a module with a table, got none; use the dense optimizer alone"
        )
    return list(queues.values())


def _checked_dense(dense: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
    if dense is None:
        return None
    if not isinstance(dense, torch.optim.Optimizer):
        raise TypeError(
            f"[Optimizer] expected dense as a torch.optim.Optimizer, got {type(dense).__name__}"
        )
    if isinstance(dense, torch.optim.LBFGS | Optimizer):
        raise ValueError(
            f"[Optimizer] expected dense as an optimizer that steps once, got "
            f"{type(dense).__name__}; tables step once per call"
        )
    return dense


def _segments_of(queue: PendingGradients[Any]) -> list[tuple[BaseTable, int, Segment]]:
    """Return all segments of a queue, each with its table and its number in the table."""
    return [
        (table, number, segment)
        for table in queue.tables
        for number, segment in enumerate(segments_of(table.config))
    ]


def _groups_of(queue: PendingGradients[Any], with_names: bool) -> list[dict[str, Any]]:
    """Make a group for each segment; the first holds the anchor, where scalers look."""
    groups: list[dict[str, Any]] = []
    for table, number, segment in _segments_of(queue):
        group = {
            "params": [] if groups else [queue.anchor],
            "lr": segment.optimizer.rate(table._update_calls()),
            "table": table.name,
            "segment": segment_name(table.config, number),
        }
        if with_names:
            group["param_names"] = [] if groups else [f"{table.name}.anchor"]
        groups.append(group)
    return groups
