"""Which columns a stream needs: those that its reader names, and those that its stages read."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from monolith.data.columns import Columns
from monolith.data.cursor import NO_COLUMNS, Stage, rebuild, sources_of
from monolith.data.epochs import Cache
from monolith.data.flows.merge import Merge

_Names = frozenset[str] | None  # None means all columns


def narrow(stage: Stage, names: Iterable[str]) -> Stage:
    """Return the stage over sources that read only what is needed for the named columns.

    A stage whose function does not declare what it reads needs all columns of its source. A source
    that skips bad samples reads all its columns, because each of them decides which are bad.
    """
    needs: dict[int, _Names] = {}
    _note_needs(stage, frozenset(names), needs)
    (narrowed,) = rebuild([stage], lambda old, copy: _narrowed(old, copy, needs[id(old)]))
    result: Stage = narrowed
    return result


def _note_needs(stage: Any, names: _Names, needs: dict[int, _Names]) -> None:
    """Note which columns of the results of a stage and of its sources are needed."""
    known = needs.get(id(stage), NO_COLUMNS)
    needed = _union(known, names)
    if id(stage) in needs and needed == known:
        return
    needs[id(stage)] = needed
    for source in sources_of(stage):
        _note_needs(source, _union(needed, getattr(stage, "reads", None)), needs)


def _union(first: _Names, second: _Names) -> _Names:
    return None if first is None or second is None else first | second


def _narrowed(old: Any, copy: Any, names: _Names) -> Any:
    """Return a stage over its narrowed sources, with the columns that are needed."""
    if isinstance(copy, Cache) and copy is not old:
        return Cache(copy.source)  # the blocks of the old one have other columns
    if names is None:
        return copy
    if isinstance(copy, Merge):
        return replace(copy, columns=tuple(name for name in copy.columns if name in names))
    columns = getattr(copy, "columns", None)
    if isinstance(columns, Columns) and not copy.bad.skips:
        return replace(copy, columns=_at_least_one(columns, names))
    return copy


def _at_least_one(columns: Columns, names: Collection[str]) -> Columns:
    """Return the named columns; if there are none, the first one, which counts the samples."""
    return columns.only([name for name in columns.names() if name in names] or columns.names()[:1])
