"""Hold the parameters of a class, and make its objects with them."""

import inspect
from typing import Any

import torch

from monolith.native_training.util.params import Params

ALLOWED_KWARGS = frozenset(
    {
        "activity_regularizer",
        "autocast",
        "batch_input_shape",
        "implementation",
        "input_dim",
        "input_shape",
        "name",
        "weights",
    }
)
"""Arguments that a constructor with `**kwargs` gets as well."""

# The signatures of their constructors have `**kwargs`, which they refuse. The classes, not the
# functions: torch.compile replaces that of modules.
_TAKE_NOTHING = (object, torch.nn.Module)


class InstantiableParams(Params):
    """The parameters of a class, which can make an object of it.

    Args:
        cls: the class; it is the parameter `cls`.

    Example:
        >>> params = InstantiableParams(torch.nn.Linear)
        >>> params.define("in_features", 2, "Width of the input.")
        >>> params.define("out_features", 3, "Width of the output.")
        >>> params.instantiate()
        Linear(in_features=2, out_features=3, bias=True)
    """

    def __init__(self, cls: type | None = None) -> None:
        super().__init__()
        self.define("cls", cls, "Class that these parameters belong to.")

    def instantiate(self) -> Any:
        """Make an object of the class.

        A constructor `(self, params)` of a class with `params` gets these parameters. Any other
        gets the values of those that it names, nested ones too, the outermost of a name first. With
        `**kwargs` it gets those of `ALLOWED_KWARGS` that are not None as well.

        Raises:
            TypeError: `cls` is no class.
        """
        cls = self.cls
        if not isinstance(cls, type):
            raise TypeError(
                f"[InstantiableParams.instantiate] expected a class as cls, got {cls!r}"
            )
        signature = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
        if list(signature) == ["self", "params"] and hasattr(cls, "params"):
            return cls(self)
        owner = next(base for base in cls.__mro__ if "__init__" in vars(base))
        with_kwargs = owner not in _TAKE_NOTHING and any(
            argument.kind is argument.VAR_KEYWORD for argument in signature.values()
        )
        return cls(
            **{
                name: value
                for name, value in _flat(self).items()
                if (name in signature and name != "cls")
                or (with_kwargs and name in ALLOWED_KWARGS and value is not None)
            }
        )


def _flat(params: Params) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for _, value in params.items():
        if isinstance(value, Params):
            flat = {**_flat(value), **flat}
    return {**flat, **dict(params.items())}
