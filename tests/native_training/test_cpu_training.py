import dataclasses

import pytest

from monolith.native_training import cpu_training, tasks
from monolith.native_training.cpu_training import CpuTraining, CpuTrainingConfig
from monolith.native_training.jobs.ps_end import shutdown_ps
from monolith.native_training.slots.layout_factories import CollectingLayoutFactory
from monolith.native_training.tasks import task_context
from monolith.train import Mode
from tests.native_training.tasks.native_tasks import Score, columns, made


def test_the_name_of_the_reference_system_is_ours():
    assert cpu_training.local_train is tasks.local_train


def test_settings_that_tests_replace_have_the_values_of_the_reference_system():
    assert cpu_training._EXTRA_PS_BENCHMARK_SECS == 120
    assert cpu_training._shutdown_ps is shutdown_ps


class Placed(Score):
    """Notes the number of the worker where each of its functions runs."""

    def __init__(self, params):
        super().__init__(params)
        self.places = []

    def create_input_fn(self, mode):
        def input_fn():
            self.places.append((str(mode), task_context.get().worker_index))
            return [columns()]

        return input_fn

    def create_model_fn(self):
        model = super().create_model_fn()

        def model_fn(features, mode, config):
            self.places.append(("model", task_context.get().worker_index))
            return model(features, mode, config)

        return model_fn


def test_functions_of_the_task_run_at_their_place_in_the_job():
    task = made(Placed)
    training = CpuTraining(CpuTrainingConfig(num_ps=2, num_workers=4, index=3), task)
    assert len(list(training.create_input_fn(Mode.EVAL)())) == 1
    _ = training.feature_configs
    assert task.places == [("eval", 3), ("train", 3), ("model", 3)]
    assert task_context.get().worker_index == 0


def test_the_model_function_is_that_of_the_task():
    task = made(Placed)
    training = CpuTraining(CpuTrainingConfig(num_workers=2, index=1), task)
    task.ctx.feature_factory = CollectingLayoutFactory(2, device="cpu")
    spec = training.create_model_fn()(columns(), Mode.TRAIN, None)
    assert spec.loss.item() == 0.0
    assert task.places[-1] == ("model", 1)


def test_the_place_of_the_process_is_that_of_the_config():
    config = CpuTrainingConfig(num_ps=2, num_workers=4, index=3, model_name="clicks")
    context = CpuTraining(config, made()).context
    assert (context.num_ps, context.ps_index) == (2, 0)
    assert (context.num_workers, context.worker_index) == (4, 3)
    assert (context.model_name, context.server_type) == ("clicks", "worker")


def test_features_are_described_by_their_tables_widths_and_combiners():
    configs = CpuTraining(CpuTrainingConfig(), made()).feature_configs
    assert [*configs.tables] == [*configs.unmerged_dims] == [*configs.combiners] == ["a"]
    assert configs.unmerged_dims == {"a": [1]}
    assert configs.tables["a"].table("a").dim == 1


def test_unset_options_are_set_in_the_config_and_copied():
    config = CpuTrainingConfig()
    training = CpuTraining(config, made())
    assert (config.model_name, config.use_native_multi_hash_table) == ("di_name_Score", True)
    assert training.config == config
    config.num_ps = 7
    assert training.config.num_ps == 0
    given = CpuTrainingConfig(model_name="m", use_native_multi_hash_table=False)
    assert CpuTraining(dataclasses.replace(given), made()).config == given


def test_the_description_of_requests_is_that_of_the_task():
    task = made()
    task.create_serving_input_receiver_fn = lambda: "receiver"
    training = CpuTraining(CpuTrainingConfig(), task)
    assert training.create_serving_input_receiver_fn() == "receiver"


def test_only_workers_train():
    with pytest.raises(ValueError, match=r"^server_type in CpuTraining must be `worker`$"):
        CpuTraining(CpuTrainingConfig(server_type="ps"), made())


def test_a_backend_of_serving_is_refused():
    with pytest.raises(NotImplementedError, match="expected sync_backend=None, got 'backend'"):
        CpuTraining(CpuTrainingConfig(), made(), "backend")


def test_what_the_config_asks_for_is_checked():
    with pytest.raises(NotImplementedError, match="expected enable_gpu_training=False, got True"):
        CpuTraining(CpuTrainingConfig(enable_gpu_training=True), made())
