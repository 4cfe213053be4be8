"""The parts of the program for jobs of several processes, in one process."""

import threading

import pytest

from monolith.cluster.job.shared_state import LocalSharedState
from monolith.errors import DeadlineExceededError
from monolith.native_training import cluster_manager, cpu_training
from monolith.native_training.util.run_state import share
from monolith.train import Trainer
from monolith.train.coordinator import Coordinator
from monolith.train.driver import Run, drive
from tests.native_training import cpu_dist_program as program

FLAGS = ["--test_dir", "t", "--server_type", "worker"]


def runs(number):
    """Runs of workers that share flags."""
    shared = LocalSharedState()
    made = [Run(global_step=0) for _ in range(number)]
    for run in made:
        share(run, shared)
    return made


def test_the_chief_passes_only_when_all_workers_have_begun():
    chief, *workers = runs(3)
    left = [(run, index) for index, run in enumerate(workers, 1)]
    lines = []

    def pause():
        run, index = left.pop(0)
        lines.append(f"worker {index}")
        program.SyncHook(3, index, pause=None).after_create_session(run, Coordinator())

    program.SyncHook(3, 0, pause).after_create_session(chief, Coordinator())
    assert lines == ["worker 1", "worker 2"]


def test_a_late_step_is_late_once():
    hook = program.RaiseErrorHook()
    with pytest.raises(DeadlineExceededError, match="the first step is late"):
        drive(lambda: None, [hook])
    drive(iter([1]).__next__, [hook])
    assert hook.num_calls == 3


def test_the_task_trains_the_two_ids_of_its_batch():
    params = program.FeatureTask.params()
    params.num_steps = 3
    with Trainer(params.instantiate(), None, 2) as trainer:
        assert trainer.fit().num_steps == 3
        assert trainer.features.num_rows() == 2
        assert trainer.features.tables["feature"].dim == 5


def test_flags_have_the_defaults_of_the_reference_system():
    flags = program.parsed(FLAGS)
    assert (flags.test_case, flags.num_extra_ps, flags.num_redundant_ps) == (0, 0, 0)
    assert (flags.uuid, flags.use_native_multi_hash_table) == ("", False)


def test_a_process_has_the_config_of_its_flags():
    flags = program.parsed([*FLAGS, "--index", "1", "--num_extra_ps", "2", "--uuid", "u"])
    config = program.config_of(flags)
    assert (config.server_type, config.index, config.num_extra_ps) == ("worker", 1, 2)
    assert config.model_dir == "t/u/model"
    config.check()


def test_timings_and_the_shutdown_are_set_back():
    saved = cluster_manager._cluster_query_failure_handler, cpu_training._shutdown_ps
    with program.quick_timings(), program.endless_shutdown():
        assert cpu_training._EXTRA_PS_BENCHMARK_SECS == 0.5
        thread = threading.Thread(target=cpu_training._shutdown_ps, args=[None, 2], daemon=True)
        thread.start()
    assert (cluster_manager._cluster_query_failure_handler, cpu_training._shutdown_ps) == saved
    assert cpu_training._EXTRA_PS_BENCHMARK_SECS == 120


def test_hooks_and_the_barrier_are_parameters_of_the_task():
    hook = program.RaiseErrorHook()
    params = program.params_of(program.parsed(FLAGS), hook)
    assert params.train.max_pending_seconds_for_barrier == 2
    assert [type(each) for each in params.training_hooks] == [program.SyncHook, type(hook)]
