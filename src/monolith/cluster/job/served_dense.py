"""`ServedDense`: the dense parameters of a task on servers, as a worker uses them."""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from monolith.checkpoint import Checkpoint
from monolith.checkpoint.state_tree import STATES
from monolith.cluster.job.dense_shard import (
    DenseState,
    NamedTensors,
    describe_dense,
    group_options,
    place_parameters,
    trained_parameters,
)
from monolith.cluster.job.job_client import JobClient
from monolith.cluster.job.job_values import StepAnswer
from monolith.errors import DataLossError, InvalidArgumentError

DENSE_VERSIONS = "dense_versions"
"""Name of the servers' dense versions in the document of a checkpoint's trainer."""

_log = logging.getLogger(__name__)


class ServedDense:
    """Keeps the parameters of a model as copies of those on servers, and steps them there.

    The model's own parameters are the copies: they are written in place, between two steps, so that
    a compiled model and an optimizer keep them. One thread trains; another may push.

    Buffers are those of each worker: the chief's are saved, and all workers begin with them.

    Args:
        job: Connection to the job.
        model: Dense model.
        optimizer: Optimizer of the model, whose groups have the options of the servers' steps; None
            for a model without parameters.
        wants_values: Whether the answer of a step brings the parameters after it. Otherwise `fetch`
            reads them during a step.

    Attributes:
        staleness: Number of steps that servers had made and the copies of the last step missed.
        num_rollbacks: Number of times that a server came back with an older version.
    """

    def __init__(
        self,
        job: JobClient,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        wants_values: bool,
    ) -> None:
        self._job, self._model, self._optimizer = job, model, optimizer
        self._parameters = trained_parameters(model, optimizer)
        num_servers = len(job.servers)
        self._places = place_parameters(self._parameters, num_servers)
        self._servers = sorted(set(self._places.values()))  # that have parameters
        self.wants_values = wants_values
        self.lines = describe_dense(self._parameters, optimizer)
        self.staleness = self.num_rollbacks = 0
        self._versions = [0] * num_servers  # of the copies
        self._lock = threading.Lock()
        self._arrived: dict[int, tuple[int, NamedTensors]] = {}  # server -> newest parameters
        self._progress: list[tuple[str, Any, bool, int]] = []
        job.restore_dense = self.read_checkpoint

    @property
    def has_parameters(self) -> bool:
        """Whether servers have parameters of the task."""
        return bool(self._parameters)

    @property
    def num_steps(self) -> int:
        """Number of steps of all workers, as far as this worker knows."""
        return self._job.num_steps

    @property
    def num_workers(self) -> int:
        """Number of workers of the job."""
        return self._job.num_workers

    def _of_server(self, server: int) -> list[str]:
        return [name for name, place in self._places.items() if place == server]

    # Steps

    def note_progress(self, progress: Sequence[tuple[str, Any, bool, int]]) -> None:
        """Set what the next step has trained of shares."""
        self._progress = list(progress)

    def collect(self) -> contextlib.AbstractContextManager[None]:
        """Take the gradients; the block that is returned sends them while it steps the tables.

        Raises:
            InvalidArgumentError: A gradient is sparse, or not finite; nothing was sent.
        """
        gradients: list[NamedTensors] = [[] for _ in self._versions]
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                gradients[self._places[name]].append((name, _checked(name, parameter.grad)))
        options = "" if self._optimizer is None else group_options(self._optimizer)
        return self._push(gradients, options, self._progress, list(self._versions))

    @contextlib.contextmanager
    def _push(
        self,
        gradients: list[NamedTensors],
        options: str,
        progress: list[tuple[str, Any, bool, int]],
        versions: list[int],
    ) -> Iterator[None]:
        answers: list[StepAnswer] = []
        job, wants_values = self._job, self.wants_values
        with job.pushing(gradients, options, progress, answers, wants_values=wants_values):
            yield
        behind = [answers[server].version - 1 - versions[server] for server in self._servers]
        self.staleness = max(behind, default=0)
        if wants_values:
            self._note([(answer.version, answer.values) for answer in answers])

    def _note(self, answers: Sequence[tuple[int, NamedTensors]]) -> None:
        with self._lock:
            for server, (version, values) in enumerate(answers):
                if values:
                    self._arrived[server] = version, values

    # Copies

    def fetch(self) -> None:
        """Read the parameters of all servers, one message to each; safe during a step."""
        self._note(self._job.read_dense(self._versions))

    def refresh(self) -> None:
        """Write the parameters that have arrived into the model; call it between two steps."""
        with self._lock:
            arrived, self._arrived = self._arrived, {}
        with torch.no_grad():
            for server, (version, values) in arrived.items():
                if version < self._versions[server]:
                    self.num_rollbacks += 1
                    _log.warning(
                        "server %d came back with dense parameters of version %d, this worker had "
                        "version %d; it goes on with those of the server",
                        server,
                        version,
                        self._versions[server],
                    )
                self._versions[server] = version
                for name, value in values:
                    self._parameters[name].copy_(value)

    # Begin, saves and restores

    def send_all(self) -> None:
        """Set the servers' parameters and optimizer state to those of this process."""
        state = {} if self._optimizer is None else self._optimizer.state
        states = []
        for server in range(len(self._versions)):
            own = {name: self._parameters[name] for name in self._of_server(server)}
            of_optimizer = {name: state[value] for name, value in own.items() if value in state}
            states.append(DenseState.of(0, list(own.items()), of_optimizer))
        if self._parameters:
            self._job.import_dense(states)
        self._versions = [0] * len(self._versions)

    def take_all(self) -> int:
        """Set parameters and optimizer state of this process to those of the servers.

        Returns:
            Number of steps of all workers.
        """
        num_steps = self._job.read_steps()
        if not self._parameters:
            return num_steps
        with torch.no_grad():
            for server, state in enumerate(self._job.export_dense()):
                self._versions[server] = state.version
                for name, value in state.values:
                    self._parameters[name].copy_(value)
                states = state.states()
                assert self._optimizer is not None
                for name in self._of_server(server):
                    self._optimizer.state.pop(self._parameters[name], None)
                    if name in states:
                        self._optimizer.state[self._parameters[name]] = states[name]
        with self._lock:
            self._arrived.clear()
        return num_steps

    def read_checkpoint(self, checkpoint: Checkpoint, server: int) -> DenseState:
        """Return what a checkpoint has of the parameters of a server."""
        names = self._of_server(server)
        trees = (checkpoint.read_trainer() or {}).get(STATES, {})
        states = [name for name in ("optimizer",) if name in trees]
        values, read = checkpoint.read_parts(
            "[ServedDense]", [f"model.{name}" for name in names], states
        )
        saved = read.get("optimizer", {"state": {}, "param_groups": []})
        order = [] if self._optimizer is None else self._optimizer.param_groups
        by_identity = {id(value): name for name, value in self._parameters.items()}
        of_names: dict[str, Any] = {}
        for group, of_save in zip(order, saved["param_groups"], strict=False):
            if len(group["params"]) != len(of_save["params"]):
                raise DataLossError(
                    f"[ServedDense] expected {len(group['params'])} parameters in a group of the "
                    f"optimizer in {checkpoint.prefix}, got {len(of_save['params'])}"
                )
            for parameter, number in zip(group["params"], of_save["params"], strict=True):
                name = by_identity.get(id(parameter), "")
                if name in names and number in saved["state"]:
                    of_names[name] = saved["state"][number]
        version = self._version_of(checkpoint, server)
        own = [(name, values[f"model.{name}"]) for name in names]
        return DenseState.of(version, own, of_names)

    def _version_of(self, checkpoint: Checkpoint, server: int) -> int:
        versions = (checkpoint.read_trainer() or {}).get(DENSE_VERSIONS, [])
        return int(versions[server]) if len(versions) == len(self._versions) else 0

    @property
    def versions(self) -> list[int]:
        """Version of the copies, by server."""
        return list(self._versions)

    def untrained(self) -> NamedTensors:
        """Return buffers and parameters that no server steps, by name."""
        named = [*self._model.named_parameters(), *self._model.named_buffers()]
        others = [(name, value.detach()) for name, value in named if name not in self._parameters]
        return [(n, v.clone(memory_format=torch.contiguous_format)) for n, v in others]

    def send_untrained(self) -> None:
        """Let workers that begin later take the untrained values of this process."""
        self._job.set_start_values(self.untrained())

    def take_untrained(self) -> None:
        """Take the untrained values of the chief."""
        self._set_untrained(self._job.start_values())

    def read_untrained(self, checkpoint: Checkpoint) -> None:
        """Take the untrained values of a checkpoint."""
        names = [f"model.{name}" for name, _ in self.untrained()]
        values = checkpoint.read_dense([name for name in names if name in checkpoint.tensors])
        self._set_untrained([(n.removeprefix("model."), v) for n, v in values.items()])

    def _set_untrained(self, values: NamedTensors) -> None:
        named = dict([*self._model.named_parameters(), *self._model.named_buffers()])
        with torch.no_grad():
            for name, value in values:
                if name in named:
                    named[name].copy_(value)


def _checked(name: str, gradient: torch.Tensor) -> torch.Tensor:
    if gradient.layout != torch.strided:
        raise InvalidArgumentError(
            f"[ServedDense] expected a dense gradient, got one of {gradient.layout} (parameter "
            f"{name!r}); use a table of monolith for sparse rows"
        )
    if not bool(torch.isfinite(gradient).all()):
        raise InvalidArgumentError(
            f"[ServedDense] expected a finite gradient, got Inf or NaN (parameter {name!r}); "
            "nothing was sent to the servers"
        )
    return gradient.detach().contiguous()
