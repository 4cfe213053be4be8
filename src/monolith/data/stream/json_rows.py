"""JSON lines of a stream as rows, with types that are learned as the lines come."""

from collections.abc import Mapping

import pyarrow as pa

from monolith.data.columns import Columns, is_untyped
from monolith.data.convert import BadSamples, Origin, to_block
from monolith.data.files.text import JsonLinesFormat
from monolith.errors import DataLossError

BAD_LINE = "expected JSON with the columns of the stream"
"""Rule under which lines are counted that cannot be parsed or converted."""

_BAD = (pa.ArrowInvalid, DataLossError, TypeError)


class JsonRows:
    """Parses lines, each with a JSON object. Not thread-safe.

    A column that a line lacks is missing there. Types may differ from one block to the next, but
    not between the lines of one block.

    Args:
        columns: columns to read.
        types: types of columns of the source, as in `data.jsonl`; others are learned.
    """

    def __init__(self, columns: Columns, types: Mapping[str, pa.DataType | str]) -> None:
        self._format = JsonLinesFormat(types)
        self._names = list(dict.fromkeys(column for _, column in columns.sources()))
        declared = {field.name: field.type for field in self._format.declared_schema()}
        self._types = {name: declared.get(name, pa.null()) for name in self._names}
        self._declared = dict(self._types)
        self._columns = columns

    def _parse(self, lines: bytes, types: Mapping[str, pa.DataType], others: str) -> pa.RecordBatch:
        table = self._format.parse(lines, pa.schema(list(types.items())), False, others=others)
        table = table.select(self._names).combine_chunks()
        batches = table.to_batches()
        return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)

    def blocks(self, lines: bytes, origin: Origin, bad: BadSamples) -> list[pa.RecordBatch]:
        """Return the checked rows of lines; bad lines are an error, or skipped and counted.

        Raises:
            DataLossError: a line is bad, and bad samples are not skipped.
            TypeError: a column has a type that cannot be converted, and the same.
        """
        try:
            block = self._convert(lines, origin, bad)
        except _BAD as error:
            if not bad.skips:
                if isinstance(error, DataLossError | TypeError):
                    raise
                raise DataLossError(
                    f"{origin} in the lines at byte {origin.byte or 0}: {error}; fix the data, or "
                    'skip such lines with on_error="skip"'
                ) from error
            return self._halves(lines, origin, bad)
        return [block] if block.num_rows else []

    def _convert(self, lines: bytes, origin: Origin, bad: BadSamples) -> pa.RecordBatch:
        """Parse lines with the types of earlier ones, which is faster, or else with new types."""
        if not any(is_untyped(kind) for kind in self._types.values()):
            try:
                return self._checked(self._parse(lines, self._types, "ignore"), origin, bad)
            except _BAD:  # another type than before, or a bad line
                self._types = dict(self._declared)
        rows = self._parse(lines, self._types, "infer")
        block = self._checked(rows, origin, bad)
        self._types = {name: rows.schema.field(name).type for name in self._names}
        return block

    def _checked(self, rows: pa.RecordBatch, origin: Origin, bad: BadSamples) -> pa.RecordBatch:
        """Return checked rows; rows that turn out to be of a wrong type count nothing."""
        tried = BadSamples(bad.skips)
        block = to_block(rows, self._columns, origin, tried)
        for rule, count in tried.counts.items():
            bad.counts[rule] = bad.counts.get(rule, 0) + count
        return block

    def _halves(self, lines: bytes, origin: Origin, bad: BadSamples) -> list[pa.RecordBatch]:
        """Try both halves of lines of which one is bad; a single line is counted."""
        single = [line for line in lines.split(b"\n") if line.strip()]
        if len(single) <= 1:
            bad.counts[BAD_LINE] = bad.counts.get(BAD_LINE, 0) + len(single)
            return []
        middle = len(single) // 2
        return [
            block
            for half in (single[:middle], single[middle:])
            for block in self.blocks(b"\n".join(half), origin, bad)
        ]
