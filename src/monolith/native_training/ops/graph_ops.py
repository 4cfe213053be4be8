"""Cut rows into parts whose lengths a tensor tells."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import torch

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
    """Return, in a fake kernel, a size that only the data tell."""
    return torch.library.get_ctx().new_dynamic_size()


def fake_size(size: Any) -> Any:
    """Return, in a fake kernel, the size, or a new unknown size for `UNKNOWN`."""
    return unknown_size() if size == UNKNOWN else size


def cut_rows(
    rows: torch.Tensor, sizes: torch.Tensor, num_parts: int, what: str
) -> list[torch.Tensor]:
    """The parts one after another; differentiable. Views, but copies in a compiled program.

    Args:
        rows: (n, ...).
        sizes: of the parts, int64 (num_parts,).
        num_parts: their number, which a graph must know.
        what: begins the message, and names the rows: "[split_by_indices] expected {} rows".

    Raises:
        ValueError: the sizes do not sum up to n.

    Example:
        >>> cut_rows(torch.arange(3), torch.tensor([1, 0, 2]), 3, "[cut_rows] expected {} rows")
        [tensor([0]), tensor([], dtype=torch.int64), tensor([1, 2])]
    """
    if torch.compiler.is_compiling():
        return list(torch.ops.monolith.cut_rows(rows, sizes, num_parts, what))
    lengths = sizes.tolist()
    try:
        return list(torch.split(rows, lengths))
    except RuntimeError as error:
        raise ValueError(f"{what.format(sum(lengths))}, got {rows.shape[0]}") from error


@torch.library.custom_op(
    "monolith::cut_rows",
    mutates_args=(),
    schema="(Tensor rows, Tensor sizes, int num_parts, str what) -> Tensor[]",
)
def _cut_op(
    rows: torch.Tensor, sizes: torch.Tensor, num_parts: int, what: str
) -> list[torch.Tensor]:
    return [part.clone() for part in cut_rows(rows.contiguous(), sizes, num_parts, what)]


@_cut_op.register_fake
def _(rows: torch.Tensor, sizes: Any, num_parts: int, what: Any) -> list[torch.Tensor]:
    return [rows.new_empty((unknown_size(), *rows.shape[1:])) for _ in range(num_parts)]


# torch.cat in a graph cannot know that the sizes of the parts sum up to that of the rows.
@graph_op(
    "join_rows(Tensor[] parts, SymInt size) -> Tensor",
    lambda parts, size: parts[0].new_empty((size, *parts[0].shape[1:])),
)
def _join(parts: Sequence[torch.Tensor], size: int) -> torch.Tensor:
    return torch.cat(list(parts)) if len(parts) > 1 else parts[0].clone()


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.size = inputs[0].shape[0]


def _backward(ctx: Any, gradients: list[torch.Tensor]) -> tuple[torch.Tensor, None, None, None]:
    return torch.ops.monolith.join_rows(gradients, ctx.size), None, None, None


_cut_op.register_autograd(_backward, setup_context=_save)
