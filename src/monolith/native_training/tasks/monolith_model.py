"""Define `MonolithModel`: a `MonolithBaseModel` whose model function names features, not slots."""

from collections.abc import Sequence
from typing import Any

from monolith.native_training.data.feature_list import FeatureList
from monolith.native_training.ops.layout_config import OutConfig
from monolith.native_training.slots.combiners import Combiner
from monolith.native_training.slots.layout_factories import (
    CollectingLayoutFactory,
    EmbeddingLayoutFactory,
)
from monolith.native_training.slots.slots import DEFAULT_EXPIRE_TIME, FeatureColumn
from monolith.native_training.tasks.embedding_columns import (
    EmbeddingColumns,
    Name,
    combiner_of,
    joined,
    layout_name,
    named_dims,
    out_config,
    share_slot,
)
from monolith.native_training.tasks.monolith_base_model import EstimatorSpec, MonolithBaseModel
from monolith.native_training.tasks.native_params import (
    COLUMN_PARAMETERS,
    check_values,
    define_params,
)
from monolith.native_training.util.instantiable_params import InstantiableParams
from monolith.native_training.util.params import Params

__all__ = ["EstimatorSpec", "MonolithModel"]


class MonolithModel(MonolithBaseModel):
    """Train a model whose columns, slices and layouts have names.

    Args:
        params: Parameters that `params` made.
    """

    def __init__(self, params: Params) -> None:
        super().__init__(params)
        check_values(params, COLUMN_PARAMETERS)
        path = params.feature_list
        self._feature_list = None if path is None else FeatureList.parse(path)
        self._columns = EmbeddingColumns(self.ctx, self._feature_list)
        self._layouts: dict[str, OutConfig] = {}

    @classmethod
    def params(cls) -> InstantiableParams:
        """Return the parameters of a `MonolithBaseModel`, `feature_list` and fused layouts."""
        params = super().params()
        define_params(params, COLUMN_PARAMETERS)
        return params

    def create_embedding_feature_column(
        self,
        feature_name: Name,
        occurrence_threshold: int | None = None,
        expire_time: int = DEFAULT_EXPIRE_TIME,
        max_seq_length: int = 0,
        shared_name: str | None = None,
        combiner: Combiner | str | None = None,
    ) -> FeatureColumn:
        """Return the column of a feature, which the first call with the feature makes.

        Args:
            feature_name: name, number of a slot, or column. The feature list says which number a
                name has and the reverse; without it, the name of a number is `fc_slot_<n>`.
            occurrence_threshold: occurrences before an id gets a row; that of the parameters if
                None.
            expire_time: days that a row lives after its last update.
            max_seq_length: keeps so many first rows apart, if it is above 0.
            shared_name: name of the feature whose slot the column uses.
            combiner: "reduce_sum", "reduce_mean", "first_n", or an object.

        Raises:
            ValueError: there is no such combiner.
            Exception: the slot that it shares cannot be made.
        """
        if occurrence_threshold is None:
            occurrence_threshold = self.p.default_occurrence_threshold
        return self._columns.column(
            feature_name,
            combiner=combiner_of(combiner, max_seq_length),
            occurrence_threshold=occurrence_threshold,
            expire_time=expire_time,
            shared_name=shared_name,
        )

    def lookup_embedding_slice(
        self,
        features: Any,
        slice_name: str,
        slice_dim: int | None = None,
        initializer: Any = None,
        optimizer: Any = None,
        compressor: Any = None,
        learning_rate_fn: Any = None,
        group_out_type: str = "add_n",
        out_type: str | None = None,
    ) -> Any:
        """Return slices of features; one name is the same columns of a row in every call.

        The slices are the layout `<slice_name>_<md5>`, whose last part is that of the sorted
        features with commas between them. With fused layouts the layout itself is returned.

        Args:
            features: names, numbers of slots or columns, with `slice_dim`; pairs of them and a
                width, or a dictionary; or lists of them (groups), with `slice_dim`.
            slice_name: name of the slice.
            slice_dim: width of the slice.
            initializer: initializer of the slice; None takes the slot's, as below.
            optimizer: optimizer of the slice.
            compressor: compressor of the slice.
            learning_rate_fn: learning rate of the slice.
            group_out_type: how the features of a group are joined, "add_n" or "concat".
            out_type: "concat", "stack" and "add_n" make one tensor; a list if None.

        Raises:
            ValueError: features of another form, or an unknown type of output; groups with fused
                layouts.
        """
        options = {
            "initializer": initializer,
            "optimizer": optimizer,
            "compressor": compressor,
            "learning_rate_fn": learning_rate_fn,
        }
        groups = named_dims(features, slice_dim)
        is_grouped = isinstance(features, Sequence) and isinstance(features[0], list)
        if is_grouped and self.is_fused_layout():
            raise ValueError("group pool is not support when fused_layout")
        slices = [
            [self._columns.column_slice(name, slice_name, dim, options) for name in names]
            for names, dim in groups
        ]
        if not is_grouped:
            name = layout_name(slice_name, [column for ((column, _),) in slices])
            self._layouts[name] = out_config([pair for (pair,) in slices], out_type)
            factory = self.ctx.layout_factory
            if isinstance(factory, CollectingLayoutFactory | EmbeddingLayoutFactory):
                factory.add_layout(name, self._layouts[name])
                return factory.get_layout(name)
        parts = []
        for group in slices:
            looked_up = [column.embedding_lookup(part) for column, part in group]
            parts.append(looked_up[0] if len(group) == 1 else joined(looked_up, group_out_type))
        return joined(parts, out_type)

    @property
    def layout_dict(self) -> dict[str, OutConfig]:
        """Return the layouts of the last call of the model function by name."""
        return dict(self._layouts)

    def is_fused_layout(self) -> bool:
        """Whether lookups return layouts by name."""
        return self.ctx.layout_factory is not None

    share_slot = staticmethod(share_slot)

    def _begin_call(self) -> None:
        super()._begin_call()
        self._columns, self._layouts = EmbeddingColumns(self.ctx, self._feature_list), {}

    def _use_factory(self, factory: CollectingLayoutFactory | EmbeddingLayoutFactory) -> None:
        if self.p.enable_fused_layout:
            self.ctx.feature_factory, self.ctx.layout_factory = None, factory
        else:
            super()._use_factory(factory)
