"""Tensors of a run for TensorBoard: the last one of each tag between two writes."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SUMMARIES = "summaries"
"""Name under which `Run.metadata` has the `TensorSummaries` of a run whose sink writes tensors."""


@dataclass(frozen=True, eq=False)
class TensorSummary:
    """A tensor under a tag, with the metadata that tells TensorBoard's plugins what it is.

    Args:
        tag: Name in TensorBoard.
        tensor: Values, without a graph.
        metadata: Serialized message `SummaryMetadata`, see `monolith.observe.event_files`.
    """

    tag: str
    tensor: "torch.Tensor"
    metadata: bytes


class TensorSummaries:
    """Keeps the last tensor of each tag until `take`. Thread-safe.

    A trainer whose sink writes tensors puts an object of this class into `Run.metadata`, and hands
    what it takes at the end of an interval to `write_tensor` of the sink:

        run.metadata[SUMMARIES] = summaries = TensorSummaries()
        ...
        for summary in summaries.take():
            sink.write_tensor(summary, step)

    Code of a model that records tensors looks for the object, and computes nothing without it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_tag: dict[str, TensorSummary] = {}

    def put(self, tag: str, tensor: "torch.Tensor", metadata: bytes) -> TensorSummary:
        """Keep a copy of a tensor, in place of the last one of its tag; the copy has no graph."""
        summary = TensorSummary(tag, tensor.detach().clone(), metadata)
        with self._lock:
            self._by_tag[tag] = summary
        return summary

    def take(self) -> tuple[TensorSummary, ...]:
        """Return the tensors since the last call, in the order of their tags' first appearance."""
        with self._lock:
            by_tag, self._by_tag = self._by_tag, {}
        return tuple(by_tag.values())
