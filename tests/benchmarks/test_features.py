import torch

from benchmarks.click_model import NUM_FEATURES, Sizes
from benchmarks.features import click_steps, many_steps


def test_features_and_one_table_are_compared_on_equal_rows() -> None:
    steps = click_steps(Sizes(rows=50, batch=8, threads=1))  # checks the outputs of both
    assert [steps[name](0).numel() for name in steps] == [8 * NUM_FEATURES * 16] * 2


def test_a_thousand_features_are_trained() -> None:
    steps = many_steps()
    before = {name: step(0) for name, step in steps.items()}
    after = {name: step(0) for name, step in steps.items()}
    assert torch.equal(after["many"], after["many_dicts"])
    assert not torch.equal(after["many"], before["many"])
