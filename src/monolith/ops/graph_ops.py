"""Functions that read data, as ops of a graph.

torch traces a function without its data: sizes that depend on them are unknown, and nothing can be
compared. Such a function becomes one op, which runs, and refuses what is wrong, with the graph.
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch

__all__ = ["UNKNOWN", "fake_size", "graph_op", "unknown_size"]

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
    name, _, arguments = schema.partition("(")

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        op = torch.library.custom_op(
            f"monolith::{name}", function, mutates_args=(), schema=f"({arguments}"
        )
        op.register_fake(fake)
        packet = getattr(torch.ops.monolith, name)

        @functools.wraps(function)
        def call(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
            if torch.compiler.is_compiling():
                return cast(_Result, packet(*args, **options))
            return function(*args, **options)

        return call

    return decorate


def unknown_size() -> Any:
    """In a fake: a size that only the data tell."""
    return torch.library.get_ctx().new_dynamic_size()


def fake_size(size: Any) -> Any:
    """In a fake: the size, or for `UNKNOWN` what only the data tell."""
    return unknown_size() if size == UNKNOWN else size
