"""Define the metrics of heads, and figures of gradients, for a `MonolithBaseModel`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from monolith.observe.learning import Auc, Mean


class HeadMetric:
    """Measure one head among several: AUC of a classification, else mean squared error.

    Args:
        head: Column of the predictions, and number of all.
        label: Column of the labels, and number of all.
        is_classification: Whether predictions are probabilities.

    Example:
        >>> metric = HeadMetric((1, 2), (0, 1), is_classification=False)
        >>> metric.update(torch.tensor([[9.0, 1.0]]), torch.tensor([3.0]))
        >>> metric.value
        4.0
    """

    def __init__(
        self, head: tuple[int, int], label: tuple[int, int], *, is_classification: bool
    ) -> None:
        self._head, self._label, self._is_classification = head, label, is_classification
        self._metric: Auc | Mean = Auc() if is_classification else Mean()

    def update(
        self,
        predictions: torch.Tensor,
        labels: torch.Tensor,
        *,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Add a batch.

        Raises:
            ValueError: A head has several predictions of a sample, or AUC refuses a value.
        """
        prediction = _column(predictions, *self._head, "predictions")
        label = _column(labels, *self._label, "labels")
        if isinstance(self._metric, Auc):
            self._metric.update(prediction, label, weights=weights)
        else:
            self._metric.update((prediction - label).square(), weights=weights)

    @property
    def value(self) -> float | None:
        """Return the figure so far; None without samples."""
        return self._metric.value

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return self._metric.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the sums."""
        self._metric.load_state_dict(state)


class LastFigure:
    """Report a figure that a function returns, whatever the predictions are."""

    def __init__(self, read: Callable[[], float | None]) -> None:
        self._read = read

    def update(
        self,
        predictions: torch.Tensor,
        labels: torch.Tensor,
        *,
        weights: torch.Tensor | None = None,
    ) -> None:
        """Do nothing."""

    @property
    def value(self) -> float | None:
        """Return what the function returns."""
        return self._read()


def _column(values: torch.Tensor, index: int, number: int, what: str) -> torch.Tensor:
    if values.numel() != len(values) * number:
        raise ValueError(
            f"[HeadMetric] expected one number of each head ({number} heads), got {what} of shape "
            f"{tuple(values.shape)}"
        )
    return values.detach().reshape(len(values), number)[:, index].float()
