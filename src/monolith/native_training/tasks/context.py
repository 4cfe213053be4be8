"""Give a model function what it may use of its run: `Context`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from monolith.native_training.queues.async_functions import AsyncFunctionManager
from monolith.train.driver import Hook


class FeatureFactory(Protocol):
    """Makes slots of features, and takes the gradients of their embeddings."""

    def create_feature_slot(self, config: Any) -> Any:
        """A slot; nothing is computed."""

    def apply_gradients(
        self, grads_and_vars: Iterable[tuple[torch.Tensor | None, torch.Tensor]], scale: float = 1
    ) -> Any:
        """Update the tables with gradients of embeddings."""


class Context:
    """A run as its model sees it.

    Args:
        feature_factory: makes slots.
        async_functions: puts functions off to the next step; one that does if None.
        layout_factory: the same as `feature_factory`, over fused layouts; one of the two.

    Raises:
        ValueError: both factories are given.
    """

    def __init__(
        self,
        feature_factory: FeatureFactory | None = None,
        async_functions: AsyncFunctionManager | None = None,
        layout_factory: FeatureFactory | None = None,
    ) -> None:
        if feature_factory is not None and layout_factory is not None:
            raise ValueError("Cannot set feature_factory and layout_factory in the same time")
        self.feature_factory, self.layout_factory = feature_factory, layout_factory
        self.async_functions = async_functions or AsyncFunctionManager()

    @property
    def hooks(self) -> list[Hook]:
        """Return the hooks of the functions that were put off."""
        return self.async_functions.hooks

    def create_feature_slot(self, config: Any) -> Any:
        """A slot of the factory."""
        return self._factory("create_feature_slot").create_feature_slot(config)

    def apply_embedding_gradients(
        self, grads_and_vars: Iterable[tuple[torch.Tensor | None, torch.Tensor]], scale: float = 1
    ) -> Any:
        """Update the tables with gradients of embeddings, times `scale`; None counts as zero."""
        factory = self._factory("apply_embedding_gradients")
        return factory.apply_gradients(grads_and_vars, scale)

    def add_async_function(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        is_async: bool | None = None,
        queue_name: str = "async_queue",
    ) -> Any:
        """`AsyncFunctionManager.add_async_function`."""
        return self.async_functions.add_async_function(target, args, kwargs, is_async, queue_name)

    def _factory(self, verb: str) -> FeatureFactory:
        factory = self.layout_factory or self.feature_factory
        if factory is None:
            raise ValueError(
                f"[Context.{verb}] expected a feature factory or a layout factory, got neither; "
                "a Trainer sets one"
            )
        return factory
