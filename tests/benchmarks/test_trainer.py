import pytest

from benchmarks.trainer import ByHand, ByTrainer, Small, losses, pipeline_batches, with_dicts

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("given", [list, with_dicts])
def test_both_loops_train_the_same_model(given):
    batches = given(pipeline_batches())
    ours, by_hand = ByTrainer(Small(), batches), ByHand(Small(), batches)
    found = losses(ours.run)
    assert found == losses(by_hand.run)
    assert ours.run(8) < sum(found) / 8
