import json
import re

import pytest
import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training.metric.deep_insight_ops import is_sampled, write_deep_insight
from monolith.ops import Ragged

ONES = torch.ones(2)
BATCH = {
    "uid": torch.tensor([7, -8]),
    "req_time": torch.tensor([100, 200]),
    "sample_rate": torch.tensor([1.0, 0.5]),
}


def write(features=BATCH, ratio=1.0, **options):
    """Return the records of one target as dictionaries."""
    one = {"labels": ONES, "preds": ONES / 4, "target": "ctr"}
    return [json.loads(r) for r in write_deep_insight(features, ratio, "m", **{**one, **options})]


def several(**options):
    lists = {"labels_list": [ONES, 2 * ONES], "preds_list": [ONES / 2, ONES / 4]}
    return {
        "labels": None,
        "preds": None,
        "target": None,
        "targets": ["a", "b"],
        **lists,
        **options,
    }


def test_a_record_of_one_target():
    assert write()[1] == {
        "model_name": "m",
        "req_time": 200,
        "uid": -8,
        "predict": {"ctr": 0.25},
        "label": {"ctr": 1.0},
        "sample_rate": {"ctr": 0.5},
    }


def test_a_record_of_several_targets():
    record = write(**several(sample_rates_list=[ONES / 2, ONES / 8]))[0]
    assert record["predict"] == {"a": 0.5, "b": 0.25}
    assert record["label"] == {"a": 1.0, "b": 2.0}
    assert record["sample_rate"] == {"a": 0.5, "b": 0.125}


def test_several_targets_share_a_sample_rate():
    assert write(**several())[1]["sample_rate"] == {"a": 0.5, "b": 0.5}


def test_extra_columns_are_grouped_by_kind():
    more = {"price": ONES / 2, "age": torch.tensor([3, 4]), "city": ["x", b"y"]}
    record = write({**BATCH, **more}, extra_fields_keys=list(more))[1]
    extra = {name: value for name, value in record.items() if name.startswith("extra_")}
    assert extra == {
        "extra_float": {"price": 0.5},
        "extra_int": {"age": 4},
        "extra_str": {"city": "y"},
    }


def test_bytes_that_are_no_text_are_replaced():
    record = write({**BATCH, "city": ["x", b"y\xff"]}, extra_fields_keys=["city"])[1]
    assert record["extra_str"] == {"city": "y\ufffd"}


def test_ids_are_columns_or_ragged():
    ids = {"uid": Ragged.from_lists([[5], [6]]), "gid": torch.tensor([[1], [2]])}
    assert [(r["uid"], r["gid"]) for r in write({**BATCH, **ids})] == [(5, 1), (6, 2)]


def test_numbers_that_json_has_not_are_null():
    record = write(preds=torch.tensor([float("nan"), float("inf")]))
    assert [r["predict"]["ctr"] for r in record] == [None, None]


def test_records_are_sent_one_by_one():
    sent = []
    records = write_deep_insight(BATCH, 1.0, "m", ONES, ONES, "ctr", send=sent.append)
    assert sent == records
    assert len(sent) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"features": {"uid": ONES}},  # no req_time
        {"ratio": 0.0},
        {"enable_deep_insight_metrics": False},
    ],
)
def test_there_are_no_records(options):
    assert write(**options) == []


def test_the_choice_depends_on_user_and_time():
    users, zeros = torch.arange(10_000), torch.zeros(10_000, dtype=torch.int64)
    of_users, of_times = is_sampled(users, zeros, 0.1), is_sampled(zeros, users, 0.1)
    for chosen in (of_users, of_times):
        assert chosen.sum().item() == pytest.approx(1000, rel=0.1)
    assert (of_users & of_times).sum().item() < 200  # of the same sample by chance: 100


def test_a_larger_ratio_chooses_more_of_the_same():
    users = torch.arange(-500, 500)
    small, large = (is_sampled(users, users, ratio) for ratio in (0.1, 0.5))
    assert not (small & ~large).any()
    assert (is_sampled(users, users, 1.0).all(), is_sampled(users, users, 0.0).any()) == (
        True,
        False,
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"features": {"req_time": ONES}},
            "expected column 'uid' in the batch, got req_time; records need uid, req_time and",
        ),
        (
            {"features": {k: v for k, v in BATCH.items() if k != "sample_rate"}},
            "expected column 'sample_rate' in the batch, got uid, req_time; records need",
        ),
        (
            {"features": {**BATCH, "uid": Ragged.from_lists([[1, 2], []])}},
            "expected one id for each sample in column 'uid', got 2 in 2 samples",
        ),
        ({"labels": torch.ones(3)}, "expected 2 numbers in 'labels', one for each sample, got 3"),
        (
            {"extra_fields_keys": ["x"], "features": {**BATCH, "x": ["a"]}},
            "expected 2 texts in 'x', one for each sample, got 1",
        ),
        (
            {"extra_fields_keys": ["x"], "features": {**BATCH, "x": ["a", "b", "c"]}},
            "expected 2 texts in 'x', one for each sample, got 3",
        ),
        ({"target": None}, "got labels and preds, neither"),
        (
            several(targets=["a"]),
            "got neither, targets of 1 and labels_list of 2 and preds_list of 2",
        ),
        (
            several(targets=[], labels_list=[], preds_list=[]),
            "expected at least one target, got none",
        ),
    ],
)
def test_bad_columns_are_refused(options, text):
    with pytest.raises(InvalidArgumentError, match=re.escape(text)):
        write(**options)
