"""`JobHost`: what the workers of a job share on one server, behind calls."""

import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from monolith.cluster.call_host import Call, CallHost
from monolith.cluster.host_verbs import HostFacts, short
from monolith.cluster.job.dense_shard import DenseShard, DenseState
from monolith.cluster.job.job_state import JobState
from monolith.cluster.job.job_values import Progress, check_facts, check_held, is_share
from monolith.cluster.job.job_verbs import JOB_VERBS
from monolith.errors import (
    AbortedError,
    DataLossError,
    FailedPreconditionError,
    InvalidArgumentError,
)

_MAX_SAMPLES = 1 << 40  # of a step


class JobHost(CallHost):
    """Serves a job on one server: dense parameters here, and on server 0 the state of the job.

    Every server knows the number of each worker's last step, so that steps that are lost with a
    server can be counted.

    Args:
        index: Number of the server.
        num_workers: Number of workers.
        dense: Dense parameters of the server; None in a server that was started without a task.
        device: Label of the server.
        max_message_bytes: Most bytes of the tensors of one call, or of its answer.
        fence: Lets all hosts of the server refuse writes of some callers from now on.
        await_writes: Waits for the end of writes of these callers that have begun.

    Attributes:
        is_ready: Whether tables and dense parameters have their values, initial or restored.
        is_ended: Whether the job has ended, so that the server may end.
        state: State of the job; None but on server 0.
    """

    def __init__(
        self,
        index: int,
        num_workers: int,
        dense: DenseShard | None,
        *,
        device: str,
        max_message_bytes: int,
        fence: Callable[[Sequence[int]], None],
        await_writes: Callable[[Sequence[int]], None],
    ) -> None:
        super().__init__(HostFacts("the job", [], max_message_bytes), JOB_VERBS)
        self.device, self.dense = device, dense
        self._fence, self._await_writes = fence, await_writes
        self.num_workers = num_workers
        self.state = JobState(num_workers) if index == 0 else None
        self.is_ready = self.is_ended = False
        self._start_values: list[tuple[str, torch.Tensor]] = []
        self._starts: dict[int, tuple[int, list[int]]] = {}  # worker -> start and callers
        self._numbers: dict[int, int] = {}  # worker -> number of its last step
        # A step is made and noted before its worker is given up, or not at all. Entered again by
        # the fence, which releases the callers of a worker here, too.
        self._steps = threading.RLock()

    def _run(self, call: Call) -> Any:
        return getattr(self, f"_do_{call.verb}")(*call.arguments)

    def release_client(self, client: int, *, is_gone: bool = False) -> None:
        """Give up the worker of a caller that is gone. Thread-safe."""
        super().release_client(client, is_gone=is_gone)
        with self._steps:
            for worker, (_, clients) in list(self._starts.items()):
                if client in clients:
                    del self._starts[worker]
                    if not is_gone:
                        self._fence(clients)
            if self.state is not None:
                self.state.lose(client)

    def tick(self) -> None:
        """Answer calls that have waited long enough."""
        if self.state is not None:
            self.state.tick()

    def end_waits(self) -> None:
        """Answer all calls that wait."""
        if self.state is not None:
            self.state.end_waits()

    def _job(self) -> JobState:
        if self.state is None:
            raise FailedPreconditionError(
                f"[JobHost] expected a call to server 0, got one to {self.device}"
            )
        return self.state

    def _parameters(self) -> DenseShard:
        if self.dense is None:
            raise FailedPreconditionError(
                f"[JobHost] expected a server that knows the dense parameters of the task, got one "
                f"that was started without it ({self.device}); start it with the task file: "
                "monolith ps TASK"
            )
        return self.dense

    # Reads

    def _do_describe_job(self) -> dict[str, Any]:
        return {
            "is_ready": self.is_ready,
            "is_ended": self.is_ended,
            "num_workers": self.num_workers,
            "dense": None if self.dense is None else self.dense.lines,
            "version": 0 if self.dense is None else self.dense.version,
            "is_offered": self.state is not None and self.state.is_offered,
            "counts": {} if self.state is None else self.state.counts()._asdict(),
            "alive": [] if self.state is None else self.state.alive_workers(),
        }

    def _do_read_dense(self, known: int) -> tuple[int, list[tuple[str, torch.Tensor]]]:
        return self._parameters().read(known)

    def _do_export_dense(self) -> tuple[Any, ...]:
        return tuple(self._parameters().export())

    def _do_export_job(self) -> str:
        state = None if self.state is None else self.state.export()
        numbers = {str(worker): number for worker, number in self._numbers.items()}
        return json.dumps({"numbers": numbers, "state": state})

    def _do_job_number(self, worker: int) -> int:
        return self._numbers.get(worker, 0)

    def _do_read_flags(self, name: str, size: int) -> list[bool]:
        return self._job().shared.flags(name, size)

    def _do_read_text(self, name: str) -> str:
        return self._job().shared.text(name)

    def _do_start_values(self) -> list[tuple[str, torch.Tensor]]:
        return self._start_values

    def _do_watch_job(self, worker: int, start: int, number: int, acknowledged: int) -> Any:
        return self._job().watch(worker, start, number, acknowledged)

    def _do_worker_facts(self) -> list[tuple[Any, ...]]:
        return [tuple(facts) for facts in self._job().worker_facts()]

    def _do_wait_held(self, hold: int, milliseconds: int) -> Any:
        return self._job().await_held(hold, milliseconds / 1000)

    # Writes

    def _do_join_job(
        self, worker: int, start: int, clients: list[int], facts: str, held: str
    ) -> str:
        if worker >= self.num_workers:
            raise InvalidArgumentError(
                f"[JobHost.join_job] expected a worker in [0, {self.num_workers}), got {worker} "
                f"({self.device}); give all processes the same number of workers"
            )
        given, shares = json.loads(facts), json.loads(held)
        check_facts(given)
        check_held(shares)
        answer: dict[str, Any] = {}
        with self._steps:
            if self.state is not None:
                answer = self.state.join(worker, start, clients, given, shares)
            old, old_clients = self._starts.get(worker, (start, []))
            fenced = [] if old == start else old_clients
            self._fence(fenced)
            self._starts[worker] = start, clients
        self._await_writes(fenced)
        return json.dumps(answer)

    def _do_leave_job(self, worker: int, start: int, acknowledged: int) -> None:
        with self._steps:
            if self._starts.get(worker, (None, []))[0] == start:
                del self._starts[worker]
            if self.state is not None:
                self.state.leave(worker, start, acknowledged)

    def _do_step_job(
        self,
        worker: int,
        start: int,
        number: int,
        gradients: list[tuple[str, torch.Tensor]],
        options: str,
        progress: str,
        wants_values: bool,
    ) -> tuple[int, int, int, list[tuple[str, torch.Tensor]]]:
        """Step the dense parameters; answer as `StepAnswer` says."""
        if gradients or options:
            self._parameters().check(gradients, options)
        steps = _progress_of(progress)
        with self._steps:
            self._check_worker(worker, start)
            version = 0 if self.dense is None else self.dense.step(gradients, options)
            num_steps = repeats = 0
            if self.state is not None:
                num_steps, repeats = self.state.note_step(worker, start, number, steps)
            self._numbers[worker] = max(number, self._numbers.get(worker, 0))
        values = self._parameters().read(-1)[1] if wants_values and self.dense is not None else []
        return version, num_steps, repeats, values

    def _check_worker(self, worker: int, start: int) -> None:
        if self._starts.get(worker, (None, []))[0] != start:
            raise AbortedError(
                f"[JobHost.step_job] expected a worker of the job, got worker {worker}, which was "
                f"given up, or was replaced by a new start ({self.device}); start it again"
            )

    def _do_import_dense(
        self,
        version: int,
        values: list[tuple[str, torch.Tensor]],
        tree: str,
        tensors: list[tuple[str, torch.Tensor]],
    ) -> None:
        self._parameters().load(DenseState(version, values, tree, tensors))

    def _do_import_job(self, state: str, with_workers: bool) -> None:
        value = json.loads(state)
        try:
            numbers = {int(worker): int(n) for worker, n in value["numbers"].items()}
            if self.state is not None and value["state"] is not None:
                self.state.load(value["state"], with_workers=with_workers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataLossError(
                f"[JobHost.import_job] expected the job of a save, got {short(state)}: {error!r}"
            ) from error
        self._numbers = numbers

    def _do_set_start_values(self, values: list[tuple[str, torch.Tensor]]) -> None:
        self._start_values = [(name, value.clone()) for name, value in values]

    def _do_set_ready(self) -> None:
        self.is_ready = True

    def _do_end_job(self) -> None:
        self.is_ended = True

    def _do_hold_job(self, worker: int, milliseconds: int) -> int:
        return self._job().hold(worker, milliseconds / 1000)

    def _do_note_held(self, worker: int, start: int, hold: int, acknowledged: int) -> None:
        self._job().note_held(worker, start, hold, acknowledged)

    def _do_park_job(self, known: int) -> tuple[int, bool]:
        return self._job().park.place(known)

    def _do_unpark_job(self, known: int) -> int:
        return self._job().park.remove(known)

    def _do_note_parked(self, worker: int, start: int, park: int, acknowledged: int) -> None:
        self._job().note_parked(worker, start, park, acknowledged)

    def _do_release_job(self, hold: int) -> bool:
        return self._job().release(hold)

    def _do_give_up_workers(self, workers: list[int]) -> None:
        with self._steps:
            if self.state is not None:
                self.state.give_up(workers)
            starts = [self._starts.pop(worker, (0, [])) for worker in workers]
            fenced = [client for _, clients in starts for client in clients]
            self._fence(fenced)
        self._await_writes(fenced)  # some of them wait for the lock

    def _do_note_lost(self, pushes: int) -> None:
        self._job().note_lost(pushes)

    def _do_offer_shares(self, names: str, epochs: int) -> None:
        self._job().offer(_texts_of(names, "offer_shares"), None if epochs < 0 else epochs)

    def _do_take_share(self, worker: int, start: int, acknowledged: int, finished: str) -> str:
        shares = _texts_of(finished, "take_share")
        return json.dumps(self._job().take(worker, start, acknowledged, shares))

    def _do_set_flag(self, name: str, size: int, index: int, value: bool) -> None:
        self._job().shared.set_flag(name, size, index, value)

    def _do_set_text(self, name: str, text: str) -> None:
        self._job().shared.set_text(name, text)

    def _do_set_steps(self, number: int) -> None:
        self._job().set_steps(number)

    def _do_stop_workers(self) -> None:
        self._job().stop()


def _texts_of(text: str, verb: str) -> list[str]:
    texts: list[str] = json.loads(text)
    if type(texts) is not list or not all(type(item) is str for item in texts):
        raise InvalidArgumentError(
            f"[JobHost.{verb}] expected a list of texts in JSON, got {text[:100]!r}"
        )
    return texts


def _progress_of(text: str) -> list[Progress]:
    if not text:
        return []
    try:
        steps = [Progress(*entry) for entry in json.loads(text)]
        is_right = all(
            is_share(step.share)
            and type(step.is_last) is bool
            and type(step.num_samples) is int
            and 0 <= step.num_samples <= _MAX_SAMPLES
            for step in steps
        )
    except (ValueError, TypeError, RecursionError):
        is_right = False
    if not is_right:
        raise InvalidArgumentError(
            "[JobHost.step_job] expected progress as a list of (share, position, is_last, "
            f"num_samples) in JSON, got {text[:100]!r}"
        )
    return steps
