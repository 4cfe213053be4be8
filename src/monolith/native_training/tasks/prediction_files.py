"""Write predictions as lines of text."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from monolith.errors import UnavailableError
from monolith.native_training.tasks.task_context import get
from monolith.ops import Ragged


class PredictionFile:
    """Append a line for each sample to `<folder>/<name>-<index of the worker>`.

    A line has the values of some columns, then the predictions; those of a dictionary in the order
    of their names. `prepare` comes before the first line.

    Args:
        folder: Folder of the file.
        fields: Names of the columns, with commas between them, or None.
        delimiter: Text between two values.
        name: First part of the name of the file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = PredictionFile(folder, "uid", ",")
        ...     file.prepare()
        ...     file.write({"uid": torch.tensor([7, 8])}, torch.tensor([0.5, 0.25]))
        ...     print(file.path.name, file.path.read_text().split())
        part-00000 ['7,0.5', '8,0.25']
    """

    def __init__(
        self,
        folder: "str | os.PathLike[str]",
        fields: str | None = None,
        delimiter: str = "\t",
        name: str = "",
    ) -> None:
        self.path = Path(folder) / f"{name or 'part'}-{get().worker_index:05d}"
        self._fields = [field.strip() for field in (fields or "").split(",") if field.strip()]
        self._delimiter = delimiter

    def prepare(self) -> None:
        """Make the folder.

        Raises:
            UnavailableError: No file can be written there.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass
        except OSError as error:
            raise UnavailableError(
                f"[output_path] expected a folder to write to, got {error} "
                f"({str(self.path.parent)!r}); set params.output_path to another"
            ) from error

    def write(
        self,
        columns: Mapping[str, Any],
        predictions: torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
    ) -> None:
        """Append the lines of a batch.

        Raises:
            ValueError: A field is no column of the batch, or columns differ in their samples.
        """
        missing = [field for field in self._fields if field not in columns]
        if missing:
            raise ValueError(
                f"[output_fields] expected columns of the batch ({', '.join(columns)}), got "
                f"{missing[0]!r}"
            )
        heads: Sequence[torch.Tensor]
        if isinstance(predictions, Mapping):
            heads = [predictions[name] for name in sorted(predictions)]
        else:
            heads = [predictions] if isinstance(predictions, torch.Tensor) else predictions
        values = [*(columns[field] for field in self._fields), *heads]
        rows = zip(*(_texts(value) for value in values), strict=True)
        text = "".join(f"{self._delimiter.join(row)}\n" for row in rows)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


def _texts(column: Any) -> list[str]:
    """Return a text of each sample; a last dimension of one element is left out."""
    if isinstance(column, Ragged):
        return [str(ids).replace(",", "") for ids in column.to_lists()]
    values = np.asarray(
        column.detach().float() if column.dtype == torch.bfloat16 else column.detach()
    )
    if values.ndim > 1 and values.shape[-1] == 1:
        values = values.squeeze(-1)
    return [_text(value) for value in values]


def _text(value: Any) -> str:
    if np.ndim(value) == 0:
        return str(value)
    text = np.array2string(value, threshold=value.size + 1, max_line_width=1 << 30)
    return " ".join(text.split())
