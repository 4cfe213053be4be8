"""Summaries of architecture weights and feature insight, up to what TensorBoard reads."""

import json

import pytest
import torch

from monolith.native_training.summary.summary_ops import (
    feature_insight,
    feature_insight_data,
    nas_data,
)
from monolith.native_training.summary.utils import create_summary_metadata
from monolith.observe import TensorBoardSink, TensorSummaries
from monolith.observe.summaries import SUMMARIES
from monolith.train import Run
from tests.observe.tensorboard_reader import RunReader

NAMES, SIZES, GROUPS = ["f1", "f2", "f3"], [3, 5, 9], [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]


@pytest.fixture
def run():
    """A run whose sink writes tensors."""
    run = Run()
    run.metadata[SUMMARIES] = TensorSummaries()
    with run.as_current():
        yield run


def numbers(*shape):
    return torch.randn(*shape, generator=torch.manual_seed(0))


def content(summary):
    """The JSON text in the metadata of a summary."""
    start, end = summary.metadata.index(b"{"), summary.metadata.rindex(b"}") + 1
    return json.loads(summary.metadata[start:end])


def by_segment(data, weight):
    """The plain computation: a matrix product for each segment; (batch, k) of each."""
    ends = [3, 8, 17]
    return [data[:, a:b] @ weight[a:b] for a, b in zip([0, 3, 8], ends, strict=True)]


@pytest.fixture
def write_and_read(run, tmp_path):
    """A function that makes ten steps of a summary, and reads them back with TensorBoard."""

    def write(record):
        with TensorBoardSink(tmp_path) as sink:
            for step in range(10):
                record(step)
                for summary in run.metadata[SUMMARIES].take():
                    sink.write_tensor(summary, step)
                sink.flush(step)
        return RunReader(tmp_path, ["monolith"])

    return write


@pytest.mark.req("TS-SUMOP-T1")
def test_nas_data(write_and_read):
    weight = torch.tensor([0.5, 0.8])
    reader = write_and_read(lambda step: nas_data(weight * (step + 1), NAMES, SIZES, GROUPS))
    (tag,) = reader.tensors("monolith")
    series = reader.tensors("monolith")[tag]
    assert (tag, series.description) == ("gating/monolith_nas_weight", "gating")
    assert series.plugin_content == (
        b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], '
        b'"segment_sizes": [3, 5, 9], "group_index": [0, 0, 1]}'
    )
    values = reader.values(tag)
    assert [step for step, _ in values] == list(range(10))
    assert [array.tolist() for _, array in values] == [
        (weight * (step + 1)).tolist() for step in range(10)
    ]


@pytest.mark.req("TS-SUMOP-T2")
def test_feature_insight_data(write_and_read):
    data, weight, label = numbers(3, 17), numbers(17, 2), torch.tensor([1, 0, 1])
    reader = write_and_read(
        lambda step: feature_insight_data(data, NAMES, SIZES, weight, label=label)
    )
    (tag,) = reader.tensors("monolith")
    assert tag == "fi_train/monolith_feature_insight"
    assert reader.tensors("monolith")[tag].plugin_content == (
        b'{"tag_type": "fi_train", "segment_names": ["f1", "f2", "f3"], '
        b'"segment_sizes": [2, 2, 2], "group_index": [0, 1, 2], "label_size": 1}'
    )
    values = reader.values(tag)
    assert (len(values), values[9][0], values[9][1].shape) == (10, 9, (3, 7))
    expected = torch.cat([*by_segment(data, weight), label[:, None].float()], dim=1)
    torch.testing.assert_close(torch.from_numpy(values[9][1].copy()), expected)


@pytest.mark.req("NT-SUMOP-T1")
def test_without_a_label_segments_are_sums_of_squares(run):
    data, weight = numbers(3, 17), numbers(17, 2)
    summary = feature_insight_data(data, NAMES, SIZES, weight)
    expected = torch.stack([part.square().sum(1) for part in by_segment(data, weight)], dim=1)
    assert (summary.tag, summary.tensor.shape) == ("fi_direct/monolith_feature_insight", (3, 3))
    torch.testing.assert_close(summary.tensor, expected)
    assert content(summary) == {
        "tag_type": "fi_direct",
        "segment_names": NAMES,
        "segment_sizes": [1, 1, 1],
        "label_size": 0,
    }


def test_without_a_weight_the_input_is_recorded_with_its_sizes(run):
    data, label = numbers(3, 17), torch.ones(3, 2, dtype=torch.int64)
    summary = feature_insight_data(data, NAMES, SIZES, group_info=GROUPS, label=label)
    assert torch.equal(summary.tensor, torch.cat([data, label.float()], dim=1))
    head = content(summary)
    assert (head["segment_sizes"], head["label_size"]) == (SIZES, 2)
    assert head["group_index"] == [0, 0, 1]


@pytest.mark.req("NT-SUMOP-T2")
@pytest.mark.parametrize("aggregate", [False, True])
def test_gradients_of_feature_insight(aggregate):
    data = numbers(3, 17).double().requires_grad_()
    weight = numbers(17, 2).double().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *inputs: feature_insight(*inputs, SIZES, aggregate=aggregate), (data, weight)
    )


@pytest.mark.parametrize("shapes", [((3, 16), (17, 2)), ((3, 17), (16, 2))])
def test_sizes_that_do_not_add_up_are_an_error(shapes):
    data, weight = (torch.ones(shape) for shape in shapes)
    with pytest.raises(ValueError, match=r"\(batch, 17\) and weight of shape \(17, k\) for segm"):
        feature_insight(data, weight, SIZES)


def test_names_and_sizes_have_to_be_as_many():
    with pytest.raises(AssertionError, match="got 3 names and 2 sizes"):
        feature_insight_data(numbers(3, 17), NAMES, [3, 14])


@pytest.mark.req("NT-SUMOP-T2")
def test_a_name_begins_the_tag(run):
    weight = torch.ones(3)
    assert nas_data(weight, NAMES, SIZES, name="x").tag == "x_gating/monolith_nas_weight"
    summary = feature_insight_data(numbers(3, 17), NAMES, SIZES, name="x")
    assert summary.tag == "x_fi_direct/monolith_feature_insight"


def test_type_and_description_may_be_those_of_the_caller(run):
    summary = nas_data(torch.ones(2), NAMES, SIZES, raw_tag="mixed", description="what it is")
    assert summary.tag == "mixed/monolith_nas_weight"
    assert b"what it is" in summary.metadata
    simple = nas_data(torch.ones(2))
    assert simple.tag == "simple/monolith_nas_weight"
    assert simple.metadata == create_summary_metadata("simple")


def test_a_summary_does_not_hold_the_graph_or_the_weight(run):
    weight = torch.ones(2, requires_grad=True)
    summary = nas_data(weight, NAMES, SIZES)
    insight = feature_insight_data(numbers(3, 17).requires_grad_(), NAMES, SIZES)
    with torch.no_grad():
        weight.zero_()
    assert summary.tensor.tolist() == [1, 1]
    assert (summary.tensor.grad_fn, insight.tensor.grad_fn) == (None, None)


def test_the_last_value_of_a_step_counts(run):
    for value in (1.0, 2.0):
        nas_data(torch.tensor([value]), NAMES, SIZES)
    (summary,) = run.metadata[SUMMARIES].take()
    assert summary.tensor.item() == 2.0


def test_nothing_is_computed_where_nothing_is_written():
    wrong = torch.ones(1, 1)
    with Run().as_current() as run:
        assert nas_data(wrong, NAMES, SIZES) is None
        assert feature_insight_data(wrong, NAMES, SIZES, wrong) is None
        assert run.metadata == {}


def test_summaries_go_to_the_collections_that_are_named(run):
    run.metadata["mine"] = mine = TensorSummaries()
    nas_data(torch.ones(1), collections="mine")
    assert run.metadata[SUMMARIES].take() == ()
    nas_data(torch.ones(1), collections=["mine", SUMMARIES, "other"], name="both")
    assert [summary.tag[:4] for summary in mine.take()] == ["simp", "both"]
    assert len(run.metadata[SUMMARIES].take()) == 1
