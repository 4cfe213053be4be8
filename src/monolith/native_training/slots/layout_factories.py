"""Make layouts by name: tensors that join the slices of several features."""

from collections.abc import Mapping

import torch

from monolith.native_training.ops.layout_config import OutConfig, OutType
from monolith.native_training.slots.slot_factories import (
    CollectingFactory,
    FeaturesFactory,
    LookedUpRows,
)
from monolith.native_training.slots.slot_tables import SlotTable
from monolith.nn.features import Embedded

Layout = torch.Tensor | list[torch.Tensor]
"""One tensor; a list of `OutType.NONE`."""


class LayoutFactory:
    """Make the layouts of a model by name, each layout once.

    A subclass says what a slice of a feature is.

    Attributes:
        layouts: Name -> slices, and how they are joined.
    """

    def __init__(self) -> None:
        self.layouts: dict[str, OutConfig] = {}
        self._tensors: dict[str, Layout] = {}

    def slice_of(self, feature: str, start: int, end: int) -> torch.Tensor:
        """Return columns `start` to `end` of the combined rows of a feature."""
        raise NotImplementedError

    def add_layout(self, name: str, config: OutConfig) -> None:
        """Record a layout.

        Raises:
            ValueError: Another layout has the name.
        """
        if self.layouts.setdefault(name, config) != config:
            raise ValueError(
                f"[LayoutFactory.add_layout] expected the same slices in every call, "
                f"{self.layouts[name]}, got {config} (layout {name!r}); "
                "give one of them another slice_name"
            )

    def get_layout(self, name: str) -> Layout:
        """Return a layout, the same object each time.

        Raises:
            KeyError: There is none.
        """
        if name not in self.layouts:
            raise KeyError(
                f"[LayoutFactory.get_layout] expected a layout ({', '.join(self.layouts)}), got "
                f"{name!r}"
            )
        if name not in self._tensors:
            config = self.layouts[name]
            slices = [
                self.slice_of(part.feature_name, part.start, part.end)
                for part in config.slice_configs
            ]
            self._tensors[name] = join(slices, config.out_type)
        return self._tensors[name]

    def flattened_layout(self) -> list[torch.Tensor]:
        """Return the tensors of all layouts, in the order of their names."""
        layouts = [self.get_layout(name) for name in sorted(self.layouts)]
        return [
            tensor
            for layout in layouts
            for tensor in ([layout] if isinstance(layout, torch.Tensor) else layout)
        ]


class CollectingLayoutFactory(LayoutFactory, CollectingFactory):
    """Record slots and layouts; layouts are zeros, as the lookups of a `CollectingFactory`."""

    def __init__(self, batch_size: int, *, device: torch.device | str = "meta") -> None:
        LayoutFactory.__init__(self)
        CollectingFactory.__init__(self, batch_size, device=device)

    def slice_of(self, feature: str, start: int, end: int) -> torch.Tensor:
        """Return zeros."""
        return self.rows_of(feature).lookup(feature, start, end)


class EmbeddingLayoutFactory(LayoutFactory, FeaturesFactory):
    """Make slots and layouts over the rows that `Features` looked up for a batch.

    `apply_gradients` takes gradients of layouts as well as of rows.

    Args:
        tables: Slots that a `CollectingFactory` has collected.
        embedded: Rows of the features that `features_of` made of these tables.
        layouts: Layouts that were recorded; more may be added.
    """

    def __init__(
        self,
        tables: Mapping[str, SlotTable],
        embedded: Embedded,
        layouts: Mapping[str, OutConfig] | None = None,
    ) -> None:
        LayoutFactory.__init__(self)
        FeaturesFactory.__init__(self, tables, embedded)
        self.layouts.update(layouts or {})
        self._rows = {
            name: LookedUpRows(table, embedded)
            for table in tables.values()
            for name in table.feature_names
        }

    def slice_of(self, feature: str, start: int, end: int) -> torch.Tensor:
        """Return the slice for the samples of the batch."""
        return self._rows[feature].lookup(feature, start, end)


def join(slices: list[torch.Tensor], out_type: OutType) -> Layout:
    """Return slices side by side, on top of each other, added up, or as a list."""
    if out_type is OutType.CONCAT:
        return torch.cat(slices, -1)
    if out_type is OutType.STACK:
        return torch.stack(slices, 1)
    if out_type is OutType.ADDN:
        return torch.stack(slices).sum(0)
    return slices
