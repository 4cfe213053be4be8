"""Measure the servers that a job could train on, and keep the fastest of them.

Each worker measures all servers at the same time as the others; worker 0 selects by the mean.
"""

import hashlib
import json
import logging
import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import torch

from monolith.cluster.job.server_speed import measure_servers
from monolith.cluster.job.shared_state import SharedState
from monolith.errors import DeadlineExceededError, InvalidArgumentError, OutOfRangeError
from monolith.native_training.saver.hook import NoFirstSaveCheckpointSaverHook
from monolith.native_training.saver.tide import TimeSource
from monolith.native_training.tasks.native_task import ModelSpec, NativeTask
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params
from monolith.native_training.util.run_state import servers_of_run, shared_state_of
from monolith.train.driver import Coordinator, Hook, Run, StepContext, StepResults
from monolith.train.task import Mode

_log = logging.getLogger(__name__)

_READY_SHARE = 0.9
_POLL_SECONDS = 0.5
_START_SECONDS = 1.0  # until workers that were not waited for are ready too
_DONE_SECONDS = 10.0
_WAIT_SECONDS = 3600.0
_INPUT = (0.12, 0.23, 0.34, 0.45)
_SYSTEM_TIME = TimeSource()


@dataclass
class BenchmarkConfig:
    """Hold what is measured, and the result.

    Args:
        ps_list: Addresses of the servers in the order of their numbers. The end of the benchmark
            replaces them by the addresses of the selected servers, in the same list.
        num_ps_required: Number of servers to select.
        num_workers: Number of workers that measure.
        index: Number of this worker.
        benchmark_secs: Seconds of the measurement.
        ps_str_overridden: Addresses to select, separated by commas; empty to measure.
        select: Called on worker 0 with the selected addresses, before other workers get them.
    """

    ps_list: list[str]
    num_ps_required: int
    num_workers: int
    index: int
    benchmark_secs: float = 60.0
    ps_str_overridden: str = ""
    select: Callable[[list[str]], None] | None = None

    def check(self) -> None:
        """Refuse fewer servers than are required.

        Raises:
            InvalidArgumentError: There are fewer.
        """
        field = "ps_str_overridden" if self.ps_str_overridden else "ps_list"
        addresses = self.ps_str_overridden.split(",") if self.ps_str_overridden else self.ps_list
        if len(addresses) < self.num_ps_required:
            raise InvalidArgumentError(
                f"[BenchmarkConfig] expected at least num_ps_required={self.num_ps_required} "
                f"addresses in {field}, got {len(addresses)}: {','.join(addresses)}"
            )


def adjusted_by_ip(addresses: Sequence[str], throughputs: Sequence[float]) -> list[float]:
    """Return the throughputs, each with those of the slower servers of its machine added.

    A machine that is chosen is chosen with its fastest server first.

    Example:
        >>> adjusted_by_ip(["a:1", "a:2", "b:1"], [3, 2, 4])
        [5, 2, 4]
    """
    pairs = zip(throughputs, range(len(addresses)), strict=True)
    sums: dict[str, float] = {}
    adjusted = list(throughputs)
    for throughput, number in sorted(pairs):
        host = _host_of(addresses[number])
        adjusted[number] = sums[host] = sums.get(host, 0) + throughput
    return adjusted


def select_servers(
    addresses: Sequence[str], adjusted: Sequence[float], num_required: int
) -> list[str]:
    """Return the addresses of the servers with the highest throughput, the highest first.

    Of servers with equal throughput the one with the higher number comes first.

    Example:
        >>> select_servers(["a:1", "a:2", "b:1"], [5, 2, 4], 2)
        ['a:1', 'b:1']
    """
    pairs = zip(adjusted, range(len(addresses)), strict=True)
    return [addresses[number] for _, number in sorted(pairs, reverse=True)[:num_required]]


def _host_of(address: str) -> str:
    return address.rpartition(":")[0] or address


class _BenchmarkWorkerHook(Hook):
    """The hook that lets all workers measure at the same time, and that selects the servers.

    Args:
        config: What is measured; gets the result.
        throughputs: Returns the throughput of each server after the step, in the order of the list.
        shared: Flags and texts of all workers; None takes those of the run.
        source: The time.

    Raises:
        InvalidArgumentError: The config has fewer servers than it requires.
    """

    def __init__(
        self,
        config: BenchmarkConfig,
        throughputs: Callable[[], Sequence[float]],
        *,
        shared: SharedState | None = None,
        source: TimeSource = _SYSTEM_TIME,
    ) -> None:
        config.check()
        self._config, self._throughputs, self._source = config, throughputs, source
        self._given = self._shared = shared
        # A benchmark of other servers, after some were replaced, has a result of its own.
        digest = hashlib.sha256(",".join(config.ps_list).encode()).hexdigest()
        self._scope = f"ps_benchmark/{digest[:16]}"
        self._start = 0.0
        self._has_measured = False

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Wait until nine workers in ten are ready."""
        self._shared = shared_state_of(run) if self._given is None else self._given
        config = self._config
        self._set("ready")
        num_expected = int(config.num_workers * _READY_SHARE)
        self._wait(lambda: sum(self._flags("ready")) >= num_expected or coordinator.stop_requested)
        self._source.sleep(_START_SECONDS)
        self._start = self._source.monotonic()

    def before_run(self, ctx: StepContext) -> None:
        """End the run if there is a result already.

        Raises:
            OutOfRangeError: There is one.
        """
        if self._config.ps_str_overridden:
            self._write("result", self._config.ps_str_overridden)
        if self._read("result"):
            raise OutOfRangeError("[PsBenchMarkTask] the servers are selected already")

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """End the run after one step."""
        self._has_measured = True
        _log.info("the benchmark took %.3f s", self._source.monotonic() - self._start)
        ctx.request_stop()

    def end(self, run: Run) -> None:
        """Select the servers on worker 0, and let every worker have them.

        Raises:
            DeadlineExceededError: Worker 0 has not selected in time.
        """
        config = self._config
        if self._has_measured:
            self._write(f"throughput_{config.index}", json.dumps(list(self._throughputs())))
        self._set("done")
        self._wait(lambda: all(self._flags("done")), _DONE_SECONDS)
        if config.index == 0 and self._has_measured and not self._read("result"):
            selected = self._select()
            if config.select is not None:
                config.select(selected)
            self._write("result", ",".join(selected))
        self._wait(lambda: bool(self._read("result")))
        result = self._read("result")
        if not result:
            raise DeadlineExceededError(
                f"[PsBenchMarkTask] expected worker 0 to select the servers within "
                f"{_WAIT_SECONDS:g} s, got no word (worker {config.index}); look at its log"
            )
        config.ps_list[:] = result.split(",")

    def _select(self) -> list[str]:
        config = self._config
        texts = [self._read(f"throughput_{index}") for index in range(config.num_workers)]
        of_workers = [json.loads(text) for text in texts if text]
        means = [statistics.fmean(speeds) for speeds in zip(*of_workers, strict=True)]
        _log.info("throughputs of the servers: %s", means)
        adjusted = adjusted_by_ip(config.ps_list, means)
        _log.info("with those of slower servers of the same machine: %s", adjusted)
        return select_servers(config.ps_list, adjusted, config.num_ps_required)

    def _wait(self, cond: Callable[[], bool], timeout: float = _WAIT_SECONDS) -> None:
        """Look every half second, until the condition is true or time runs out."""
        start = self._source.monotonic()
        while not cond() and self._source.monotonic() - start < timeout:
            self._source.sleep(_POLL_SECONDS)

    def _state(self) -> SharedState:
        assert self._shared is not None, "after_create_session() sets it"
        return self._shared

    def _set(self, name: str) -> None:
        config = self._config
        self._state().set_flag(f"{self._scope}/{name}", config.num_workers, config.index, True)

    def _flags(self, name: str) -> list[bool]:
        return self._state().flags(f"{self._scope}/{name}", self._config.num_workers)

    def _read(self, name: str) -> str:
        return self._state().text(f"{self._scope}/{name}")

    def _write(self, name: str, text: str) -> None:
        self._state().set_text(f"{self._scope}/{name}", text)


class _DummyCheckpointSaverHook(NoFirstSaveCheckpointSaverHook):
    """A hook in the place of the one that saves: it saves nothing.

    Args:
        checkpoint_dir: Folder that stays as it is; None takes `$HOME/tmp`.
    """

    def __init__(self, checkpoint_dir: str | None = None) -> None:
        self.checkpoint_dir = checkpoint_dir or os.path.join(os.path.expanduser("~"), "tmp")
        super().__init__(self.checkpoint_dir, save_steps=1)

    def begin(self) -> None:
        """Do nothing."""

    def after_create_session(self, run: Run, coordinator: Coordinator) -> None:
        """Do nothing."""

    def after_run(self, ctx: StepContext, results: StepResults) -> None:
        """Do nothing."""

    def end(self, run: Run) -> None:
        """Do nothing."""

    def trigger_save(
        self,
        run: Run,
        ignore_save_errors: bool = False,
        *,
        timeout_seconds: float = math.inf,
    ) -> None:
        """Do nothing."""

    def _save(self, run: Run, step: int, *, ignore_save_errors: bool = False) -> bool:
        return False


class PsBenchMarkTask(NativeTask):
    """Measures the servers of its run in one step; the parameter `bm_config` has the result.

    Args:
        params: Those of a task, and `bm_config`, a `BenchmarkConfig`.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        if not isinstance(params.bm_config, BenchmarkConfig):
            raise TypeError(
                f"[PsBenchMarkTask] expected params.bm_config as a BenchmarkConfig, got "
                f"{params.bm_config!r}"
            )
        self._throughputs: list[float] = []
        self._hook = _BenchmarkWorkerHook(params.bm_config, lambda: self._throughputs)

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters with their defaults."""
        params = super().params()
        params.define("bm_config", None, "what is measured, a BenchmarkConfig")
        return params

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Return an optimizer of a parameter that no server holds and that nothing changes."""
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)

    def create_input_fn(self, mode: Mode) -> Callable[[], Any]:
        """Return a function of endless equal batches."""
        return lambda: repeat({"input": torch.tensor(_INPUT)})

    def create_model_fn(self) -> Callable[[dict[str, Any], Mode, Any], ModelSpec]:
        """Return a function whose training step measures."""

        def model_fn(features: dict[str, Any], mode: Mode, config: Any) -> ModelSpec:
            predictions = torch.zeros(len(_INPUT))
            if mode == Mode.PREDICT:
                return ModelSpec(mode, predictions)
            hooks = [self._hook, _DummyCheckpointSaverHook()]
            loss = torch.zeros(())
            return ModelSpec(mode, predictions, loss, self._measure, training_hooks=hooks)

        return model_fn

    def _measure(self) -> None:
        servers, config = servers_of_run(), self.p.bm_config
        if len(servers) != len(config.ps_list):
            raise InvalidArgumentError(
                f"[PsBenchMarkTask] expected an address for each of {len(servers)} servers, got "
                f"{len(config.ps_list)} in ps_list: {','.join(config.ps_list)}"
            )
        self._throughputs = measure_servers(servers, config.benchmark_secs)
