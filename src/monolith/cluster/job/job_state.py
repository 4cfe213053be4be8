"""`JobState`: what server 0 knows of a job: its workers, the data they share out, and holds."""

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from monolith.cluster.job.job_values import (
    Counts,
    News,
    Progress,
    SavedJob,
    Taken,
    check_same_facts,
    name_of,
    share_of,
)
from monolith.cluster.job.job_workers import AppliedShare, JobWorker, WorkerFacts
from monolith.cluster.job.park_count import ParkCount
from monolith.cluster.job.shared_state import LocalSharedState
from monolith.data.str_queue import StrQueue
from monolith.errors import AbortedError, FailedPreconditionError, InvalidArgumentError

WATCH_SECONDS = 3.0
"""Seconds after which a watch is answered without news."""

REJOIN_SECONDS = 15.0
"""Seconds for which shares wait after server 0 came back, until all workers say what they have."""

_MAX_SHARES = 1_000_000


_Silent = list[tuple[int, list[int]]]
"""Workers, each with its callers."""


class JobState:
    """The state of a job that all its workers share. Any thread may call at any time.

    A share is some of the data, named by a text that all workers understand. Each is handed out to
    one worker at a time. What a worker has trained of it comes with the worker's steps; a step
    counts as done when the worker says that all servers have it. The shares of a worker that is
    gone are handed out again, from the last position that counts.

    Args:
        num_workers: Number of workers.
        clock: Seconds; only differences count.

    Attributes:
        shared: Flags and texts.
        park: Counts stops and resumes of all workers.
    """

    def __init__(self, num_workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_workers, self._clock = num_workers, clock
        self.shared = LocalSharedState()
        self._lock = threading.RLock()
        self.park = ParkCount(self._lock, lambda number: self._publish(park=number))
        self._workers: dict[int, JobWorker] = {}
        self._facts: dict[str, Any] | None = None
        self._first_step = self._first_samples = 0
        self._repeats = self._lost_pushes = self._num_dropped = 0
        # Data
        self._names: list[str] | None = None  # of the shares of an epoch
        self._epoch, self._num_epochs = -1, 0
        self._queue = self._new_queue()
        self._returned: deque[tuple[str, Any]] = deque()
        self._gone: set[str] = set()  # shares that workers named when server 0 came back
        self._expected: set[int] = set()
        self._expected_until = 0.0
        # Holds
        # Drawn, so that who watches notes that a server came back.
        self._news = News(secrets.randbits(40), 0, 0.0, False)
        self._num_holds = 0
        self._hold_until = 0.0
        self._holder = 0
        self._held: set[int] = set()
        self._frozen: dict[str, Any] | None = None  # state when all held
        self._waiters: list[tuple[float, Future[_Silent]]] = []
        self._watches: list[tuple[float, Future[News]]] = []

    def _new_queue(self) -> StrQueue:
        return StrQueue(auto_enqueue_fn=self._next_epoch, capacity=_MAX_SHARES, name="shares")

    # Workers

    def join(
        self,
        worker: int,
        start: int,
        clients: Sequence[int],
        facts: Mapping[str, Any],
        held: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Let a worker in, or in again; an earlier start of it is given up.

        Args:
            worker: Number of the worker.
            start: Random number of this start of the worker.
            clients: Numbers of the worker's callers, by which servers refuse it if it is given up.
            facts: Facts that must be equal in all workers, each a list of lines.
            held: What the worker has: "taken" (share -> position), "finished" (shares), "number"
                of its last step, and "park", the number of the park that it has heard.

        Returns:
            "fenced": callers of the earlier start; "lost": shares that another worker has now;
            "number": number of the worker's last step; "samples": its samples; "steps": steps of
            the job; "park": number of the park.

        Raises:
            InvalidArgumentError: The worker has another task than the workers before it, or its
                number is not one of the job.
        """
        if not 0 <= worker < self.num_workers:
            raise InvalidArgumentError(
                f"[JobState.join] expected a worker in [0, {self.num_workers}), got {worker}; "
                "give all processes the same number of workers"
            )
        with self._lock:
            self._check_facts(worker, facts)
            old = self._workers.get(worker)
            fenced: list[int] = []
            if old is not None and old.start != start:
                fenced = old.clients
                self._drop(worker, old)
            new = JobWorker(start, list(clients))
            new.number, new.samples = held.get("number", 0), held.get("samples", 0)
            if old is not None:
                new.number = max(new.number, old.number)
                new.samples = max(new.samples, old.samples)
            self._repeats = max(self._repeats, held.get("repeats", 0))
            if old is not None and old.start == start:
                new.taken, new.unacknowledged = old.taken, old.unacknowledged
            lost = self._take_back(new, held)
            self._workers[worker] = new
            self._expected.discard(worker)
            new.heard = self._clock()
            self.park.take(held.get("park", 0))
            facts = {"number": new.number, "samples": new.samples, "steps": self.counts().steps}
            return {"fenced": fenced, "lost": lost, "park": self.park.number, **facts}

    def counts(self) -> Counts:
        """Return the numbers of the job."""
        with self._lock:
            workers = self._workers.values()
            return Counts(
                self._first_step + sum(worker.number for worker in workers),
                self._first_samples + sum(worker.samples for worker in workers),
                self._repeats,
                self._lost_pushes,
                self._num_dropped,
            )

    def _check_facts(self, worker: int, facts: Mapping[str, Any]) -> None:
        if self._facts is None:
            self._facts = dict(facts)
        check_same_facts(self._facts, facts, worker)

    def _take_back(self, worker: JobWorker, held: Mapping[str, Any]) -> list[str]:
        """Note the shares that a worker has; return those that another one has by now. Locked."""
        others = {share for other in self._workers.values() for share in other.taken}
        taken = {n: p for n, p in held.get("taken", {}).items() if n not in worker.taken}
        lost = [share for share in taken if share in others]
        worker.taken |= {n: position for n, position in taken.items() if n not in others}
        self._remove({*held.get("finished", ()), *taken}.difference(others))
        return lost

    def _remove(self, shares: set[str]) -> None:
        """Hand some shares out no more, now and when their epoch begins. Locked."""
        returned = {share for share, _ in self._returned}
        self._returned = deque(item for item in self._returned if item[0] not in shares)
        queue = self._queue.state_dict()
        waiting = set(queue["elements"][queue["offset"] :])
        self._gone |= {
            share
            for share in shares.difference(returned)
            if share in waiting or name_of(share)[0] > self._epoch
        }

    def _worker(self, worker: int, start: int) -> JobWorker:
        found = self._workers.get(worker)
        if found is None or found.start != start or not found.is_alive:
            raise AbortedError(
                f"[JobState] expected a worker of the job, got worker {worker}, which was given up "
                "because it was silent, or was replaced by a new start; start it again"
            )
        found.heard = self._clock()
        return found

    def leave(self, worker: int, start: int, acknowledged: int) -> None:
        """Let a worker go; what it has not trained is handed out again."""
        with self._lock:
            found = self._workers.get(worker)
            if found is None or found.start != start or not found.is_alive:
                return
            self._acknowledge(found, acknowledged)
            self._end_worker(worker, found)

    def lose(self, client: int) -> list[int]:
        """Give up the worker of a caller that is gone; return the worker's callers."""
        with self._lock:
            for number, worker in self._workers.items():
                if client in worker.clients and worker.is_alive:
                    self._drop(number, worker)
                    return worker.clients
        return []

    def _drop(self, number: int, worker: JobWorker) -> None:
        """Give up a worker that has not left. Locked."""
        if worker.is_alive:
            self._num_dropped += 1
            self._end_worker(number, worker)

    def _end_worker(self, number: int, worker: JobWorker) -> None:
        """Hand out what a worker has: steps that not all servers may have are made again. Locked.

        A hold of the worker ends: it says so to the holder, whose cut may have missed pushes.
        """
        for applied in reversed(worker.unacknowledged):
            self._repeats += applied.num_samples
            worker.taken[applied.share] = applied.before
        worker.unacknowledged.clear()
        self._returned.extend(worker.taken.items())
        worker.taken.clear()
        worker.is_alive = False
        self._held.discard(number)
        if self._news.hold and self._holder == number:
            self._end_hold()
        self._note_held()

    def alive_workers(self) -> list[int]:
        """Return the numbers of the workers that have joined and not left."""
        with self._lock:
            return sorted(n for n, worker in self._workers.items() if worker.is_alive)

    # Data

    def offer(self, names: Sequence[str], num_epochs: int | None) -> None:
        """Set the shares of an epoch, and the number of epochs; None never ends.

        After a restore the shares of the save are kept: those of a run before, to its end.

        Raises:
            InvalidArgumentError: There are too many shares.
        """
        if len(names) > _MAX_SHARES:
            raise InvalidArgumentError(
                f"[JobState.offer] expected at most {_MAX_SHARES} shares, got {len(names)}; put "
                "the data into fewer files"
            )
        with self._lock:
            if self._names is not None:
                return
            self._names, self._num_epochs = list(names), -1 if num_epochs is None else num_epochs

    @property
    def is_offered(self) -> bool:
        """Whether the shares are known."""
        return self._names is not None

    def _next_epoch(self) -> tuple[list[str], bool]:
        names = self._names
        is_over = 0 <= self._num_epochs <= self._epoch + 1
        if names is None or not names or is_over:
            return [], True
        self._epoch += 1
        return [share_of(self._epoch, name) for name in names], False

    def take(
        self, worker: int, start: int, acknowledged: int, finished: Sequence[str] = ()
    ) -> Taken:
        """Return a share for a worker.

        Args:
            worker: Number of the worker.
            start: Start of the worker.
            acknowledged: Number of the worker's last step that all servers have.
            finished: Shares of the worker that had no more batches, so that no step ends them.

        Raises:
            AbortedError: The worker was given up.
        """
        with self._lock:
            found = self._worker(worker, start)
            self._acknowledge(found, acknowledged)
            for share in finished:
                found.taken.pop(share, None)
            if self._news.is_stopping:
                return Taken("end")
            if self._names is None or self._is_expecting():
                return Taken("wait")
            share, position = self._next_share()
            if share:
                found.taken[share] = position
                return Taken("share", share, position)
            is_busy = any(each.taken for each in self._workers.values())
            return Taken("wait" if is_busy else "end")

    def _is_expecting(self) -> bool:
        if self._expected and self._clock() > self._expected_until:
            self._expected.clear()
        return bool(self._expected)

    def _next_share(self) -> tuple[str, Any]:
        if self._returned:
            return self._returned.popleft()
        while True:
            share, is_over = self._queue.dequeue()
            if is_over:
                return "", None
            if share not in self._gone:
                return share, None
            self._gone.discard(share)

    def note_step(
        self, worker: int, start: int, number: int, progress: Sequence[Progress]
    ) -> tuple[int, int]:
        """Note that server 0 has a worker's step; return steps and repeats of the job.

        The steps of the worker before this one are at all servers.

        Raises:
            AbortedError: The worker was given up.
        """
        with self._lock:
            found = self._worker(worker, start)
            self._acknowledge(found, number - 1)
            for share, position, is_last, num_samples in progress:
                found.samples += num_samples
                if share not in found.taken:  # another worker trains it too
                    self._repeats += num_samples
                    continue
                before = found.taken[share]
                found.unacknowledged.append(
                    AppliedShare(number, share, before, is_last, num_samples)
                )
                found.taken[share] = position
            found.number = number
            found.note_rate(self._clock())
            return self.counts().steps, self._repeats

    def check_worker(self, worker: int, start: int) -> None:
        """Refuse a worker that was given up.

        Raises:
            AbortedError: The worker was given up.
        """
        with self._lock:
            self._worker(worker, start)

    def _acknowledge(self, worker: JobWorker, number: int) -> None:
        for applied in worker.unacknowledged:
            if applied.number <= number and applied.is_last:
                worker.taken.pop(applied.share, None)
        worker.unacknowledged = [a for a in worker.unacknowledged if a.number > number]

    def note_lost(self, num_pushes: int) -> None:
        """Count pushes that a server had done and lost."""
        with self._lock:
            self._lost_pushes += num_pushes

    # Holds

    def watch(self, worker: int, start: int, number: int, acknowledged: int) -> "Future[News]":
        """Return the news after those of a number, when there are some.

        Raises:
            AbortedError: The worker was given up.
        """
        future: Future[News] = Future()
        with self._lock:
            found = self._worker(worker, start)
            self._acknowledge(found, acknowledged)
            if self._news.number != number:
                future.set_result(self._news)
            else:
                self._watches.append((self._clock() + WATCH_SECONDS, future))
        return future

    def _publish(self, **changes: Any) -> None:
        """Change the news, and tell them to all who watch. Locked."""
        self._news = self._news._replace(number=self._news.number + 1, **changes)
        watches, self._watches = self._watches, []
        for _, future in watches:
            future.set_result(self._news)

    def hold(self, holder: int, seconds: float) -> int:
        """Ask all workers but one to hold their next pushes; return the number of the hold.

        A hold ends by `release`, or after its seconds.

        Raises:
            FailedPreconditionError: Another hold lasts.
        """
        with self._lock:
            self._end_late_hold()
            if self._news.hold:
                raise FailedPreconditionError(
                    f"[JobState.hold] expected no hold that lasts, got number {self._news.hold}; "
                    "two processes save at once: try again"
                )
            self._num_holds += 1
            self._holder, self._held, self._frozen = holder, set(), None
            self._hold_until = self._clock() + seconds
            self._publish(hold=self._num_holds, hold_seconds=seconds)
            return self._num_holds

    def note_held(self, worker: int, start: int, hold: int, acknowledged: int) -> None:
        """Note that a worker holds its pushes, and that all servers have those before.

        Raises:
            AbortedError: The worker was given up.
        """
        with self._lock:
            self._acknowledge(self._worker(worker, start), acknowledged)
            if hold == self._news.hold:
                self._held.add(worker)
                self._note_held()

    def await_held(self, hold: int, seconds: float) -> "Future[_Silent]":
        """Return the silent workers with their callers, when all others hold or time is over.

        Raises:
            FailedPreconditionError: The hold has ended.
        """
        future: Future[_Silent] = Future()
        with self._lock:
            if hold != self._news.hold:
                raise FailedPreconditionError(
                    f"[JobState.await_held] expected hold {self._news.hold}, got {hold}, which has "
                    "ended"
                )
            self._waiters.append((self._clock() + seconds, future))
            self._note_held()
        return future

    def _silent(self) -> _Silent:
        return [
            (number, worker.clients)
            for number, worker in sorted(self._workers.items())
            if worker.is_alive and number != self._holder and number not in self._held
        ]

    def _note_held(self, *, is_over: bool = False) -> None:
        """Answer who waits for a hold, if all hold or the time is over. Locked."""
        silent, now = self._silent(), self._clock()
        waiters, self._waiters = self._waiters, []
        for until, future in waiters:
            if not silent or is_over or now >= until:
                self._frozen = self._state()
                future.set_result(silent)
            else:
                self._waiters.append((until, future))

    def give_up(self, workers: Sequence[int]) -> None:
        """Give up workers that are silent."""
        with self._lock:
            for number in workers:
                if number in self._workers:
                    self._drop(number, self._workers[number])
            if self._frozen is not None:
                self._frozen = self._state()  # without their last steps

    def release(self, hold: int) -> bool:
        """End a hold; return whether it has lasted until now."""
        with self._lock:
            self._end_late_hold()
            has_lasted = hold == self._news.hold
            if has_lasted:
                self._end_hold()
            return has_lasted

    def _end_hold(self) -> None:
        """Let workers push again. Locked."""
        self._publish(hold=0)
        self._note_held(is_over=True)
        self._frozen = None

    def _end_late_hold(self) -> None:
        if self._news.hold and self._clock() >= self._hold_until:
            self._end_hold()

    # Parks

    def note_parked(self, worker: int, start: int, park: int, acknowledged: int) -> None:
        """Note that a worker stands, and that all servers have its steps."""
        with self._lock:
            found = self._worker(worker, start)
            self._acknowledge(found, acknowledged)
            found.parked = park

    def worker_facts(self) -> list[WorkerFacts]:
        """Return what is known of each worker."""
        with self._lock:
            unknown = JobWorker(0, [], is_alive=False)
            workers = [self._workers.get(number, unknown) for number in range(self.num_workers)]
            now, park = self._clock(), self.park.number
            return [worker.facts(number, now, park) for number, worker in enumerate(workers)]

    def stop(self) -> None:
        """Ask all workers to end after their running step."""
        with self._lock:
            if not self._news.is_stopping:
                self._publish(is_stopping=True)

    def tick(self) -> None:
        """Answer who has waited long enough; called several times a second."""
        with self._lock:
            now = self._clock()
            over = [future for until, future in self._watches if now >= until]
            self._watches = [watch for watch in self._watches if now < watch[0]]
            for future in over:
                future.set_result(self._news)
            self._note_held()
            self._end_late_hold()

    def end_waits(self) -> None:
        """Answer all who wait: the server ends. Who waits for a hold gets an error."""
        with self._lock:
            self._publish()
            waiters, self._waiters = self._waiters, []
        for _, future in waiters:  # whoever has not held yet is not silent
            future.set_exception(
                FailedPreconditionError(
                    "[JobState.await_held] expected a server that waits for all workers to hold, "
                    "got one that ends; hold again at its next start"
                )
            )

    # Saves

    def export(self) -> dict[str, Any]:
        """Return the state as JSON accepts it. Shares that are taken count as given back.

        In a hold the state is that of the moment when all held: cuts of other servers may lack the
        step of a worker that has joined since.
        """
        with self._lock:
            return self._state() if self._frozen is None else self._frozen

    def _state(self) -> dict[str, Any]:
        """Return the state as JSON accepts it. Locked."""
        workers = self._workers.items()
        taken = [item for _, worker in workers for item in worker.taken.items()]
        saved = SavedJob(
            self._names,
            self._num_epochs,
            self._epoch,
            self._queue.state_dict(),
            [*taken, *self._returned],
            sorted(self._gone),
            self._first_step,
            self._first_samples,
            self._repeats,
            self._lost_pushes,
            self._num_dropped,
            [number for number, worker in workers if worker.is_alive],
            [(n, worker.number, worker.samples) for n, worker in workers],
        )
        return saved._asdict()

    def load(self, state: Mapping[str, Any], *, with_workers: bool) -> None:
        """Set the state of a save.

        Args:
            state: Of `export`.
            with_workers: Whether the workers are still there and will join again; shares wait for
                all but those that had left before the save.

        Raises:
            InvalidArgumentError: The state is none of `export`; nothing has changed.
        """
        saved, queue = SavedJob.of(state), self._new_queue()
        queue.load_state_dict(saved.queue)
        with self._lock:
            self._names, self._num_epochs = saved.names, saved.num_epochs
            self._epoch, self._gone = saved.epoch, set(saved.gone)
            self._queue, self._returned = queue, deque(saved.returned)
            self._first_step, self._first_samples = saved.first_step, saved.first_samples
            self._repeats, self._num_dropped = saved.repeats, saved.num_dropped
            self._lost_pushes += saved.lost_pushes
            if with_workers:
                for worker, number, num_samples in saved.numbers:
                    known = self._workers.setdefault(worker, JobWorker(0, [], is_alive=False))
                    known.number = max(known.number, number)
                    known.samples = max(known.samples, num_samples)
                left = {worker for worker, _, _ in saved.numbers}.difference(saved.alive)
                self._expected = set(range(self.num_workers)).difference(left, self.alive_workers())
                self._expected_until = self._clock() + REJOIN_SECONDS
            else:  # this start of the job counts its own steps from 0
                self._first_step += sum(number for _, number, _ in saved.numbers)
                self._first_samples += sum(samples for _, _, samples in saved.numbers)

    def set_steps(self, number: int) -> None:
        """Set the number of steps, for a job that goes on from a checkpoint of another mode."""
        with self._lock:
            self._first_step += number - self.counts().steps
