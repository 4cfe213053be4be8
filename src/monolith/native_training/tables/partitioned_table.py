"""All features of a model over shards: ids to layouts, and gradients of layouts to tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from monolith.cluster.ranks.rank_group import RankGroup
from monolith.cluster.servers import LocalServers, Servers, current_servers
from monolith.cluster.sharded_table import ShardedTable
from monolith.native_training.ops.layout import (
    flatten_layout,
    fused_embedding_to_layout,
    fused_embedding_to_layout_grad,
    nest_layout,
)
from monolith.native_training.ops.layout_config import (
    FeatureConfigs,
    ParserContext,
    ShardingSparseFidsOpParams,
)
from monolith.native_training.ops.sharding import ShardedFids, sharding_sparse_fids
from monolith.native_training.queues.queue_hooks import queue_hooks_of, use_queue_hooks
from monolith.native_training.tables import fid_bundle
from monolith.native_training.tables.feature_plan import check_capabilities
from monolith.native_training.tables.feature_plan import gen_feature_configs as _gen_feature_configs
from monolith.native_training.tables.fid_bundle import Bundle
from monolith.native_training.tables.key_routes import KeyRoutes, PackedRoutes, RawRoutes
from monolith.native_training.tables.rank_group_tables import RankedGroup
from monolith.native_training.tables.sharded_group import ShardedGroup, connect, table_configs
from monolith.native_training.tables.table_merge import (
    merge_feature_config as _merge_feature_config,
)
from monolith.native_training.tables.table_merge import (
    no_merge_feature_config as _no_merge_feature_config,
)
from monolith.native_training.tables.updates import AppliedUpdate, Completion
from monolith.observe.metrics import MetricsSink
from monolith.ops import Ragged
from monolith.table.calls import Clock, wall_clock

if TYPE_CHECKING:
    from typing_extensions import Self


_OWNER = "PartitionedHashTable"
_BY_SHARD = 4

Layout = dict[str, torch.Tensor | list[torch.Tensor]]
"""Outputs by name."""

Pairs = Sequence[tuple[torch.Tensor | None, torch.Tensor]]
"""(gradient, output) of each output, in the order of `flatten_layout`."""


class AsyncFunctionManager(Protocol):
    """Runs functions now, or later from a queue; arguments that are callables are called first."""

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """Run the target now and return its result, or return the action that enqueues a call."""


class PartitionedHashTable:
    """Features -> layouts: ids are sorted by shard, looked up in one call to each, and pooled.

    Any two calls may run at once from any two threads. With `ranks`, each rank has a shard, and all
    ranks call `lookup` and `apply_gradients` together, from one thread for each verb. Close a table
    with `ranks`, or with `num_ps` 0: it has a shard of its own.

    Args:
        context: its `sharding_sparse_fids_op_params` (`gen_feature_configs`) say what the features,
            tables and outputs are.
        servers: `num_ps` of them hold the shards; those of the run if None.
        clock: gives the time of an update.
        sink: takes the lookup times of each server (`cluster/timed_transport.py`).
        model_name: a tag of these times.
        ranks: `num_ps` ranks that hold the shards, in place of servers.

    Raises:
        NotImplementedError: an option asks for an accelerator.
        ValueError: the options do not fit each other, or the servers.
    """

    gen_feature_configs = staticmethod(_gen_feature_configs)
    merge_feature_config = staticmethod(_merge_feature_config)
    no_merge_feature_config = staticmethod(_no_merge_feature_config)

    def __init__(
        self,
        context: ParserContext,
        servers: Servers | None = None,
        *,
        clock: Clock = wall_clock,
        sink: MetricsSink | None = None,
        model_name: str = "",
        ranks: RankGroup | None = None,
    ) -> None:
        params = context.sharding_sparse_fids_op_params
        if params is None:
            raise ValueError(
                f"[{_OWNER}] expected a context with sharding_sparse_fids_op_params, got None; "
                "make them with gen_feature_configs"
            )
        check_capabilities(params)
        self.params: ShardingSparseFidsOpParams = params
        self.feature_configs: FeatureConfigs = params.feature_configs
        configs = table_configs(_OWNER, params.sub_table_name_to_config)
        _check_tables(self.feature_configs, {config.name: config.dim for config in configs})
        _check_ranks(ranks, servers, params.num_shards)
        is_own = ranks is not None or (servers is None and params.num_ps == 0)
        self._own_servers = LocalServers(1) if is_own else None
        num_shards = params.num_shards if ranks is None else 1
        self._group: ShardedGroup = connect(
            params.sub_table_name_to_config,
            _checked_servers(self._own_servers or servers, num_shards),
            owner=_OWNER,
            transfer_float16=params.transfer_float16,
            clock=clock,
            sink=sink,
            model_name=model_name,
        )
        self._num_shards = params.num_shards
        self._ranked = None if ranks is None else RankedGroup(self._group, ranks)
        is_raw = params.use_native_multi_hash_table
        self._routes: KeyRoutes = (RawRoutes if is_raw else PackedRoutes)(self._group)
        tables = [feature.table for feature in self.feature_configs.feature_configs.values()]
        self._is_distinct = params.unique and len(set(tables)) == len(tables)
        self._queue_hooks: list[Any] = []

    @property
    def tables(self) -> dict[str, ShardedTable]:
        """The same rows with all the verbs of a table, by the name of the table; for saves too.

        A cut of one of them is a moment of this object's calls only where none of them runs.
        """
        return dict(self._group.tables)

    def lookup(
        self,
        features: Mapping[str, Ragged] | ShardedFids,
        auxiliary_bundle: Bundle | None = None,
        *,
        batch_size: int | None = None,
        shared: Iterable[str] = (),
        ret_lookup_callable_fn: bool = False,
        ret_fused_layout_callable_fn: bool = False,
        step: int = 0,
    ) -> Any:
        """Outputs of a batch; nothing is stored. In one call, or in phases: ids, rows, layout.

        Args:
            features: ids by feature; or what `sharding_sparse_fids` of version 4 made of them.
            auxiliary_bundle: takes what the later phases and `apply_gradients` need.
            batch_size: number of examples; that of the features if None.
            shared: names of features with one row for the whole batch.
            ret_lookup_callable_fn: stop before the rows, and return the rest as a function.
            ret_fused_layout_callable_fn: stop before the layout, and return it as a function.
            step: training step, for a `OneBit` view.

        Returns:
            The outputs by name (`nest_layout`): leaves that take gradients. Or the function that
            goes on; it takes the bundle, or one that went through a queue in its place.
        """
        use_queue_hooks(self._queue_hooks)
        bundle: Bundle = {} if auxiliary_bundle is None else auxiliary_bundle
        fid_bundle.put_sharded(bundle, self._sharded(features, batch_size, shared))

        def lookup_callable_fn(own: Bundle = bundle) -> Any:
            self.call_lookup(own, step=step)

            def fused_layout_callable_fn(later: Bundle = own) -> Layout:
                return self.fused_layout(later)

            is_last = not ret_fused_layout_callable_fn
            return fused_layout_callable_fn() if is_last else fused_layout_callable_fn

        return lookup_callable_fn if ret_lookup_callable_fn else lookup_callable_fn()

    def _sharded(
        self,
        features: Mapping[str, Ragged] | ShardedFids,
        batch_size: int | None,
        shared: Iterable[str],
    ) -> ShardedFids:
        num_shards = self._num_shards
        if isinstance(features, ShardedFids):
            found = (features.version, features.ps_num, features.table_names)
            expected = (_BY_SHARD, num_shards, self.feature_configs.table_names)
            if found != expected:
                raise ValueError(
                    f"[{_OWNER}.lookup] expected ids with (version, shards, tables) {expected}, "
                    f"got {found}"
                )
            return features
        shared = frozenset(shared)
        if batch_size is None:
            own = [each for name, each in features.items() if name not in shared]
            sizes = [each.num_rows for each in own if isinstance(each, Ragged)]
            if not sizes:
                raise ValueError(
                    f"[{_OWNER}.lookup] expected batch_size, since no feature that is not shared "
                    "tells it, got None"
                )
            batch_size = sizes[0]
        return sharding_sparse_fids(
            features,
            self.feature_configs,
            batch_size=batch_size,
            ps_num=num_shards,
            shared=shared,
            unique=self.params.unique,
            version=_BY_SHARD,
        )

    def call_lookup(self, auxiliary_bundle: Bundle, *, step: int = 0) -> None:
        """The phase of the rows: from the ids of the bundle to rows in the bundle."""
        sharded = self._of("call_lookup", auxiliary_bundle)
        keys = fid_bundle.shard_keys(sharded)
        if self._ranked is None:
            rows = self._group.lookup(keys, step=step, is_distinct=self._is_distinct)
        else:
            rows = self._lookup_gpu(keys, step)
        fid_bundle.put_embeddings(auxiliary_bundle, rows)

    def _lookup_gpu(self, keys: Sequence[Ragged], step: int) -> list[torch.Tensor]:
        """Send ids to the ranks that own them; return their rows, of one lookup in each rank.

        The name is that of the reference system. The rows are in main memory.
        """
        assert self._ranked is not None
        return self._ranked.lookup(keys, step=step)

    def fused_layout(self, auxiliary_bundle: Bundle) -> Layout:
        """The phase of the layout: from the rows of the bundle to outputs."""
        sharded = self._of("fused_layout", auxiliary_bundle)
        rows = fid_bundle.take_embeddings(f"[{_OWNER}.fused_layout]", auxiliary_bundle)
        outputs = fused_embedding_to_layout(rows, sharded, self.feature_configs)
        return self.nest_layout([output.requires_grad_() for output in outputs])

    def apply_gradients(
        self,
        layout_grads_and_vars: Pairs | Callable[[], Pairs],
        *,
        auxiliary_bundle: Bundle,
        global_step: int | Callable[[], int] = 0,
        req_time: int | None = None,
        async_function_mgr: AsyncFunctionManager | None = None,
        async_push: bool = False,
        grad_scale: float = 1.0,
        learning_rates: Mapping[str, Sequence[float]] | None = None,
    ) -> Any:
        """One optimizer step per distinct id of each table, on the sum of its gradients.

        Args:
            layout_grads_and_vars: (gradient, output) in the order of `flatten_layout`; None for a
                gradient of zeros. As a function, it is asked when the update is made, or enqueued.
            auxiliary_bundle: of the lookup that made the outputs.
            global_step: training step; may be a function too.
            req_time: time of the update in seconds.
            async_function_mgr: runs the update, now or later; it runs now if None.
            async_push: let the manager run it later.
            grad_scale: factor of all gradients.
            learning_rates: of some tables, by name, one per segment; the others have their own.

        Returns:
            Counts over all tables and servers, whose `as_op()` gives a handle to wait for updates;
            what the manager returns if there is one.
        """

        def gradients() -> list[torch.Tensor]:
            pairs = layout_grads_and_vars
            given = [gradient for gradient, _ in (pairs() if callable(pairs) else pairs)]
            sharded = self._of("apply_gradients", auxiliary_bundle)
            parts = fused_embedding_to_layout_grad(
                [None if gradient is None else gradient.cpu() for gradient in given],
                sharded,
                self.feature_configs,
            )
            scaled = parts if grad_scale == 1 else [part * grad_scale for part in parts]
            numbers = sharded.fids[:0].int()
            if self._group.is_counting:
                numbers = fid_bundle.occurrences(sharded, self._group.order.widths)
            return [sharded.fids, sharded.fid_list_table_row_length, numbers, *scaled]

        def push(tensors: list[torch.Tensor], step: int) -> AppliedUpdate:
            ids, lengths, numbers, *grads = tensors
            keys = fid_bundle.keys_of(ids, lengths.view(self._num_shards, -1))
            sizes = [len(part.values) for part in keys]
            counts = numbers.split_with_sizes(sizes) if self._group.is_counting else None
            options: dict[str, Any]
            options = {"step": step, "learning_rates": learning_rates, "now": req_time}
            if self._ranked is not None:
                return self._apply_gradients_gpu(keys, grads, counts, options)
            return self._group.apply_gradients(
                keys, grads, counts=counts, is_distinct=self._is_distinct, **options
            )

        if async_function_mgr is not None:
            return async_function_mgr.add_async_function(
                push, (gradients, global_step), is_async=async_push, queue_name="postpush_queue"
            )
        if async_push:
            raise ValueError(
                f"[{_OWNER}.apply_gradients] expected async_function_mgr with async_push, got None"
            )
        return push(gradients(), global_step() if callable(global_step) else global_step)

    def _apply_gradients_gpu(
        self,
        keys: Sequence[Ragged],
        grads: Sequence[torch.Tensor],
        counts: Sequence[torch.Tensor] | None,
        options: Mapping[str, Any],
    ) -> AppliedUpdate:
        """Send gradients to the ranks that own the ids, which make one update of all ranks' sums.

        The name is that of the reference system. The rows are in main memory.
        """
        assert self._ranked is not None
        return self._ranked.apply_gradients(keys, grads, counts=counts, **options)

    def assign(
        self,
        feature_to_id_and_value: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        *,
        req_time: int | None = None,
    ) -> "Self":
        """Set rows by feature; of equal ids of a table the last wins. Returns this table."""
        return self._write("assign", feature_to_id_and_value, req_time)

    def assign_add(
        self,
        feature_to_id_and_value: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        *,
        req_time: int | None = None,
    ) -> "Self":
        """Add to rows by feature; values of equal ids of a table are summed. Returns this table."""
        return self._write("assign_add", feature_to_id_and_value, req_time)

    def _write(
        self,
        verb: str,
        given: Mapping[str, tuple[torch.Tensor, torch.Tensor]],
        req_time: int | None,
    ) -> "Self":
        if self._ranked is not None:
            raise NotImplementedError(
                f"[{_OWNER}.{verb}] expected shards on servers, got shards in {self._num_shards} "
                "ranks; assign rows before the training, or train them"
            )
        by_table: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        known = self.feature_configs.feature_configs
        for name in sorted(given):
            if name not in known:
                raise ValueError(
                    f"[{_OWNER}.{verb}] expected features of the configs, got {name!r}"
                )
            which = f"(feature {name!r})"
            self._group.order.check_rows(verb, known[name].table, *given[name], which)
            by_table.setdefault(known[name].table, []).append(given[name])
        joined = {
            table: (torch.cat([ids for ids, _ in own]), torch.cat([rows for _, rows in own]))
            for table, own in by_table.items()
        }
        parts, rows = self._routes.split(joined)
        self._group.write(verb, parts, rows, req_time)
        return self

    def as_op(self) -> Completion:
        """A handle that is done when the updates that run now have ended on every server."""
        return self._group.updates.completion()

    def flatten_layout(self, layout: Mapping[str, torch.Tensor | Sequence[torch.Tensor]]) -> Any:
        """The tensors of a layout in the order of names."""
        return flatten_layout(layout, self.feature_configs)

    def nest_layout(self, tensors: Sequence[torch.Tensor]) -> Layout:
        """The opposite of `flatten_layout`."""
        return nest_layout(tensors, self.feature_configs)

    def add_queue_hook(self, hook: Any) -> None:
        """Keep a hook of a queue that this table feeds.

        The current run calls the hook, and so does each run whose steps look up rows of this table.
        """
        self._queue_hooks.append(hook)
        use_queue_hooks([hook])

    def get_queue_hooks(self) -> list[Any]:
        """Return the hooks that were added, then those of the underlying tables that have some."""
        return [*self._queue_hooks, *queue_hooks_of(self.tables.values())]

    def close(self) -> None:
        """Free the shard of this object; shards on servers stay. Closing twice is fine."""
        if self._own_servers is not None:
            self._own_servers.close()

    def __enter__(self) -> "Self":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _of(self, verb: str, bundle: Bundle) -> ShardedFids:
        where = f"[{_OWNER}.{verb}]"
        return fid_bundle.sharded_of(where, bundle, self.feature_configs, self._num_shards)


def _checked_servers(servers: Servers | None, num_shards: int) -> Servers:
    found: Servers = current_servers() if servers is None else servers
    if len(found) != num_shards:
        raise ValueError(
            f"[{_OWNER}] expected a server for each of {num_shards} shards, got {len(found)}"
        )
    return found


def _check_ranks(ranks: RankGroup | None, servers: Servers | None, num_shards: int) -> None:
    """Ranks have the shards in place of servers, one each."""
    if ranks is None:
        return
    if servers is not None:
        raise ValueError(f"[{_OWNER}] expected servers or ranks, got both")
    if ranks.size != num_shards:
        raise ValueError(
            f"[{_OWNER}] expected a rank for each of {num_shards} shards, got {ranks.size}; the "
            "number of ranks is that of num_ps"
        )


def _check_tables(configs: FeatureConfigs, dims: Mapping[str, int]) -> None:
    """Every feature needs a table as wide as its rows, every table a feature."""
    if sorted(dims) != list(configs.table_names):
        raise ValueError(
            f"[{_OWNER}] expected configs of the tables {', '.join(configs.table_names)}, got "
            f"those of {', '.join(sorted(dims))}"
        )
    for name, feature in configs.feature_configs.items():
        if feature.dim != dims[feature.table]:
            raise ValueError(
                f"[{_OWNER}] expected features as wide as the rows of their table, "
                f"{dims[feature.table]}, got {feature.dim} (feature {name!r}, table "
                f"{feature.table!r})"
            )
