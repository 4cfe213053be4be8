"""Functions that read data, as ops of a graph.

torch traces a function without its data: sizes that depend on them are unknown, and nothing can be
compared. Such a function becomes one op, which runs, and refuses what is wrong, with the graph.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch

__all__ = ["UNKNOWN", "fake_size", "graph_check", "graph_op", "unknown_size"]

UNKNOWN = -1  # as an argument of an op: a size that only the data tell

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def graph_op(
    schema: str, fake: Callable[..., Any]
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Make a function one op under torch.compile and torch.export; elsewhere it is as it was.

    Args:
        schema: what torch calls it, without its namespace: "name(Tensor ids) -> Tensor".
        fake: tensors of the shapes and dtypes of the result, for the same arguments.

    Example:
        >>> @graph_op("doc_odd(Tensor x) -> Tensor", lambda x: x.new_empty(unknown_size()))
        ... def odd(x):
        ...     return x[x % 2 == 1]
        >>> odd(torch.arange(4))
        tensor([1, 3])
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        return _in_graphs(schema, function, function, fake)

    return decorate


def graph_check(
    schema: str,
) -> Callable[[Callable[_Arguments, torch.Tensor]], Callable[_Arguments, torch.Tensor]]:
    """`graph_op` for a check: a function of one tensor, which it returns; in a graph, a copy of it.

    Use the result: torch leaves out of a graph what nothing depends on.

    Example:
        >>> @graph_check("doc_nonzero(Tensor x) -> Tensor")
        ... def nonzero(x):
        ...     assert bool((x != 0).all())
        ...     return x
        >>> nonzero(torch.tensor([1, 2]))
        tensor([1, 2])
    """

    def decorate(
        function: Callable[_Arguments, torch.Tensor],
    ) -> Callable[_Arguments, torch.Tensor]:
        def copied(*args: _Arguments.args, **options: _Arguments.kwargs) -> torch.Tensor:
            return function(*args, **options).clone(memory_format=torch.contiguous_format)

        return _in_graphs(schema, function, copied, _fake_check)

    return decorate


def _fake_check(*args: Any) -> torch.Tensor:
    (tensor,) = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return tensor.new_empty(tensor.shape)


def _in_graphs(
    schema: str,
    function: Callable[_Arguments, _Result],
    in_graph: Callable[..., Any],
    fake: Callable[..., Any],
) -> Callable[_Arguments, _Result]:
    """The function; an op of these two while torch traces."""
    name, _, arguments = schema.partition("(")
    op = torch.library.custom_op(
        f"monolith::{name}", in_graph, mutates_args=(), schema=f"({arguments}"
    )
    op.register_fake(fake)
    packet = getattr(torch.ops.monolith, name)

    @functools.wraps(function)
    def call(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        if torch.compiler.is_compiling():
            return cast(_Result, packet(*args, **options))
        return function(*args, **options)

    return call


def unknown_size() -> Any:
    """In a fake: a size that only the data tell."""
    return torch.library.get_ctx().new_dynamic_size()


def fake_size(size: Any) -> Any:
    """In a fake: the size, or for `UNKNOWN` what only the data tell."""
    return unknown_size() if size == UNKNOWN else size
