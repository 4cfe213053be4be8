import pytest

from monolith.native_training.tasks import ffm


def test_deep_insight_is_nothing_unless_it_is_enabled():
    metrics = ffm.FFMTask.params().metrics
    assert ffm.deep_insight_actions(metrics) == []
    metrics.set(enable_deep_insight=True, deep_insight_sample_ratio=0.0)
    assert ffm.deep_insight_actions(metrics) == []


def test_deep_insight_is_not_built():
    params = ffm.FFMParams().task().set(**{"metrics.enable_deep_insight": True})
    with pytest.raises(NotImplementedError) as caught:
        _ = params.instantiate().features
    assert str(caught.value) == (
        "[FFMTask] expected metrics.enable_deep_insight=False, got True with a sample ratio of "
        "0.01; deep insight is not built"
    )


def test_only_training_goes_on_without_end():
    task = ffm.FFMParams().task().instantiate()
    assert len(list(task.source("eval"))) == 1
    assert len([*zip(range(3), task.source("train"), strict=False)]) == 3


def test_without_a_batch_size_all_examples_are_one_batch():
    task = ffm.FFMTask.params().instantiate()
    assert len(next(task.source("eval"))) == 64
