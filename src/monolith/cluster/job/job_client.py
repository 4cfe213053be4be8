"""`JobClient`: a worker's part in a job."""

import contextlib
import copy
import functools
import json
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from monolith.checkpoint import Checkpoint
from monolith.cluster.gate import Gate
from monolith.cluster.job.dense_shard import DenseState, NamedTensors
from monolith.cluster.job.job_park import JobPark
from monolith.cluster.job.job_values import (
    HeldShares,
    News,
    ProgressFields,
    StepAnswer,
    Taken,
    first_difference,
)
from monolith.cluster.remote_servers import RemoteServers
from monolith.cluster.transport import ShardClient, Transport
from monolith.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    OpError,
)
from monolith.table.arguments import time_text

if TYPE_CHECKING:
    from typing_extensions import Self

JOB = "job"
"""Name of the job's state in the document of a checkpoint's trainer."""

HOLD_SECONDS = 30.0
"""Seconds that a save waits for workers to hold their pushes; then silent ones are given up."""

_CUT_SECONDS = 30.0  # which the cuts may take while all hold
_RESTORE_SECONDS = 600.0  # calls to the server wait meanwhile, up to their own limit
_POLL_SECONDS = 0.1
_WORD_SECONDS = 10.0
_NEWS_SECONDS = 10.0  # that a worker waits for its first news: without server 0 it cannot step

_log = logging.getLogger(__name__)


_Calls = Callable[..., Any]
"""(verb, arguments) -> answer of one server."""

RestoreDense = Callable[[Checkpoint, int], DenseState]
"""(checkpoint, number of a server) -> the state of its dense parameters."""


class JobClient:
    """Connects a worker to the other workers of its job, by their servers.

    Any thread may call at any time; one thread makes the steps. Close it before its servers.

    Args:
        servers: Servers of the job; their `worker` is this worker, and worker 0 is the chief.
        hold_seconds: Seconds that `quiet` waits for the others.

    Attributes:
        servers: The servers.
        worker: Number of this worker.
        num_workers: Number of workers.
        num_steps: Number of steps of all workers, as far as this worker knows.
        acknowledged: Number of the last step of this worker that all servers have.
        first_step: Number of steps with which the job began.
        end_seconds: Seconds that the chief waits for the other workers to end.
        on_stop: Called on a thread when this worker is to end after its running step.
        on_wait: Called again and again on the thread that waits for other workers.
        park: Stops all workers at their step boundaries.
        restore_dense: Reads dense parameters of a server from a checkpoint; set in the chief.
    """

    def __init__(self, servers: RemoteServers, *, hold_seconds: float = HOLD_SECONDS) -> None:
        self.servers = servers
        self.worker, self.num_workers = servers.worker
        self.num_steps = self.acknowledged = self.first_step = 0
        self.end_seconds = 1800.0
        self.on_stop: Callable[[], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        self.restore_dense: RestoreDense | None = None
        self._start = secrets.randbits(62)
        self._hold_seconds = hold_seconds
        transports = servers.open_job()
        self._client = ShardClient("the job", transports, owner="JobClient")
        self._watcher = ShardClient("the job", transports[:1], owner="JobClient")
        self.park = JobPark(self._ask_of_park)
        self._gate = Gate("JobClient", "the job")
        self._lock = threading.Lock()
        self._held = HeldShares({}, [], 0)
        self._flying: list[ProgressFields] = []  # of the step that not all servers have
        self._answered: dict[int, int] = {}  # server -> number of the last step that it has
        self._counted: dict[int, int] = {}  # server -> number up to which losses are counted
        self._repeats = 0
        self._lost: set[str] = set()
        self._start_values: NamedTensors | None = None
        self._offer: tuple[str, int] | None = None  # which a server 0 without shares gets again
        self._loaded = ""  # state of an earlier run, likewise where its checkpoint has none
        self._said: dict[tuple[Any, ...], Any] = {}  # flags and texts, likewise
        self._clients: list[int] = []
        self._facts = "{}"
        self._is_joined = self._is_closing = self._is_holding = False
        self._error: OpError | None = None  # that the watching thread met
        self._has_news = threading.Event()  # and obeys them
        self._thread = threading.Thread(target=self._watch, name="monolith-job", daemon=True)

    @property
    def is_chief(self) -> bool:
        """Whether this worker restores, saves and ends the job."""
        return self.worker == 0

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the job; what was taken and not trained goes to others. Closing twice is fine."""
        if self._is_closing:
            return
        self._is_closing = True
        if self._is_joined and self._error is None:
            with contextlib.suppress(OpError):
                self._all("leave_job", *self._who, self.acknowledged)
        self.servers.renewal = None
        self._watcher.close()
        self._client.close()

    # Calls

    @property
    def _who(self) -> tuple[int, int]:
        return self.worker, self._start

    def _all(self, verb: str, *arguments: Any) -> list[Any]:
        return self._client.call(verb, [arguments] * len(self.servers))

    def _one(self, server: int, verb: str, *arguments: Any, limit: float | None = None) -> Any:
        calls: list[tuple[Any, ...] | None] = [None] * len(self.servers)
        calls[server] = arguments
        return self._client.call(verb, calls, timeout_seconds=limit)[0]

    def _zero(self, verb: str, *arguments: Any, timeout_seconds: float | None = None) -> Any:
        return self._one(0, verb, *arguments, limit=timeout_seconds)

    def _ask_of_park(self, verb: str, *arguments: Any, timeout_seconds: float | None = None) -> Any:
        """Ask server 0 of the park; a worker says who it is and which steps all servers have."""
        if verb == "note_parked":
            arguments = (*self._who, *arguments, self.acknowledged)
        return self._zero(verb, *arguments, timeout_seconds=timeout_seconds)

    def describe(self) -> list[dict[str, Any]]:
        """Return facts about the job from each server."""
        return self._all("describe_job")

    def check_task(self, lines: Sequence[str]) -> None:
        """Refuse servers that were started with another task.

        Raises:
            InvalidArgumentError: The dense parameters of a server are others.
            FailedPreconditionError: A server was started without a task, and the task has dense
                parameters.
        """
        for server, facts in enumerate(self.describe()):
            theirs = facts["dense"]
            if theirs is None and lines:
                raise FailedPreconditionError(
                    f"[JobClient] expected servers that know the task, got server {server} "
                    "without; start it with the task file: monolith ps TASK"
                )
            difference = first_difference({"dense": theirs or []}, {"dense": list(lines)})
            if difference is not None:
                raise InvalidArgumentError(
                    f"[JobClient] expected the task of server {server}, with {difference[0]!r}, "
                    f"got {difference[1]!r} (worker {self.worker}); start all processes with the "
                    "same task and settings"
                )

    # Being a part of the job

    def join(self, clients: Sequence[int], facts: Mapping[str, Sequence[str]]) -> None:
        """Become a part of the job; an earlier start of this worker is given up.

        Args:
            clients: Numbers of the callers with which this worker writes to tables.
            facts: Facts that must be equal in all workers, each a list of lines.

        Raises:
            InvalidArgumentError: Another worker has another task or settings.
        """
        self._clients = [*clients, self._client.number]
        self._facts = json.dumps({name: list(lines) for name, lines in facts.items()})
        self._join_all()
        self.servers.renewal = self
        self.servers.watch()  # others wait for the chief's restores, whatever it does
        self._is_joined = True
        self._thread.start()
        self._has_news.wait(_NEWS_SECONDS)  # steps wait for the end of a hold that lasts

    def _join_all(self) -> None:
        answers = self._all("join_job", *self._who, self._clients, self._facts, "{}")
        answer = json.loads(answers[0])
        if answer["fenced"]:
            self.servers.fence(answer["fenced"])
        self.park.hear(answer["park"])
        with self._lock:
            self.acknowledged, self.num_steps = answer["number"], answer["steps"]
            self._held.samples = answer["samples"]

    def await_ready(self, timeout_seconds: float) -> None:
        """Wait until the chief has restored or initialised all servers.

        Server 0 may not have known the numbers of this worker before.

        Raises:
            DeadlineExceededError: It takes longer.
        """
        self._await(
            lambda: all(facts["is_ready"] for facts in self.describe()),
            timeout_seconds,
            "the chief to restore or initialise the servers",
        )
        self._join_all()

    def await_others(self, timeout_seconds: float) -> bool:
        """Wait until no other worker is a part of the job; return whether that is so."""
        try:
            self._await(lambda: not self.others(), timeout_seconds, "the other workers to end")
        except DeadlineExceededError as error:
            _log.warning("going on without them: %s; workers %s", str(error), self.others())
            return False
        return True

    def others(self) -> list[int]:
        """Return the numbers of the other workers that are a part of the job."""
        alive: list[int] = self._one(0, "describe_job")["alive"]
        return [number for number in alive if number != self.worker]

    def counts(self, timeout_seconds: float | None = None) -> dict[str, int]:
        """Return the `Counts` of the job as server 0 has them; with a limit, ask only once."""
        facts = self._zero("describe_job", timeout_seconds=timeout_seconds)
        return dict(facts["counts"])

    def read_steps(self, timeout_seconds: float | None = None) -> int:
        """Return the number of steps of all workers as server 0 has it; see `counts`."""
        return self.counts(timeout_seconds)["steps"]

    def _await(self, is_over: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        start, word = time.time(), time.monotonic() + _WORD_SECONDS
        end = time.monotonic() + timeout_seconds
        while not is_over():
            self.check()
            now = time.monotonic()
            if self.on_wait is not None:
                self.on_wait()
                end += time.monotonic() - now  # training may have been stopped for long
            if now > end:
                raise DeadlineExceededError(
                    f"[JobClient] expected {what} within {timeout_seconds:g} seconds, got no such "
                    f"thing since {time_text(start)} (worker {self.worker})"
                )
            if now > word:
                word = now + _WORD_SECONDS
                _log.warning("worker %d waits for %s since %s", self.worker, what, time_text(start))
            time.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Raise the error by which this worker is no part of the job any more."""
        if self._error is not None:
            raise type(self._error)(*self._error.args) from self._error

    def set_ready(self, server: int) -> None:
        """Note that a server has its values, so that other workers may begin."""
        self._one(server, "set_ready")

    def end(self) -> None:
        """Let the servers end; this worker does not leave, as they may be gone at once."""
        self._all("end_job")
        self._is_joined = False

    def stop_all(self) -> None:
        """Ask all workers to end after their running step."""
        self._zero("stop_workers")

    # Data

    def offer(self, names: Sequence[str], num_epochs: int | None) -> None:
        """Tell the shares of the job; the shares of a restored job are kept."""
        self._offer = json.dumps(list(names)), -1 if num_epochs is None else num_epochs
        self._zero("offer_shares", *self._offer)

    def take(self, finished: Sequence[str] = ()) -> Taken:
        """Ask for a share.

        Args:
            finished: Shares that had no more batches, so that no step ends them.
        """
        self.check()
        with self._lock:
            self._held.add([(share, None, True, 0) for share in finished])
        text = json.dumps(list(finished))
        taken = Taken(*json.loads(self._zero("take_share", *self._who, self.acknowledged, text)))
        if taken.kind == "share":
            with self._lock:
                self._held.taken[taken.share] = taken.position
                self._lost.discard(taken.share)
        return taken

    def has(self, share: str) -> bool:
        """Whether a share that was taken is not lost to another worker."""
        return share not in self._lost

    # Steps

    @contextlib.contextmanager
    def pushing(
        self,
        gradients: Sequence[NamedTensors],
        options: str,
        progress: Sequence[ProgressFields],
        answers: list[StepAnswer],
        *,
        wants_values: bool,
    ) -> Iterator[None]:
        """Send a step to all servers; the block writes to the tables meanwhile.

        Args:
            gradients: Gradients of the dense parameters of each server.
            options: Options of the optimizer's groups.
            progress: What the step has trained of shares, as `Progress`.
            answers: Gets the answer of each server.
            wants_values: Whether the servers answer with their parameters.
        """
        self.check()
        number, text = self.acknowledged + 1, json.dumps(list(progress))
        with self._gate.shared():
            with self._lock:
                self._flying = list(progress)
            finish = self._client.begin(
                "step_job",
                [
                    (*self._who, number, list(own), options if own else "", text, wants_values)
                    for own in gradients
                ],
                lambda server: self._note_answer(server, number),
            )
            try:
                yield
            finally:
                answers.extend(StepAnswer(*answer) for answer in finish())
            with self._lock:
                self._note_step(number, answers[0])

    def _note_answer(self, server: int, number: int) -> None:
        self._answered[server] = number

    def _note_step(self, number: int, answer: StepAnswer) -> None:
        """Note that all servers have the step. Locked."""
        self.acknowledged = number
        self.num_steps = max(self.num_steps, answer.num_steps)
        self._repeats = max(self._repeats, answer.repeats)
        progress, self._flying = self._flying, []
        self._held.add(progress)

    def read_dense(self, known: Sequence[int]) -> list[tuple[int, NamedTensors]]:
        """Return version and parameters of each server; none where the version is known."""
        return self._client.call("read_dense", [(version,) for version in known])

    def set_start_values(self, values: NamedTensors) -> None:
        """Keep values with which workers begin, on server 0."""
        self._start_values = values
        self._zero("set_start_values", values)

    def start_values(self) -> NamedTensors:
        """Return the values with which workers begin."""
        values: NamedTensors = self._zero("start_values")
        return values

    # Saves

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Let no worker push until the block ends.

        Workers that do not answer in time are given up: all servers refuse them from then on.

        Raises:
            DeadlineExceededError: Workers may have pushed meanwhile: the block took too long, or
                server 0 was lost with the hold.
        """
        begin, seconds = time.monotonic(), self._hold_seconds + _CUT_SECONDS
        self._is_holding, hold = True, 0
        try:
            hold = self._zero("hold_job", self.worker, int(seconds * 1000))
            self._zero("note_held", *self._who, hold, self.acknowledged)
            silent = self._zero("wait_held", hold, int(self._hold_seconds * 1000))
            if silent:
                workers = [worker for worker, _ in silent]
                _log.warning(
                    "workers %s did not hold their pushes within %g seconds and are given up",
                    workers,
                    self._hold_seconds,
                )
                self._all("give_up_workers", workers)
            with self._gate.alone():
                yield
            over, hold = hold, 0
            if not self._zero("release_job", over) or time.monotonic() - begin > seconds:
                raise DeadlineExceededError(
                    f"[JobClient.quiet] expected the cuts of all servers within {seconds:g} "
                    "seconds and without a restart of server 0, after which workers go on, got "
                    "them later; the save is dropped"
                )
        finally:
            self._is_holding = False
            if hold:
                with contextlib.suppress(OpError):  # the hold ends by itself
                    self._zero("release_job", hold)

    def export(self) -> list[Any]:
        """Return the state of the job on each server, for a checkpoint; call it in `quiet`."""
        return [json.loads(text) for text in self._all("export_job")]

    def load(self, states: Sequence[Any]) -> None:
        """Set the state of the job, of a checkpoint with any number of servers."""
        self._loaded = json.dumps({"numbers": {}, "state": states[0]["state"]})
        self._all("import_job", self._loaded, False)

    def set_steps(self, number: int) -> None:
        """Set the number of steps of a job that goes on from a run without a job."""
        self._zero("set_steps", number)
        self.num_steps = number

    def export_dense(self) -> list[DenseState]:
        """Return the dense parameters of each server with the optimizer's state."""
        return [DenseState(*state) for state in self._all("export_dense")]

    def import_dense(self, states: Sequence[DenseState]) -> None:
        """Set the dense parameters of each server with the optimizer's state."""
        self._client.call("import_dense", [tuple(state) for state in states])

    # Flags and texts

    def set_flag(self, name: str, size: int, index: int, value: bool) -> None:
        """See `SharedState`."""
        self._said["set_flag", name, size, index] = value
        self._zero("set_flag", name, size, index, value)

    def flags(self, name: str, size: int) -> list[bool]:
        """See `SharedState`."""
        flags: list[bool] = self._zero("read_flags", name, size)
        return flags

    def set_text(self, name: str, text: str) -> None:
        """See `SharedState`."""
        self._said["set_text", name] = text
        self._zero("set_text", name, text)

    def text(self, name: str) -> str:
        """See `SharedState`."""
        text: str = self._zero("read_text", name)
        return text

    # The thread that watches

    def _watch(self) -> None:
        number, pause = 0, threading.Event()
        while not self._is_closing:
            try:
                news = self._news(number)
            except AbortedError as error:
                if not self._is_closing:
                    self._fail(error)
                return
            except OpError as error:
                _log.debug("worker %d hears nothing of server 0: %s", self.worker, error)
                pause.wait(_POLL_SECONDS)
                continue
            number = news.number
            self.park.hear(news.park)
            if news.is_stopping and self.on_stop is not None:
                self.on_stop()
            if news.hold and not self._is_holding:
                self._obey(news)
            self._has_news.set()

    def _news(self, number: int) -> News:
        (news,) = self._watcher.call("watch_job", [(*self._who, number, self.acknowledged)])
        return News(*news)

    def _fail(self, error: OpError) -> None:
        _log.warning("worker %d is no part of the job any more: %s", self.worker, error)
        self._error = error
        self._has_news.set()
        if self.on_stop is not None:
            self.on_stop()

    def _obey(self, news: News) -> None:
        """Hold pushes until the hold ends, or its time is over."""
        end, pause = time.monotonic() + news.hold_seconds, threading.Event()
        with contextlib.suppress(OpError), self._gate.alone():
            self._has_news.set()
            self._watcher.call("note_held", [(*self._who, news.hold, self.acknowledged)])
            number, hold = news.number, news.hold
            while news.hold == hold and time.monotonic() < end and not self._is_closing:
                try:
                    news = self._news(number)
                except AbortedError as error:
                    self._fail(error)
                    return
                except OpError:  # without news the hold lasts
                    pause.wait(_POLL_SECONDS)
                    continue
                number = news.number
                self.park.hear(news.park)

    # A server that came back empty

    def wait_restored(self, server: int, client: ShardClient) -> bool:
        """Wait for the chief, unless this is the chief; see `Renewal`."""
        if self.is_chief:
            return False

        def is_ready() -> bool:
            (facts,) = client.call("describe", [()])
            return bool(facts["is_ready"])

        self._await(is_ready, _RESTORE_SECONDS, f"the chief to restore server {server}")
        return True

    def renewed(self, server: int, transport: Transport, checkpoint: Checkpoint | None) -> None:
        """Restore the job's part of a server, and join again; see `Renewal`."""
        client = ShardClient("the job", [transport], owner="JobClient")

        def call(verb: str, *arguments: Any) -> Any:
            return client.call(verb, [arguments])[0]

        try:
            if checkpoint is not None:
                self._restore_server(server, checkpoint, call)
            self._join_again(server, call)
        finally:
            client.close()

    def restore_server(self, server: int, checkpoint: Checkpoint) -> None:
        """Restore a server that came back empty while no chief was there; its tables are open."""
        self.servers.restore_server(server, checkpoint)
        self._restore_server(server, checkpoint, functools.partial(self._one, server))
        self._join_all()  # server 0 did not know the numbers of this worker before

    def _restore_server(self, server: int, checkpoint: Checkpoint, call: _Calls) -> None:
        """Give a server its dense parameters and its part of the job."""
        saved = (checkpoint.read_trainer() or {}).get(JOB)
        if saved is not None and len(saved) == len(self.servers):
            call("import_job", json.dumps(saved[server]), True)
        elif server == 0 and self._loaded:
            call("import_job", self._loaded, True)
        if self.restore_dense is not None:
            call("import_dense", *self.restore_dense(checkpoint, server))
        if server == 0 and self._start_values is not None:
            call("set_start_values", self._start_values)
        if server == 0 and self._offer is not None:
            call("offer_shares", *self._offer)
        call("set_ready")

    def _join_again(self, server: int, call: _Calls) -> None:
        """Tell a server that came back who this is, and count the steps that it has lost."""
        with self._lock:
            number = max(self.acknowledged, self._answered.get(server, 0))
            held = copy.deepcopy(self._held)
            if number > self.acknowledged:
                held.add(self._flying)
            facts = {"number": number, "repeats": self._repeats, "park": self.park.number}
            text = json.dumps({**vars(held), **facts})
        answer = json.loads(call("join_job", *self._who, self._clients, self._facts, text))
        if server == 0:
            for (verb, *where), value in list(self._said.items()):
                call(verb, *where, value)
        known = call("job_number", self.worker)
        with self._lock:
            lost = max(0, number - max(known, self._counted.get(server, 0)))
            self._counted[server] = number
            for share in answer.get("lost", []):
                self._lost.add(share)
                self._held.taken.pop(share, None)
        self.servers.note_lost(server, lost)
        _log.warning("worker %d: server %d has lost %d pushes", self.worker, server, lost)
        (call if server == 0 else self._zero)("note_lost", lost)
