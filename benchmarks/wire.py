"""Tables on server processes: keys and messages per second, waits, a trainer, a lost server.

One server and one client on the loopback address, requests of 32,768 distinct keys of a table of
dim 16 with Adagrad, `window` of them at once; the same with CURVE is a ratio. The trainer has two
servers on `ipc://` and trains the click model of `servers.py`. All processes share the cores.
"""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

import monolith as ml
from benchmarks.click_model import Sizes
from benchmarks.harness import ROOT, BenchmarkError, Sample, Series, interleave, say, timed
from benchmarks.question import Question
from benchmarks.server_processes import (
    DIM,
    Client,
    Requests,
    ServerCommand,
    open_table,
    prepare,
    pull_for,
    rate_of,
    running,
    timed_with,
)
from benchmarks.servers import Click, batches_of
from benchmarks.stage import Options, run_stage
from monolith.checkpoint import Chain, Contents, WriteOptions
from monolith.cluster.remote_servers import CLIENTS, RemoteServers
from monolith.cluster.zmq.connect import connect_servers
from monolith.cluster.zmq.curve_keys import CurveKeys

_ROWS, _QUICK_ROWS = 2_000_000, 50_000
_KEYS, _FEW_KEYS, _LEAST_KEYS = 32_768, 1_000, 10
_NUM_CLIENTS = 8
_FOLDER = ROOT / "build" / "benchmarks" / "wire"
_MODEL_ROWS = 100_000
_KEEPING_UP = 8.0, 6.0  # M keys/s pulled and pushed together

Starts = dict[int, Any]


class Job:
    """A server with all rows of the table, and its client.

    Args:
        command: The server.
        rows: Rows of the table.
        keys: Keys of the job.
    """

    def __init__(self, command: ServerCommand, rows: int, keys: CurveKeys | None) -> None:
        self.command, self.rows, self.keys = command, rows, keys
        self.parts: list[tuple[float, float]] = []
        self.client = Client(self.requests(_KEYS))
        self.client.fill(rows)
        for _ in range(20):
            self.client.pull()
            self.client.push()

    def requests(self, num_keys: int, seed: int = 0) -> Requests:
        """Return requests to the server."""
        return Requests(self.command.address, self.rows, num_keys, self.keys, seed)

    def rate(self, calls: Sequence[Callable[[], None]], seconds: float) -> list[Sample]:
        """Call functions, each in a loop on a thread of its own; M keys/s of each."""
        samples: list[Sample] = [Sample(0.0)] * len(calls)

        def work(number: int) -> None:
            samples[number] = rate_of(calls[number], [self.command], seconds)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [Sample(s.value * _KEYS / 1e6, s.others_cores) for s in samples]

    def total(self, calls: Sequence[Callable[[], None]], seconds: float) -> Sample:
        """Return the sum of the rates, and note the processor time of a million keys."""
        own, server, start = time.process_time(), self.command.cpu_seconds(), time.perf_counter()
        samples = self.rate(calls, seconds)
        total = Sample(sum(s.value for s in samples), samples[0].others_cores)
        million = total.value * (time.perf_counter() - start)
        used = time.process_time() - own, self.command.cpu_seconds() - server
        self.parts.append((used[0] / million * 1e3, used[1] / million * 1e3))
        return total

    def cpu_notes(self) -> dict[str, float]:
        """Return the median milliseconds of processor time of a million keys, and forget them."""
        client, server = (statistics.median(part) for part in zip(*self.parts, strict=True))
        self.parts.clear()
        return {"client_ms": round(client, 1), "server_ms": round(server, 1)}


@contextlib.contextmanager
def jobs(rows: int) -> Iterator[dict[str, Job]]:
    """Run a server in the clear and one with CURVE."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        keys = CurveKeys.new()
        keys.write(f"{folder}/job.keys")
        (clear,) = stack.enter_context(running())
        (curve,) = stack.enter_context(running(keys=f"{folder}/job.keys"))
        both = {"clear": Job(clear, rows, None), "curve": Job(curve, rows, keys)}
        for job in both.values():
            stack.callback(job.client.close)
        yield both


def measure_bulk(both: Mapping[str, Job], facts: Mapping[str, Any], options: Options) -> float:
    """Measure large pulls and pushes; return the M keys/s pulled with one request at once."""
    rules, pulled = options.rules, 0.0
    seconds = 2 * rules.sample_seconds
    for window in (1, 2):
        for name in ("pull", "push"):
            takes = {
                kind: functools.partial(job.total, [getattr(job.client, name)] * window, seconds)
                for kind, job in both.items()
            }
            sizes = {**facts, "ids": _KEYS, "window": window}
            series = interleave(takes, rules)
            notes = both["clear"].cpu_notes()
            question = Question(f"wire_{name}", "M keys/s", sizes, rules)
            question.answer(series, "clear", "curve", notes=notes)
            if (name, window) == ("pull", 1):
                pulled = statistics.median(series["clear"].values)
    return pulled


def measure_together(both: Mapping[str, Job], facts: Mapping[str, Any], options: Options) -> None:
    """Pull and push at the same time: how often 8 M keys/s pulled and 6 M pushed are reached."""
    rates: dict[str, list[list[float]]] = {kind: [] for kind in both}

    def take(kind: str) -> Sample:
        client = both[kind].client
        calls = [client.pull, client.push]
        samples = both[kind].rate(calls, 2 * options.rules.sample_seconds)
        rates[kind].append([sample.value for sample in samples])
        share = min(s.value / wanted for s, wanted in zip(samples, _KEEPING_UP, strict=True))
        return Sample(share, samples[0].others_cores)

    def notes() -> dict[str, float]:
        return {
            f"{verb}_{kind}": round(statistics.median(rate[i] for rate in rates[kind]), 2)
            for kind in both
            for i, verb in enumerate(("pulled", "pushed"))
        }

    question = Question("wire_both", "x 8 + 6 M keys/s", {**facts, "ids": _KEYS}, options.rules)
    question.measure({kind: functools.partial(take, kind) for kind in both}, notes)


def others_now() -> float:
    """Return the cores that others use while the processes of the benchmark wait."""
    with timed() as window:
        time.sleep(0.5)
    return window.others_cores


def waits(job: Job, client: Client, seconds: float) -> tuple[float, float, float]:
    """Pull a few keys again and again: p99 and median in ms, and the cores of others."""
    times: list[float] = []

    def pull() -> None:
        start = time.perf_counter()
        client.pull()
        times.append((time.perf_counter() - start) * 1e3)

    sample = rate_of(pull, [job.command], seconds)
    return float(np.quantile(times, 0.99)), statistics.median(times), sample.others_cores


def measure_waits(
    job: Job, pulled: float, facts: Mapping[str, Any], options: Options, pool: Any, starts: Starts
) -> None:
    """Measure the p99 of small pulls, idle and while another client pulls at half its rate."""
    seconds = 5 * options.rules.sample_seconds
    every = _KEYS / 1e6 / (pulled / 2)
    with contextlib.closing(Client(job.requests(_FEW_KEYS, 1))) as client:
        for load in (0.0, 0.5):
            series, medians = Series(), []
            waits(job, client, options.rules.sample_seconds)
            for _ in range(options.rules.num_runs):
                other = None
                if load:
                    requests = job.requests(_KEYS, 2)
                    other = pool.submit(pull_for, requests, 2, seconds + 1, every)
                    starts[2].wait(120)
                    time.sleep(0.5)
                p99, median, others = waits(job, client, seconds)
                if other is not None:
                    other.result()
                series.values.append(p99)
                series.others_cores.append(others_now() if load else others)
                medians.append(median)
            name = "wire_wait_loaded" if load else "wire_wait_idle"
            notes = {"p50_ms": round(statistics.median(medians), 3)}
            Question(name, "ms", {**facts, "ids": _FEW_KEYS}, options.rules).answer(
                {"clear": series}, "clear", notes=notes
            )


def measure_messages(
    both: Mapping[str, Job], facts: Mapping[str, Any], options: Options, pool: Any, starts: Starts
) -> None:
    """Measure small pulls of eight processes at once."""
    cpu: dict[str, list[float]] = {kind: [] for kind in both}
    seconds = 5 * options.rules.sample_seconds

    def take(kind: str) -> Sample:
        job = both[kind]
        clients = [
            pool.submit(pull_for, job.requests(_LEAST_KEYS, seed), _NUM_CLIENTS + 1, seconds)
            for seed in range(_NUM_CLIENTS)
        ]
        starts[_NUM_CLIENTS + 1].wait(120)
        before = job.command.cpu_seconds()
        number = sum(client.result() for client in clients)
        cpu[kind].append((job.command.cpu_seconds() - before) / number * 1e6)
        return Sample(number / seconds / 1e3, others_now())

    takes = {kind: functools.partial(take, kind) for kind in both}
    sizes = {**facts, "ids": _LEAST_KEYS, "clients": _NUM_CLIENTS}
    Question("wire_messages", "k messages/s", sizes, options.rules).measure(
        takes, lambda: {"server_us": round(statistics.median(cpu["clear"]), 1)}
    )


class Run:
    """`Trainer.fit` on batches that are ready, with the processor time of its parts.

    Args:
        data: The batches.
        settings: Of the trainer.
        commands: Servers of the tables; none keeps the tables in the trainer.
    """

    def __init__(
        self,
        data: Sequence[ml.data.Batch],
        settings: ml.TrainSettings,
        commands: Sequence[ServerCommand] = (),
    ) -> None:
        self._data, self._commands, self._at = data, commands, 0
        self._servers: RemoteServers | None = None
        if commands:
            self._servers = connect_servers([command.address for command in commands])
        self._trainer = ml.Trainer(Click(), settings, servers=self._servers)
        self.parts: list[tuple[float, float]] = []  # microseconds of a sample: trainer, servers

    def run(self, num_steps: int) -> float:
        """Return the mean loss of some steps."""
        steps = [self._data[(self._at + i) % len(self._data)] for i in range(num_steps)]
        self._at += num_steps
        return self._trainer.fit(steps).figures.loss

    def take(self, num_steps: int, batch: int) -> Sample:
        """Measure thousands of samples per second."""
        own, others = time.process_time(), self._server_seconds()
        with timed_with(self._commands) as window:
            self.run(num_steps)
        seconds = time.process_time() - own, self._server_seconds() - others
        scale = 1e6 / (num_steps * batch)
        self.parts.append((seconds[0] * scale, seconds[1] * scale))
        return Sample(num_steps * batch / window.seconds / 1e3, window.others_cores)

    def _server_seconds(self) -> float:
        return sum(command.cpu_seconds() for command in self._commands)

    def part(self, number: int) -> float:
        """Return the median microseconds of processor time of a sample."""
        return round(statistics.median(parts[number] for parts in self.parts), 2)

    def close(self) -> None:
        """End trainer and connections."""
        self._trainer.close()
        if self._servers is not None:
            self._servers.close()


def measure_model(options: Options) -> None:
    """Compare a trainer on two servers with one that has the tables."""
    sizes = Sizes(_QUICK_ROWS // 25 if options.is_quick else _MODEL_ROWS)
    data = batches_of(sizes)
    sequential = ml.TrainSettings(log_every=0)
    ahead = ml.TrainSettings(log_every=0, prefetch=1, push=1)
    with contextlib.ExitStack() as stack:
        runs = {}
        for name, settings, num_servers in (
            ("servers", sequential, 2), ("servers_ahead", ahead, 2), ("local", sequential, 0),
        ):  # fmt: skip
            commands = stack.enter_context(running(num_servers, is_ipc=True))
            runs[name] = Run(data, settings, commands)
            stack.callback(runs[name].close)
        losses = [run.run(1) for run in runs.values()]
        if len(set(losses)) > 1:
            raise BenchmarkError(f"[wire] expected the same loss of all trainers, got {losses}")
        takes = {}
        for name, run in runs.items():
            run.run(len(data))  # every id has a row
            rate = run.take(4, sizes.batch).value
            num_steps = max(8, round(2 * options.rules.sample_seconds * rate * 1e3 / sizes.batch))
            takes[name] = functools.partial(run.take, num_steps, sizes.batch)
            run.parts.clear()
        series = interleave(takes, options.rules)
        facts: dict[str, Any] = {"rows": sizes.rows, "batch": sizes.batch, "servers": 2}
        for depth, name in enumerate(("servers", "servers_ahead")):
            notes = {"trainer_us": runs[name].part(0), "servers_us": runs[name].part(1)}
            notes["local_us"] = runs["local"].part(0)
            question = Question(
                "wire_model", "k samples/s", {**facts, "depth": depth}, options.rules
            )
            question.answer(series, name, "local", notes=notes)


def recovery_seconds(rows: int) -> float:
    """Kill a server with a checkpoint, start it again, and wait for the next push."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        bind = f"ipc://{folder}/0"
        command = ServerCommand(bind).wait()
        stack.callback(lambda: command.close())
        servers = stack.enter_context(connect_servers([bind]))
        table = open_table(servers)
        client = Client(Requests(bind, rows, _KEYS))
        client.fill(rows)
        client.close()
        contents = Contents(
            tables=[table], trainer={CLIENTS: servers.clients_state()}, step=1, with_expired=True
        )
        chain = Chain(_FOLDER)
        with chain.cut(contents) as snapshot:
            saved = chain.save(snapshot, WriteOptions(num_threads=2))
        servers.recovery = lambda: saved.prefix
        keys = torch.arange(_KEYS)
        table.apply_gradients(keys, torch.ones(_KEYS, DIM))
        start = time.perf_counter()
        command.kill()
        command = ServerCommand(bind)
        table.apply_gradients(keys, torch.ones(_KEYS, DIM))
        seconds = time.perf_counter() - start
        command.wait()
        if not rows <= len(table) <= rows + _KEYS:
            raise BenchmarkError(
                f"[wire] expected {rows:,} rows that came back, got {len(table):,}"
            )
    shutil.rmtree(_FOLDER)
    return seconds


def measure_recovery(rows: int, options: Options) -> None:
    """Measure the time from SIGKILL to the first push that is applied."""
    series = Series()
    for _ in range(1 if options.is_quick else 3):
        series.values.append(recovery_seconds(rows))
        series.others_cores.append(others_now())
    sizes = {"rows": rows, "dim": DIM, "servers": 1}
    Question("wire_recovery", "s", sizes, options.rules).answer({"clear": series}, "clear")


def run(options: Options) -> None:
    """Print the lines of all parts."""
    rows = _QUICK_ROWS if options.is_quick else _ROWS
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.server_processes"])
    facts = {"rows": rows, "dim": DIM, "threads": torch.get_num_threads(), "servers": 1}
    say(f"[wire] a server with {rows:,} rows, in the clear and with CURVE")
    starts = {number: context.Barrier(number) for number in (2, _NUM_CLIENTS + 1)}
    pool = concurrent.futures.ProcessPoolExecutor(_NUM_CLIENTS, context, prepare, (starts,))
    with pool, jobs(rows) as both:
        pulled = measure_bulk(both, facts, options)
        measure_together(both, facts, options)
        measure_waits(both["clear"], pulled, facts, options, pool, starts)
        measure_messages(both, facts, options, pool, starts)
    measure_model(options)
    measure_recovery(rows, options)


if __name__ == "__main__":
    sys.exit(run_stage(__doc__, run))
