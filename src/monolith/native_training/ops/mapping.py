"""Put the rows of ids where the ids were asked for, and sum their gradients back per row."""

from collections.abc import Sequence

import torch

from monolith.errors import InvalidArgumentError
from monolith.native_training.ops.graph_ops import graph_op
from monolith.native_training.ops.id_groups import first_seen
from monolith.native_training.ops.tensor_checks import (
    check_range,
    check_tensor,
    host_int64,
    host_range,
    host_zeros,
)
from monolith.ops.ragged import Ragged


def map_id_to_embedding(
    ids: Sequence[torch.Tensor],
    embeddings: Sequence[torch.Tensor],
    input_ids: torch.Tensor,
) -> torch.Tensor:
    """The row of every id of `input_ids`; differentiable in the rows.

    Args:
        ids: per shard, int64 (n,); of an id that occurs twice the first row counts.
        embeddings: per shard the rows of its ids, (n, dim).
        input_ids: ids, int64 of any shape.

    Returns:
        Rows, input_ids.shape + (dim,).

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: shapes do not fit.
        InvalidArgumentError: an id of `input_ids` is in none of the lists.

    Example:
        >>> ids = [torch.tensor([1]), torch.tensor([2])]
        >>> rows = [torch.tensor([[1.0, 1.0]]), torch.tensor([[2.0, 2.0]])]
        >>> map_id_to_embedding(ids, rows, torch.tensor([[1], [2]]))
        tensor([[[1., 1.]],
        <BLANKLINE>
                [[2., 2.]]])
    """
    where = "[map_id_to_embedding]"
    if len(ids) != len(embeddings) or not ids:
        raise ValueError(
            f"{where} expected one tensor of rows for each of at least 1 list of ids, got "
            f"{len(ids)} lists and {len(embeddings)} tensors"
        )
    for i, (keys, rows) in enumerate(zip(ids, embeddings, strict=True)):
        _check_rows(
            where, f"embeddings[{i}]", check_tensor(where, f"ids[{i}]", keys, torch.int64, 1), rows
        )
    places = _places(where, torch.cat(list(ids)), input_ids)
    wanted = torch.cat(list(embeddings)).index_select(0, places.view(-1))
    return wanted.view(*input_ids.shape, wanted.shape[1])


def map_id_to_embedding_gradient_back_prop(
    ids: Sequence[torch.Tensor],
    input_ids: torch.Tensor,
    gradients: torch.Tensor,
) -> list[torch.Tensor]:
    """Gradients of the rows of `map_id_to_embedding`, per shard, summed over equal ids.

    Args:
        ids: as forward.
        input_ids: as forward.
        gradients: of the result, input_ids.shape + (dim,).

    Raises:
        ValueError: shapes do not fit.
        InvalidArgumentError: an id of `input_ids` is in none of the lists.

    Example:
        >>> ids = [torch.tensor([1]), torch.tensor([2])]
        >>> map_id_to_embedding_gradient_back_prop(ids, torch.tensor([1, 1, 2]), torch.ones(3, 2))
        [tensor([[2., 2.]]), tensor([[1., 1.]])]
    """
    where = "[map_id_to_embedding_gradient_back_prop]"
    if not ids or gradients.shape[:-1] != input_ids.shape:
        raise ValueError(
            f"{where} expected at least 1 list of ids and gradients of shape "
            f"({', '.join(map(str, input_ids.shape))}, dim), got {len(ids)} lists and shape "
            f"{tuple(gradients.shape)}"
        )
    places = _places(where, torch.cat(list(ids)), input_ids).view(-1)
    sizes = [len(keys) for keys in ids]
    flat = gradients.reshape(len(places), gradients.shape[-1])
    sums = flat.new_zeros(sum(sizes), flat.shape[1]).index_add_(0, places, flat)
    return list(torch.split(sums, sizes))


def gather_embeddings_by_input(
    ids: torch.Tensor,
    embeddings: torch.Tensor,
    input_ids: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The row of every id of `input_ids`, and where it was found; differentiable in the rows.

    Args:
        ids: int64 (n,); of an id that occurs twice the first row counts.
        embeddings: their rows, (n, dim).
        input_ids: ids, int64 of any shape.

    Returns:
        Rows, input_ids.shape + (dim,); and their places among `ids`, in the shape of `input_ids`.

    Raises:
        TypeError: a tensor is of another dtype.
        ValueError: shapes do not fit.
        InvalidArgumentError: an id of `input_ids` is not among `ids`.

    Example:
        >>> rows = torch.tensor([[1.0], [2.0], [3.0]])
        >>> gather_embeddings_by_input(torch.tensor([1, 2, 3]), rows, torch.tensor([2, 1, 2]))
        (tensor([[2.],
                [1.],
                [2.]]), tensor([1, 0, 1]))
    """
    where = "[gather_embeddings_by_input]"
    ids = check_tensor(where, "ids", ids, torch.int64, 1)
    _check_rows(where, "embeddings", ids, embeddings)
    places = _places(where, ids, input_ids)
    rows = embeddings.index_select(0, places.view(-1))
    return rows.view(*input_ids.shape, rows.shape[1]), places


def gather_embeddings_by_input_gradient_back_prop(
    ids: torch.Tensor, gradients: torch.Tensor, index_mapping: torch.Tensor
) -> torch.Tensor:
    """Gradients of the rows of `gather_embeddings_by_input`.

    Args:
        ids: as forward; only their number counts.
        gradients: of the rows, (..., dim).
        index_mapping: the places that forward returned.

    Raises:
        ValueError: shapes do not fit, or a place does not exist.

    Example:
        >>> gradients = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
        >>> mapping = torch.tensor([1, 0, 1, 2])
        >>> ids = torch.tensor([2, 3, 1])
        >>> gather_embeddings_by_input_gradient_back_prop(ids, gradients, mapping)
        tensor([[2.],
                [5.],
                [8.]])
    """
    where = "[gather_embeddings_by_input_gradient_back_prop]"
    places = check_tensor(where, "index_mapping", index_mapping, torch.int64).view(-1)
    if gradients.shape[:-1] != index_mapping.shape:
        raise ValueError(
            f"{where} expected one gradient for each place, got shapes {tuple(gradients.shape)} "
            f"and {tuple(index_mapping.shape)}"
        )
    places = check_range(where, "places", places, len(ids))
    flat = gradients.reshape(len(places), gradients.shape[-1])
    return flat.new_zeros(len(ids), flat.shape[1]).index_add_(0, places, flat)


def fused_gather_embeddings_by_input(
    fused_embeddings: torch.Tensor, offsets: Sequence[torch.Tensor], dims: Sequence[int]
) -> list[torch.Tensor]:
    """Rows that begin at the offsets of one flat tensor; differentiable in it.

    Args:
        fused_embeddings: (n,).
        offsets: first float of each row, int32 or int64, one tensor for each width.
        dims: width of the rows of each tensor of offsets.

    Raises:
        TypeError: offsets are of another dtype.
        ValueError: there is not one width for each tensor, or a row leaves the flat tensor.

    Example:
        >>> flat = torch.arange(5.0)
        >>> offsets = [torch.tensor([3, 0]), torch.tensor([2])]
        >>> fused_gather_embeddings_by_input(flat, offsets, [2, 1])
        [tensor([[3., 4.],
                [0., 1.]]), tensor([[2.]])]
    """
    where = "[fused_gather_embeddings_by_input]"
    check_tensor(where, "fused_embeddings", fused_embeddings, dims=1)
    places = _floats(where, len(fused_embeddings), offsets, dims)
    return [fused_embeddings.index_select(0, at.reshape(-1)).view(at.shape) for at in places]


def fused_gather_embeddings_by_input_gradient(
    size: int,
    gradients: Sequence[torch.Tensor],
    offsets: Sequence[torch.Tensor],
    dims: Sequence[int],
    *,
    scale: float = 1.0,
) -> torch.Tensor:
    """The gradient of the flat tensor of `fused_gather_embeddings_by_input`, times `scale`.

    Args:
        size: floats of the flat tensor.
        gradients: of the rows, (n, dim) each.
        offsets: as forward.
        dims: as forward.
        scale: what every gradient is multiplied by.

    Raises:
        TypeError: offsets are of another dtype.
        ValueError: shapes do not fit, or a row leaves the flat tensor.

    Example:
        >>> offsets = [torch.tensor([1, 0])]
        >>> fused_gather_embeddings_by_input_gradient(3, [torch.ones(2, 2)], offsets, [2], scale=2)
        tensor([2., 4., 2.])
    """
    where = "[fused_gather_embeddings_by_input_gradient]"
    places = _floats(where, size, offsets, dims)
    shapes = [tuple(at.shape) for at in places]
    if [tuple(gradient.shape) for gradient in gradients] != shapes:
        raise ValueError(
            f"{where} expected gradients of shapes {shapes}, got "
            f"{[tuple(gradient.shape) for gradient in gradients]}"
        )
    total = host_zeros(size, dtype=torch.float32)
    for at, gradient in zip(places, gradients, strict=True):
        total.index_add_(0, at.reshape(-1), gradient.reshape(-1), alpha=scale)
    return total


@graph_op(
    "places_of_ids(str where, Tensor ids, Tensor wanted) -> Tensor",
    lambda where, ids, wanted: ids.new_empty(wanted.shape),
)
def _places(where: str, ids: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Find each wanted id among the ids; places in the shape of the wanted ones."""
    flat = check_tensor(where, "input_ids", wanted, torch.int64).view(-1)
    both = torch.cat([ids, flat])
    groups, firsts, _ = first_seen(where, Ragged(both, host_int64([0, len(both)])))
    places = firsts[groups[len(ids) :]]
    is_unknown = places >= len(ids)
    if is_unknown.any():
        first = flat[is_unknown][0]
        raise InvalidArgumentError(
            f"{where} expected ids that are in the lists, got {int(first)}, and "
            f"{int(is_unknown.sum()) - 1} more that are not"
        )
    return places.view(wanted.shape)


def _check_rows(where: str, name: str, ids: torch.Tensor, rows: torch.Tensor) -> None:
    check_tensor(where, name, rows, dims=2)
    if len(rows) != len(ids):
        raise ValueError(f"{where} expected {len(ids)} rows in {name}, got {len(rows)}")


def _floats(
    where: str, size: int, offsets: Sequence[torch.Tensor], dims: Sequence[int]
) -> list[torch.Tensor]:
    """The place of every float of every row, (n, dim) each."""
    if len(offsets) != len(dims) or min(dims, default=1) < 1:
        raise ValueError(
            f"{where} expected {len(offsets)} dims of at least 1, one per tensor of offsets, got "
            f"{list(dims)}"
        )
    places = []
    for i, (begins, dim) in enumerate(zip(offsets, dims, strict=True)):
        begins = check_tensor(where, f"offsets[{i}]", begins, (torch.int32, torch.int64), 1)
        at = begins.long()[:, None] + host_range(dim)
        places.append(check_range(where, "places", at, size))
    return places
