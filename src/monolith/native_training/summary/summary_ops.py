"""Give summaries of architecture weights and feature insight to the run.

The run writes them where its sink writes tensors: `run.metadata["summaries"]` is then an object of
`monolith.observe.TensorSummaries`. Otherwise nothing is computed.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from monolith.native_training.summary import utils
from monolith.observe import TensorSummaries, TensorSummary
from monolith.observe.summaries import SUMMARIES
from monolith.train.driver import current_or_default_run


def nas_data(
    weight: torch.Tensor,
    segment_names: Sequence[str] | None = None,
    segment_sizes: Sequence[Any] | None = None,
    group_info: Iterable[Iterable[str]] | None = None,
    raw_tag: str | None = None,
    collections: str | Iterable[str] | None = None,
    description: str | None = None,
    name: str | None = None,
) -> TensorSummary | None:
    """Record weights of an architecture search under `<type>/monolith_nas_weight`.

    Args:
        weight: The weights.
        segment_names: As `utils.prepare_head` says, like the next two.
        segment_sizes: Widths of the segments, or lists of widths to select from.
        group_info: Names of the segments of each group.
        raw_tag: Type of the summary; None is that of `utils.prepare_head`, without segments
            `simple`.
        collections: Names under which `run.metadata` has the collections; None is "summaries".
        description: Text for readers; None is the type.
        name: The tag begins with the name and `_`; None for no name.

    Returns:
        The summary, or None if no collection exists.
    """
    targets = _targets(collections)
    if not targets:
        return None
    head, kind = utils.prepare_head(
        segment_names, segment_sizes, group_info, raw_tag, out_type="bytes"
    )
    kind = kind or utils.SummaryType.simple
    metadata = utils.create_summary_metadata(description or kind, head)
    return _put(targets, _tag(kind, utils.MONOLITH_NAS_DATA, name), weight, metadata)


def feature_insight_data(
    input_tensor: torch.Tensor,
    segment_names: Sequence[str],
    segment_sizes: Sequence[int],
    weight: torch.Tensor | None = None,
    group_info: Iterable[Iterable[str]] | None = None,
    label: torch.Tensor | None = None,
    collections: str | Iterable[str] | None = None,
    description: str | None = None,
    name: str | None = None,
) -> TensorSummary | None:
    """Record what features contribute, under `fi_train/monolith_feature_insight`.

    The type is `fi_direct` without a label.

    Args:
        input_tensor: Concatenated segments; (batch, sum of sizes).
        segment_names: Names of the segments.
        segment_sizes: Widths of the segments.
        weight: Weights of a layer, by which `feature_insight` multiplies the input; None records
            the input itself; (sum of sizes, k).
        group_info: Names of the segments of each group.
        label: Labels of the samples, appended as float32 columns; (batch,) or (batch, labels).
        collections: Names under which `run.metadata` has the collections; None is "summaries".
        description: Text for readers; None is the type.
        name: The tag begins with the name and `_`; None for no name.

    Returns:
        The summary, or None if no collection exists.

    Raises:
        AssertionError: The numbers of names and sizes differ.
        ValueError: The sizes do not add up to the width of the input, or the rows of the weight.
    """
    assert len(segment_names) == len(segment_sizes), (
        f"[feature_insight_data] expected a size for each segment, got {len(segment_names)} names "
        f"and {len(segment_sizes)} sizes"
    )
    targets = _targets(collections)
    if not targets:
        return None
    kind = utils.SummaryType.fi_direct if label is None else utils.SummaryType.fi_train
    sizes, data = list(segment_sizes), input_tensor
    if weight is not None:
        data = feature_insight(input_tensor, weight, sizes, aggregate=label is None)
        sizes = [1 if label is None else weight.shape[1]] * len(sizes)
    label_size = 0
    if label is not None:
        columns = label.float()[:, None] if label.dim() == 1 else label.float()
        data, label_size = torch.cat([data, columns], dim=1), columns.shape[1]
    head, _ = utils.prepare_head(segment_names, sizes, group_info, kind, out_type="json")
    text = json.dumps({**head, "label_size": label_size})
    metadata = utils.create_summary_metadata(description or kind, text)
    return _put(targets, _tag(kind, utils.MONOLITH_FI_DATA, name), data, metadata)


def feature_insight(
    input_tensor: torch.Tensor,
    weight: torch.Tensor,
    segment_sizes: Sequence[int],
    *,
    aggregate: bool = False,
) -> torch.Tensor:
    """Return the product of each segment of the input and its rows of the weight.

    Args:
        input_tensor: Concatenated segments; (batch, sum of sizes).
        weight: Weights of a layer; (sum of sizes, k).
        segment_sizes: Widths of the segments.
        aggregate: Whether to sum the squares of the `k` columns of each segment.

    Returns:
        The products, (batch, segments * k), or with `aggregate` (batch, segments).

    Raises:
        ValueError: The sizes do not add up to the width of the input, or the rows of the weight.

    Example:
        >>> feature_insight(torch.ones(1, 3), torch.tensor([[1.0], [2.0], [3.0]]), [1, 2])
        tensor([[1., 5.]])
    """
    width, sizes = sum(segment_sizes), list(segment_sizes)
    if input_tensor.shape[-1] != width or weight.shape[0] != width:
        raise ValueError(
            f"[feature_insight] expected input of shape (batch, {width}) and weight of shape "
            f"({width}, k) for segments of {sizes}, got {tuple(input_tensor.shape)} and "
            f"{tuple(weight.shape)}"
        )
    parts = zip(torch.split(input_tensor, sizes, dim=1), torch.split(weight, sizes), strict=True)
    products = torch.stack([part @ rows for part, rows in parts], dim=1)  # (batch, segments, k)
    return products.square().sum(dim=2) if aggregate else products.flatten(1)


def _targets(collections: str | Iterable[str] | None) -> list[TensorSummaries]:
    names = [SUMMARIES] if collections is None else collections
    run = current_or_default_run()
    values = (run.metadata.get(name) for name in ([names] if isinstance(names, str) else names))
    return [value for value in values if isinstance(value, TensorSummaries)]


def _tag(kind: str, base: str, name: str | None) -> str:
    return f"{kind}/{base}" if name is None else f"{name}_{kind}/{base}"


def _put(
    targets: Sequence[TensorSummaries], tag: str, tensor: torch.Tensor, metadata: bytes
) -> TensorSummary:
    for target in targets:
        summary = target.put(tag, tensor, metadata)
    return summary
