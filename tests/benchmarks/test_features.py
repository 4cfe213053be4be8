import torch

from benchmarks.click_model import NUM_FEATURES, Sizes
from benchmarks.features import click_steps, many_step


def test_features_and_one_table_are_compared_on_equal_rows() -> None:
    steps = click_steps(Sizes(rows=50, batch=8, threads=1))  # checks the outputs of both
    assert [steps[name](0).numel() for name in steps] == [8 * NUM_FEATURES * 16] * 2


def test_a_thousand_features_are_trained() -> None:
    step = many_step()
    before = step(0)
    assert not torch.equal(step(0), before)
