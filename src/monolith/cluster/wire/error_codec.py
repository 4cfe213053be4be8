"""Write errors of a server as values, and raise them at the client as what they were."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from monolith import errors
from monolith.errors import InvalidArgumentError, MonolithError, OpError

_MAX_TEXT = 64 << 10

_CLASSES: Mapping[str, type[Exception]] = MappingProxyType(
    {
        **{
            name: value
            for name, value in vars(errors).items()
            if isinstance(value, type) and issubclass(value, MonolithError)
        },
        **{
            error.__name__: error
            for error in (
                *(ArithmeticError, BufferError, IndexError, KeyError, MemoryError, OverflowError),
                *(RuntimeError, TypeError, ValueError),
            )
        },
    }
)


def error_to_value(error: BaseException) -> dict[str, Any]:
    """Return the class by its name, and the text, cut if it is absurdly long."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _CLASSES]
    text = error.args[0] if len(error.args) == 1 and type(error.args[0]) is str else str(error)
    if not names:
        text = f"{type(error).__name__}: {text}"
    # A lone surrogate has no UTF-8.
    text = text[:_MAX_TEXT].encode(errors="backslashreplace").decode()
    return {"class": names[0] if names else OpError.__name__, "text": text}


def error_from_value(value: Any) -> Exception:
    """Return the error, not raised.

    Raises:
        InvalidArgumentError: the value is no error.
    """
    is_error = (
        type(value) is dict
        and value.keys() == {"class", "text"}
        and type(value["text"]) is type(value["class"]) is str
        and value["class"] in _CLASSES
    )
    if not is_error:
        raise InvalidArgumentError("[wire.decode] expected an error of a server, got another value")
    return _CLASSES[value["class"]](value["text"])
