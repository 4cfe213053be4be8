"""Lookups that torch differentiates: backward queues gradients, a step applies them.

In eager mode a lookup is a `torch.autograd.Function`; under torch.compile and torch.export it is
the op `monolith::lookup`. Neither changes a table, so that a graph may run a lookup again
(activation checkpointing does) without harm.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import once_differentiable

from monolith.features.engine import FeatureEngine, Gradients
from monolith.features.gradients import PendingGradients, pending_at
from monolith.features.plain import TableEngine
from monolith.ops import Ragged
from monolith.table.bags import BagGradients, Bags

Outputs = list[torch.Tensor]
"""The matrix and the rows of each feature with "rows"; or the pooled rows of a bag."""


class BagLookup(NamedTuple):
    """Look up bags in one table, for `EmbeddingBag` and `Embedding`.

    Attributes:
        pending: queue of the table.
        bags: what is read; without padding keys.
        is_kept: bool, which keys of the caller are in the bags; None means all.
        missing: what a missing key reads as.
    """

    pending: PendingGradients[TableEngine]
    bags: Bags
    is_kept: torch.Tensor | None
    missing: str

    def read(self, weights: torch.Tensor | None) -> tuple[Outputs, Any]:
        """Return the pooled rows, and the winners of mode "max"."""
        pooled = self.pending.engine.lookup(self.bags, self.missing)
        return [pooled.values], pooled.winners

    def saved(self) -> tuple[torch.Tensor | None, ...]:
        """Return the tensors that must stay as they are until backward."""
        splits = self.bags.row_splits
        return self.bags.keys, None if isinstance(splits, int) else splits, self.bags.weights

    def push(self, winners: Any, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Queue the gradients of pooled rows; keys and weights are copied."""
        assert gradients[0] is not None
        values, bags = _copy(gradients[0]), self.bags.copy()
        return self.pending.push(bags, BagGradients.unchecked(bags, values, winners))

    def input_gradient(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Return the gradient of every weight, (num_keys,); 0 for a padding key."""
        table = self.pending.engine.table
        assert gradients[0] is not None
        of_kept = table.bag_weight_gradients(
            self.bags,
            gradients[0].contiguous(),
            missing=self.missing,
            step=table._update_calls(),
        )
        if self.is_kept is None:
            return of_kept
        return of_kept.new_zeros(len(self.is_kept)).masked_scatter_(self.is_kept, of_kept)


class FeatureLookup(NamedTuple):
    """Look up all features of an engine.

    Attributes:
        pending: queue of the engine.
        ids: of every feature.
        missing: what an id without a row reads as.
    """

    pending: PendingGradients[FeatureEngine]
    ids: Mapping[str, Ragged]
    missing: str

    def read(self, dense: torch.Tensor | None) -> tuple[Outputs, Any]:
        """Return the matrix and rows, and the `Looked` of the engine."""
        matrix, looked = self.pending.engine.lookup(self.ids, None, dense, self.missing)
        if not looked.rows:
            return [matrix], looked
        return [matrix, *(looked.rows[name] for name in row_features(self.pending.engine))], looked

    def saved(self) -> tuple[torch.Tensor | None, ...]:
        """Return a tensor, so that torch refuses a backward after the graph was freed."""
        return (torch.empty(0, device="cpu"),)

    def push(self, looked: Any, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        """Queue the gradients of the outputs that have some."""
        matrix, *others = [None if g is None else _copy(g) for g in gradients]
        names = row_features(self.pending.engine) if others else ()
        rows = {name: g for name, g in zip(names, others, strict=True) if g is not None}
        return self.pending.push(looked, Gradients(matrix, rows))

    def input_gradient(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
        """Return the gradient of the dense columns."""
        matrix = gradients[0]
        return None if matrix is None else matrix[:, self.pending.engine.width :].clone()


def _copy(gradients: torch.Tensor) -> torch.Tensor:
    # Whoever else holds the memory of the gradients may write there before the step.
    return gradients.clone(memory_format=torch.contiguous_format)


def row_features(engine: FeatureEngine) -> list[str]:
    """Return the names of the features with combiner "rows"."""
    return [feature.name for feature in engine.features if feature.combiner == "rows"]


# Eager


class _Lookup(torch.autograd.Function):
    """Run a lookup of either kind in eager mode."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: torch.Tensor,
        inputs: torch.Tensor | None,
        lookup: BagLookup | FeatureLookup,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Read the rows; `inputs` are weights or dense columns, which get gradients too."""
        outputs, ctx.looked = lookup.read(inputs)
        ctx.lookup = lookup
        # Saved so that torch notices a change of them, and a backward after the graph was freed.
        ctx.save_for_backward(*lookup.saved())
        ctx.set_materialize_grads(False)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        """Queue the gradients; a step does the rest."""
        # The refusal of a second derivative is slow, so it is made only where one may follow.
        function = once_differentiable(_push) if torch.is_grad_enabled() else _push
        return function(ctx, *gradients)


def _push(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    _ = ctx.saved_tensors
    lookup, of_anchor, of_inputs = ctx.lookup, None, None
    is_anchor_trained, is_input_trained, _ = ctx.needs_input_grad
    if gradients[0] is None and not any(gradient is not None for gradient in gradients):
        return None, None, None
    if is_anchor_trained:
        of_anchor = lookup.push(ctx.looked, gradients)
    if is_input_trained:
        of_inputs = lookup.input_gradient(gradients)
    return of_anchor, of_inputs, None


class Reading(NamedTuple):
    """Say how keys become pooled rows.

    Attributes:
        mode: of the bags.
        missing: what a missing key reads as.
        padding: a key that is left out of its bag.
        is_trained: whether backward queues gradients.
    """

    mode: str
    missing: str
    padding: int | None
    is_trained: bool


def lookup_bags(
    pending: PendingGradients[TableEngine],
    anchor: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    reading: Reading,
) -> torch.Tensor:
    """Read pooled rows that backward knows about, float32 (num_bags, dim).

    Args:
        pending: queue of the table.
        anchor: of the queue, as the module has it: while torch traces, a stand-in.
        keys: int64 (num_keys,), contiguous.
        row_splits: int64 (num_bags + 1,); or the number of bags of equally many keys, which may
            have any shape then. While torch traces, a tensor.
        weights: float32 (num_keys,) of the keys in a sum; they get gradients too.
        reading: how.
    """
    mode, missing, padding, is_trained = reading
    if not is_trained:
        anchor = anchor.detach()
    if torch.compiler.is_compiling():
        ops: Any = torch.ops.monolith
        handle = pending.handle
        outputs = ops.lookup(anchor, [keys], [row_splits], weights, handle, mode, missing, padding)
        assert isinstance(outputs[0], torch.Tensor)
        return outputs[0]
    check_eager(pending, anchor)
    if padding is None and weights is None:
        bags, is_kept = Bags.unchecked(keys, row_splits, mode), None
    else:
        bags, is_kept = _without_padding(keys.reshape(-1), row_splits, weights, mode, padding)
    if torch.is_grad_enabled() and (anchor.requires_grad or _requires_grad(weights)):
        lookup = BagLookup(pending, bags, is_kept, missing)
        values = _Lookup.apply(anchor, weights, lookup)  # type: ignore[no-untyped-call]
        assert isinstance(values, torch.Tensor)
        return values
    return pending.engine.lookup(bags, missing).values


def lookup_features(
    pending: PendingGradients[FeatureEngine],
    anchor: torch.Tensor,
    ids: Mapping[str, Ragged],
    dense: torch.Tensor | None,
    missing: str,
) -> Outputs:
    """Read all features: the matrix, and the rows of each feature with "rows".

    Args:
        pending: queue of the engine.
        anchor: of the queue, as the module has it (while torch traces, a stand-in), or detached if
            nothing is trained.
        ids: of every feature.
        dense: float32 (batch, n), put after the columns of the features; or None.
        missing: what an id without a row reads as, "initial" or "zeros".
    """
    if missing not in ("initial", "zeros"):
        raise ValueError(
            f"[Features.lookup] expected missing 'initial' or 'zeros', got {missing!r}"
        )
    if torch.compiler.is_compiling():
        return _trace_features(pending, anchor, ids, dense, missing)
    check_eager(pending, anchor)
    lookup, is_grad_enabled = FeatureLookup(pending, ids, missing), torch.is_grad_enabled()
    if anchor.requires_grad and is_grad_enabled:
        outputs = _Lookup.apply(anchor, dense, lookup)  # type: ignore[no-untyped-call]
        return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
    read, _ = lookup.read(dense)
    if dense is not None and dense.requires_grad and is_grad_enabled:
        read[0] = torch.cat([read[0][:, : pending.engine.width], dense], 1)
    return read


def _requires_grad(weights: torch.Tensor | None) -> bool:
    return weights is not None and weights.requires_grad


def _without_padding(
    keys: torch.Tensor,
    row_splits: torch.Tensor | int,
    weights: torch.Tensor | None,
    mode: str,
    padding: int | None,
) -> tuple[Bags, torch.Tensor | None]:
    """Return the bags without the padding key, and which keys are left; None means all."""
    weights = None if weights is None else weights.detach()
    bags = Bags(keys, row_splits, mode, weights)
    if padding is None:
        return bags, None
    is_kept = keys != padding
    num_kept = torch.nn.functional.pad(is_kept.cumsum(0), (1, 0))  # before each key
    weights = None if weights is None else weights[is_kept]
    return Bags(keys[is_kept], num_kept[bags.splits()], mode, weights), is_kept


def check_eager(pending: PendingGradients[Any], anchor: torch.Tensor) -> None:
    """Refuse what would lose gradients or rows of a lookup without a word.

    Args:
        pending: queue of the lookup.
        anchor: of the queue, as the module has it.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        raise RuntimeError(
            f"[torch.jit.trace] expected no lookup in a traced function, got one: its rows would "
            f"become constants {pending.which}; use torch.export"
        )
    if anchor.requires_grad and anchor is not pending.anchor:
        raise ValueError(
            f"[lookup_bags] expected the anchor of the table, got another parameter in its place: "
            f"gradients would be lost {pending.which}; leave the anchor of the module "
            "as it is, and out of the parameters of functional_call"
        )
    if anchor.requires_grad:
        _check_not_averaged(pending)


def _check_not_averaged(pending: PendingGradients[Any]) -> None:
    """Refuse DistributedDataParallel: it averages the anchor's gradient, a norm, over ranks."""
    running = getattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    if running is not None and any(p is pending.anchor for p in running._module_parameters):
        raise RuntimeError(
            f"[DistributedDataParallel] expected no table in the wrapped model, got one "
            f"{pending.which}: the ranks would scale its gradients; wrap the dense part alone"
        )


# The same as ops. Arguments of ops are tensors and plain values; the handle names the queue, and
# the engine of the queue decides what is read. `mode` and `padding` are those of bags.


@torch.library.custom_op(
    "monolith::lookup",
    mutates_args=(),
    schema="(Tensor anchor, Tensor[] keys, Tensor[] row_splits, Tensor? weights, int handle, "
    "str mode, str missing, int? padding) -> Tensor[]",
)
def _lookup_op(
    anchor: torch.Tensor,
    keys: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    weights: torch.Tensor | None,
    handle: int,
    mode: str,
    missing: str,
    padding: int | None,
) -> Outputs:
    lookup = _lookup_of(pending_at(handle), keys, row_splits, weights, mode, missing, padding)
    outputs, winners = lookup.read(None)
    return [*outputs, winners] if isinstance(winners, torch.Tensor) else outputs


def _lookup_of(
    pending: PendingGradients[Any],
    keys: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    weights: torch.Tensor | None,
    mode: str,
    missing: str,
    padding: int | None,
) -> BagLookup | FeatureLookup:
    if isinstance(pending.engine, TableEngine):
        bags, is_kept = _without_padding(keys[0], row_splits[0], weights, mode, padding)
        return BagLookup(pending, bags, is_kept, missing)
    names = [feature.name for feature in pending.engine.features]
    pairs = zip(keys, row_splits, strict=True)
    ids = {name: Ragged(*pair) for name, pair in zip(names, pairs, strict=True)}
    return FeatureLookup(pending, ids, missing)


def _trace_features(
    pending: PendingGradients[FeatureEngine],
    anchor: torch.Tensor,
    ids: Mapping[str, Ragged],
    dense: torch.Tensor | None,
    missing: str,
) -> Outputs:
    features = [ids[feature.name] for feature in pending.engine.features]
    keys, splits = [f.values for f in features], [f.row_splits for f in features]
    ops: Any = torch.ops.monolith
    outputs = ops.lookup(anchor, keys, splits, None, pending.handle, "sum", missing, None)
    matrix = outputs[0] if dense is None else torch.cat([outputs[0], dense], 1)
    return [matrix, *outputs[1:]]


@_lookup_op.register_fake
def _(
    anchor: torch.Tensor,
    keys: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    weights: Any,
    handle: int,
    mode: str,
    *options: Any,
) -> Outputs:
    engine, batch = pending_at(handle).engine, row_splits[0].shape[0] - 1
    if isinstance(engine, TableEngine):
        values = anchor.new_empty((batch, engine.table.dim))
        winners = [values.new_empty(values.shape, dtype=torch.int32)] if mode == "max" else []
        return [values, *winners]
    dims = {name: table.dim for name, table in engine.tables.items()}
    pairs = [(f, key) for f, key in zip(engine.features, keys, strict=True) if f.combiner == "rows"]
    rows = [anchor.new_empty((key.shape[0], dims[f.table])) for f, key in pairs]
    return [anchor.new_empty((batch, engine.width)), *rows]


@torch.library.custom_op(
    "monolith::push_gradients",
    mutates_args=(),
    schema="(Tensor[] gradients, int[] places, Tensor[] keys, Tensor[] row_splits, "
    "Tensor? weights, Tensor? winners, int handle, str mode, int? padding, int number) -> Tensor",
)
def _push_op(
    gradients: Sequence[torch.Tensor],
    places: Sequence[int],
    keys: Sequence[torch.Tensor],
    row_splits: Sequence[torch.Tensor],
    weights: torch.Tensor | None,
    winners: torch.Tensor | None,
    handle: int,
    mode: str,
    padding: int | None,
    number: int,
) -> torch.Tensor:
    pending = pending_at(handle)
    lookup = _lookup_of(pending, keys, row_splits, weights, mode, "zeros", padding)
    if isinstance(lookup, BagLookup):
        return lookup.push(None if winners is None else winners.clone(), gradients)
    # The ids are looked up once more, to know what the gradients are of; the rows are not used.
    looked = lookup.read(None)[1]
    of_outputs: list[torch.Tensor | None] = [None] * (1 + len(row_features(pending.engine)))
    for place, gradient in zip(places, gradients, strict=True):
        of_outputs[place] = gradient
    return lookup.push(looked, of_outputs)


@_push_op.register_fake
def _(gradients: Sequence[torch.Tensor], *_: Any) -> torch.Tensor:
    return gradients[0].new_empty(1)


@torch.library.custom_op(
    "monolith::bag_weight_gradients",
    mutates_args=(),
    schema="(Tensor gradients, Tensor keys, Tensor row_splits, Tensor weights, int handle, "
    "str missing, int? padding) -> Tensor",
)
def _weight_gradients_op(
    gradients: torch.Tensor,
    keys: torch.Tensor,
    row_splits: torch.Tensor,
    weights: torch.Tensor,
    handle: int,
    missing: str,
    padding: int | None,
) -> torch.Tensor:
    bags, is_kept = _without_padding(keys, row_splits, weights, "sum", padding)
    return BagLookup(pending_at(handle), bags, is_kept, missing).input_gradient([gradients])


@_weight_gradients_op.register_fake
def _(gradients: Any, keys: Any, row_splits: Any, weights: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(weights)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    _, keys, row_splits, weights, ctx.handle, ctx.mode, ctx.missing, ctx.padding = inputs
    ctx.num_features = len(keys)
    winners = output[1] if ctx.mode == "max" else None
    ctx.save_for_backward(*keys, *row_splits, weights, winners)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    n = ctx.num_features
    *ids, weights, winners = ctx.saved_tensors
    keys, row_splits = list(ids[:n]), list(ids[n:])
    ops: Any = torch.ops.monolith
    of_anchor, of_weights, nothing = None, None, [None] * n
    pairs = [(i, g) for i, g in enumerate(gradients) if g is not None and g.is_floating_point()]
    if pairs and ctx.needs_input_grad[0]:
        # Equal calls in a graph are merged into one. The number, drawn when the graph is made,
        # keeps the pushes of two equal lookups apart.
        pending = pending_at(ctx.handle)
        pending.num_traced += 1
        places, values = [i for i, _ in pairs], [g for _, g in pairs]
        number = pending.num_traced
        of_bags = (weights, winners, ctx.handle, ctx.mode, ctx.padding)
        of_anchor = ops.push_gradients(values, places, keys, row_splits, *of_bags, number)
    if pairs and weights is not None and weights.requires_grad:
        options = (weights, ctx.handle, ctx.missing, ctx.padding)
        of_weights = ops.bag_weight_gradients(pairs[0][1], keys[0], row_splits[0], *options)
    return of_anchor, nothing, nothing, of_weights, None, None, None, None


_lookup_op.register_autograd(_backward, setup_context=_save)
