"""Write records of predictions, sampled by user and time, for the online evaluation of a model.

A record is one line of JSON:

    {"model_name": "ctr", "req_time": 1700000000, "uid": 7, "predict": {"ctr_head": 0.5},
     "label": {"ctr_head": 1.0}, "sample_rate": {"ctr_head": 1.0}}

`gid` follows `uid` where the batch has that column, and columns of `extra_fields_keys` are in
`extra_float`, `extra_int` and `extra_str` by name.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from monolith.errors import InvalidArgumentError
from monolith.ops import Ragged

Send = Callable[[str], Any]
"""Receives a record as text."""

_WHERE = "[write_deep_insight]"
_TIME_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)  # of SplitMix64


def is_sampled(uids: torch.Tensor, req_times: torch.Tensor, ratio: float) -> torch.Tensor:
    """Return which samples have a record: bool (batch,).

    The choice is a hash of user and time, so that all workers and all runs choose the same samples,
    and a larger ratio chooses those of a smaller one and more.

    Args:
        uids: int64 (batch,).
        req_times: int64 (batch,).
        ratio: share of the samples, 0 to 1.

    Example:
        >>> uids = torch.arange(1000)
        >>> int(is_sampled(uids, torch.zeros(1000, dtype=torch.int64), 0.25).sum())
        251
    """
    numbers = uids.numpy().astype(np.uint64) ^ req_times.numpy().astype(np.uint64) * _TIME_FACTOR
    numbers += _TIME_FACTOR
    for shift, factor in _MIX:
        numbers = (numbers ^ (numbers >> shift)) * factor
    numbers ^= numbers >> np.uint64(31)
    # 53 bits, which a float64 holds exactly: 1.0 chooses all samples, 0.0 none.
    return torch.from_numpy((numbers >> np.uint64(11)) < np.float64(ratio) * 2.0**53)


def write_deep_insight(
    features: Mapping[str, Any],
    sample_ratio: float,
    model_name: str,
    labels: torch.Tensor | None = None,
    preds: torch.Tensor | None = None,
    target: str | None = None,
    targets: Sequence[str] | None = None,
    labels_list: Sequence[torch.Tensor] | None = None,
    preds_list: Sequence[torch.Tensor] | None = None,
    sample_rates_list: Sequence[torch.Tensor] | None = None,
    extra_fields_keys: Sequence[str] = (),
    enable_deep_insight_metrics: bool = True,
    *,
    send: Send | None = None,
) -> list[str]:
    """Send a record for each sampled sample of a batch, and return the records.

    Args:
        features: columns of the batch, with `uid`, `req_time` in seconds and `sample_rate`, a
            number for each sample; without `req_time` there are no records.
        sample_ratio: share of the samples that have a record.
        model_name: name of the model in the records.
        labels: (batch,), of one target.
        preds: (batch,), of one target.
        target: name of the target; with `labels` and `preds`.
        targets: names of several targets; with `labels_list` and `preds_list`.
        labels_list: (batch,) for each target.
        preds_list: (batch,) for each target.
        sample_rates_list: (batch,) for each target; None takes `sample_rate` for all of them.
        extra_fields_keys: columns that the records have too.
        enable_deep_insight_metrics: whether there are records at all.
        send: receives each record; None only returns them.

    Raises:
        InvalidArgumentError: A column is missing, or has another number of samples.

    Example:
        >>> one = torch.ones(1)
        >>> batch = {"uid": torch.tensor([7]), "req_time": torch.tensor([100]), "sample_rate": one}
        >>> write_deep_insight(batch, 1.0, "ctr", one, one / 2, "click")[0][:50]
        '{"model_name": "ctr", "req_time": 100, "uid": 7, "'
    """
    if not enable_deep_insight_metrics or "req_time" not in features or sample_ratio <= 0:
        return []
    names, label_rows, pred_rows = _heads(
        (target, labels, preds), (targets, labels_list, preds_list)
    )
    size = len(pred_rows[0])
    uids, times = (_column(features, name, size).long() for name in ("uid", "req_time"))
    places = is_sampled(uids, times, sample_ratio).nonzero().flatten()
    if not len(places):
        return []
    if sample_rates_list is None:
        rate_rows = [_column(features, "sample_rate", size)] * len(names)
    else:
        rate_rows = [_row(rates, "sample_rates_list", size) for rates in sample_rates_list]
    heads = {
        "predict": _by_name(names, pred_rows, places, size, "predictions"),
        "label": _by_name(names, label_rows, places, size, "labels"),
        "sample_rate": _by_name(names, rate_rows, places, size, "sample rates"),
    }
    groups = _extra_fields(features, extra_fields_keys, places.tolist(), size)
    ids = _ids(features, uids, places, size)
    records = []
    for at, time in enumerate(times[places].tolist()):
        record: dict[str, Any] = {"model_name": model_name, "req_time": time}
        record.update({name: values[at] for name, values in ids.items()})
        record.update({part: values[at] for part, values in heads.items()})
        record.update({name: values[at] for name, values in groups.items()})
        records.append(json.dumps(record, allow_nan=False))
        if send is not None:
            send(records[-1])
    return records


def _heads(one: tuple[Any, Any, Any], several: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Return names, labels and predictions of all targets."""
    is_one = all(part is not None for part in one)
    is_several = all(part is not None for part in several)
    if is_one == is_several or (is_several and len({len(part) for part in several}) != 1):
        raise InvalidArgumentError(
            f"{_WHERE} expected labels, preds and target, or as many targets, labels_list and "
            f"preds_list, got {_present(('labels', 'preds', 'target'), (one[1], one[2], one[0]))}, "
            f"{_present(('targets', 'labels_list', 'preds_list'), several)}"
        )
    if is_several and not several[0]:
        raise InvalidArgumentError(f"{_WHERE} expected at least one target, got none")
    return ([one[0]], [one[1]], [one[2]]) if is_one else several


def _present(names: Sequence[str], values: Sequence[Any]) -> str:
    words = [
        f"{name} of {len(value)}" if isinstance(value, list | tuple) else name
        for name, value in zip(names, values, strict=True)
        if value is not None
    ]
    return " and ".join(words) or "neither"


def _column(features: Mapping[str, Any], name: str, size: int) -> torch.Tensor:
    if name not in features:
        raise InvalidArgumentError(
            f"{_WHERE} expected column {name!r} in the batch, got {', '.join(features)}; records "
            "need uid, req_time and sample_rate"
        )
    value = features[name]
    if isinstance(value, Ragged):
        if not bool((value.lengths == 1).all()):
            raise InvalidArgumentError(
                f"{_WHERE} expected one id for each sample in column {name!r}, got "
                f"{len(value.values)} in {value.num_rows} samples"
            )
        value = value.values
    return _row(value, name, size)


def _row(value: Any, name: str, size: int) -> torch.Tensor:
    values = torch.as_tensor(value).detach().cpu().reshape(-1)
    if len(values) != size:
        raise InvalidArgumentError(
            f"{_WHERE} expected {size} numbers in {name!r}, one for each sample, got {len(values)}"
        )
    return values


def _by_name(
    names: Sequence[str], rows: Sequence[Any], places: torch.Tensor, size: int, what: str
) -> list[dict[str, float | None]]:
    """Return the values of the targets by name, for each record; NaN and Inf are null."""
    columns = [_row(row, what, size)[places].double().tolist() for row in rows]
    return [
        dict(zip(names, map(_finite, values), strict=True)) for values in zip(*columns, strict=True)
    ]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _ids(
    features: Mapping[str, Any], uids: torch.Tensor, places: torch.Tensor, size: int
) -> dict[str, list[int]]:
    ids = {"uid": uids[places].tolist()}
    if "gid" in features:
        ids["gid"] = _column(features, "gid", size).long()[places].tolist()
    return ids


def _extra_fields(
    features: Mapping[str, Any], names: Sequence[str], places: Sequence[int], size: int
) -> dict[str, list[dict[str, Any]]]:
    """Return the groups of extra columns by kind, for each record."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        kind, values = _extra_column(features, name, size)
        rows = groups.setdefault(kind, [{} for _ in places])
        for row, place in zip(rows, places, strict=True):
            row[name] = values[place]
    return groups


def _extra_column(features: Mapping[str, Any], name: str, size: int) -> tuple[str, list[Any]]:
    value = features.get(name)
    if isinstance(value, list | tuple) and all(isinstance(text, str | bytes) for text in value):
        if len(value) != size:
            raise InvalidArgumentError(
                f"{_WHERE} expected {size} texts in {name!r}, one for each sample, got {len(value)}"
            )
        texts = [
            text.decode(errors="replace") if isinstance(text, bytes) else text for text in value
        ]
        return "extra_str", texts
    column = _column(features, name, size)
    if column.is_floating_point():
        return "extra_float", list(map(_finite, column.double().tolist()))
    return "extra_int", column.long().tolist()
