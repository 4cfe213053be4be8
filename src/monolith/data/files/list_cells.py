"""Lists in cells of CSV: JSON arrays, such as [1,-2], ["a","b"] or []."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from monolith.data.columns import is_list, is_untyped
from monolith.data.convert import Origin
from monolith.data.files.json_depth import check_depth
from monolith.errors import DataLossError

_SHOWN = 40  # number of characters of a bad cell in messages


def are_lists(cells: pa.ChunkedArray) -> bool:
    """Whether all present strings look like lists, and there is at least one string.

    Example:
        >>> are_lists(pa.chunked_array([["[1,2]", None]])), are_lists(pa.chunked_array([["a"]]))
        (True, False)
    """
    strings = cells.drop_null()
    begins, ends = pc.starts_with(strings, "["), pc.ends_with(strings, "]")
    return len(strings) > 0 and bool(pc.all(pc.and_(begins, ends)).as_py())


def to_lists(
    name: str, cells: pa.ChunkedArray, kind: pa.DataType, origin: Origin, *, use_threads: bool
) -> pa.Array:
    """Parse strings as lists; a missing string is a missing list.

    Args:
        name: name of the column, for errors.
        cells: strings to parse.
        kind: type of the lists; for lists of null, the items determine the type.
        origin: position of the first string.
        use_threads: whether Arrow may parse on its own threads.

    Raises:
        DataLossError: a string is no list of that type.

    Example:
        >>> cells, kind = pa.chunked_array([["[1,-2]", "[]", None]]), pa.list_(pa.int64())
        >>> to_lists("x", cells, kind, Origin("f", 0), use_threads=False).to_pylist()
        [[1, -2], [], None]
    """
    if not len(cells):
        return pa.array([], kind)
    try:
        return _parse(cells, kind, use_threads)
    except pa.ArrowInvalid as error:
        row = _first_bad(cells, kind)
        got = repr(str(cells[row].as_py())[:_SHOWN])
        raise DataLossError(
            f"{origin.at(row)} expected {_name_of(kind)} in column {name!r}, got {got}; "
            "fix the data"
        ) from error


def _parse(cells: pa.ChunkedArray, kind: pa.DataType, use_threads: bool) -> pa.Array:
    """Parse each cell as an object with one field, by Arrow's reader of JSON lines."""
    fields = [] if is_untyped(kind) else [("v", pa.list_(kind.value_type))]
    objects = pc.binary_join_element_wise('{"v":', pc.fill_null(cells, "null"), "}\n", "")
    text = "".join(objects.to_pylist()).encode()
    check_depth(text)
    table = pa.json.read_json(
        pa.BufferReader(text),
        pa.json.ReadOptions(use_threads=use_threads, block_size=len(text) + 1),
        pa.json.ParseOptions(explicit_schema=pa.schema(fields)),
    )
    if table.column_names != ["v"] or table.num_rows != len(cells):
        raise pa.ArrowInvalid("expected one value in each cell")
    lists = table.column("v").combine_chunks()
    if not (is_list(lists.type) or pa.types.is_null(lists.type)):
        raise pa.ArrowInvalid(f"expected lists, got {lists.type}")
    return lists if is_untyped(kind) else lists.cast(kind)


def _first_bad(cells: pa.ChunkedArray, kind: pa.DataType) -> int:
    """Return the first cell that cannot be parsed with the cells before it, by bisection."""
    good, bad = 0, len(cells)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            _parse(cells.slice(good, middle - good), kind, False)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good


def _name_of(kind: pa.DataType) -> str:
    of = "" if is_untyped(kind) else f" of {kind.value_type}"
    size = f" with {kind.list_size} items" if pa.types.is_fixed_size_list(kind) else ""
    return f"a list{of}{size} as JSON, such as [] or [1,2],"
