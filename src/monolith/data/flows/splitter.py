"""`Splitter`: the flow to which each sample of a block belongs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from monolith.data.hashing import hash_strings
from monolith.data.records.framing import data_source_key
from monolith.data.stages import call
from monolith.errors import DataLossError

_KEY_COLUMN = "data_source_key"
_WHERE = "[Pipeline.split]"
Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Splitter:
    """Tells the flow of each sample, by the ids of a column or by a function.

    Args:
        names: names of the flows.
        column: column of ids; None uses the function.
        keys: id of each flow in the column.
        function: function of a block that returns the number of each sample's flow in `names`; a
            number below 0 means no flow.
        drops_others: whether samples of no flow are left out; otherwise they are an error.
        max_waiting: number of samples that may wait for the reader of a flow.
        description: text for `describe`.
        reads: columns that decide; None if the function may read every column.
    """

    names: tuple[str, ...]
    column: str | None
    keys: tuple[int, ...]
    function: Callable[[pa.RecordBatch], Any] | None
    drops_others: bool
    max_waiting: int
    description: str
    reads: frozenset[str] | None

    @property
    def name(self) -> str:
        """Description of the split, for messages."""
        return f"the split {self.description}"

    def places(self, block: pa.RecordBatch) -> Places:
        """Return the number of the flow of each sample; -1 for none.

        Raises:
            DataLossError: a sample belongs to no flow, and such samples are not left out.
            ValueError: the function returned something else than a number for each sample.
        """
        places = self._by_column(block) if self.function is None else self._by_function(block)
        if not self.drops_others and (places < 0).any():
            row = int((places < 0).argmax())
            what = "a flow" if self.column is None else f"column {self.column!r} as the id"
            value = "none" if self.column is None else block.column(self.column)[row].as_py()
            raise DataLossError(
                f"{_WHERE} expected {what} of one of {list(self.names)}, got {value}; name a flow "
                'for such samples, or leave them out with others="drop"'
            )
        return places

    def _by_column(self, block: pa.RecordBatch) -> Places:
        assert self.column is not None
        array = block.column(self.column)
        places = np.full(block.num_rows, -1, np.int64)
        rows: Any = slice(None)
        if isinstance(array, pa.ListArray):  # a list of one id counts as the id
            rows = array.value_lengths().to_numpy() == 1
            array = array.filter(pa.array(rows)).flatten()
        ids = array.to_numpy()
        keys = np.array(self.keys, np.int64)
        order = np.argsort(keys)
        at = order[np.minimum(np.searchsorted(keys, ids, sorter=order), len(keys) - 1)]
        places[rows] = np.where(keys[at] == ids, at, -1)
        return places

    def _by_function(self, block: pa.RecordBatch) -> Places:
        assert self.function is not None
        answer = call(self, self.function, block)
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            answer = answer.to_numpy(zero_copy_only=False)
        places = np.asarray(answer)
        if places.dtype.kind not in "biu" or places.shape != (block.num_rows,):
            raise ValueError(
                f"{_WHERE} expected {block.num_rows} integers or booleans of the function, got "
                f"shape {places.shape} of {places.dtype}"
            )
        places = places.astype(np.int64)
        if places.max(initial=-1) >= len(self.names):
            raise ValueError(
                f"{_WHERE} expected numbers of flows below {len(self.names)} of the function, got "
                f"{places.max()}"
            )
        places[places < 0] = -1
        return places


def make_splitter(
    by: str | Callable[[pa.RecordBatch], Any],
    flows: Sequence[str] | Mapping[str, int | str],
    others: str,
    max_waiting: int,
    id_columns: Sequence[str],
    description: str,
    reads: frozenset[str] | None,
) -> Splitter:
    """Check the arguments of `Pipeline.split`, and return the splitter.

    Raises:
        ValueError: an argument does not fit.
    """
    names = tuple(flows)
    if isinstance(flows, str) or len(set(names)) != len(names) or not names:
        raise ValueError(f"{_WHERE} expected different names of flows, got {flows!r}")
    if others not in ("raise", "drop"):
        raise ValueError(f'{_WHERE} expected others "raise" or "drop", got {others!r}')
    if max_waiting < 1:
        raise ValueError(f"{_WHERE} expected max_waiting of at least 1, got {max_waiting}")
    is_column = isinstance(by, str)
    if is_column and by not in id_columns:
        raise ValueError(
            f"{_WHERE} expected a column of ids, got {by!r} (ids: {list(id_columns)}); name the "
            "column among the ids of the source, and drop it after the split"
        )
    if not is_column and isinstance(flows, Mapping):
        raise ValueError(f"{_WHERE} expected names of flows with a function, got a mapping")
    keys: tuple[int, ...] = ()
    if isinstance(by, str):
        values = flows.values() if isinstance(flows, Mapping) else flows
        keys = tuple(_key_of(by, value) for value in values)
        if len(set(keys)) != len(keys):
            raise ValueError(f"{_WHERE} expected a different id for each flow, got {keys}")
    return Splitter(
        names,
        by if isinstance(by, str) else None,
        keys,
        None if isinstance(by, str) else by,
        others == "drop",
        max_waiting,
        f"{description} into {list(names)} {keys or ''}, others {others}",
        frozenset({by}) if isinstance(by, str) else reads,
    )


def _key_of(column: str, value: int | str) -> int:
    if isinstance(value, str):
        if column == _KEY_COLUMN:
            return data_source_key(value)
        return int(hash_strings(pa.array([value]))[0])
    return value - (1 << 64) if value >= 1 << 63 else value  # ids are int64
