"""Read the parameters of a class from the arguments of its constructors."""

import copy
import inspect
from typing import Any, TypeVar

from monolith.native_training.util.instantiable_params import ALLOWED_KWARGS, InstantiableParams
from monolith.native_training.util.params import Params, is_param_name
from monolith.native_training.util.run_registry import unique_name
from monolith.train.driver import Run
from monolith.util.names import to_snake_case

_Class = TypeVar("_Class", bound=type)

_NO_DEFAULT = inspect.Parameter.empty
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def params(cls: type) -> InstantiableParams:
    """The parameters of a class: those of its base, and all arguments of its constructors.

    An argument that nested parameters have already only gives them its default. `name` is new in
    each call: the name of the class, with a number from the second on within a run.

    Example:
        >>> class Dense:
        ...     def __init__(self, units, bias=True):
        ...         self.units, self.bias = units, bias
        >>> dense = params(Dense)
        >>> dense.units = 8
        >>> dense.name, dense.instantiate().units, dense.instantiate().bias
        ('dense', 8, True)
    """
    parameters = _inherited_params(cls)
    parameters.cls = cls
    _define(parameters, "name", unique_name(to_snake_case(cls.__name__)))
    holders = _inverted_index(parameters)
    for name, parameter in _get_all_parameters(cls).items():
        if name == "name" or not is_param_name(name):
            continue
        has_default = parameter.default is not _NO_DEFAULT
        default = _own(parameter.default) if has_default else None
        if name not in holders:
            parameters.define(name, default, f"Argument of {cls.__name__}.")
        elif has_default:
            holders[name][name] = default
    for name in sorted(ALLOWED_KWARGS):
        _define(parameters, name, None)
    return parameters


def with_params(cls: _Class) -> _Class:
    """Give a class the class method `params`; a decorator."""
    cls.params = classmethod(params)  # type: ignore[attr-defined]
    return cls


def _inherited_params(cls: type) -> InstantiableParams:
    for base in cls.__mro__[1:]:
        if "params" in vars(base):
            with Run().as_current():  # names that the bases take here are not used
                inherited: InstantiableParams = base.params()  # type: ignore[attr-defined]
            return inherited
    return InstantiableParams(cls)


def _own(default: Any) -> Any:
    """A default that can change without changing that of the constructor."""
    return copy.deepcopy(default) if isinstance(default, list | dict | set) else default


def _define(parameters: Params, name: str, default: Any) -> None:
    """Define a parameter; one that exists gets the default, unless it is None."""
    if name not in parameters:
        parameters.define(name, default, f"Argument of {parameters.cls.__name__}.")
    elif default is not None:
        parameters[name] = default


def _get_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The arguments of the constructor that a class itself has."""
    if "__init__" not in vars(cls):
        return {}
    try:
        signature = inspect.signature(vars(cls)["__init__"])
    except ValueError:  # some constructors written in C do not tell
        return {}
    return {
        name: parameter
        for name, parameter in signature.parameters.items()
        if name not in ("self", "cls") and parameter.kind not in _VARIADIC
    }


def _get_all_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The arguments of the constructors of a class and its bases; the bases come first."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in reversed(cls.__mro__):
        arguments.update(_get_parameters(base))
    return arguments


def _inverted_index(parameters: Params) -> dict[str, Params]:
    """Return the parameters that hold each name; the outermost of several."""
    index: dict[str, Params] = {}
    for _, value in parameters.items():
        if isinstance(value, Params):
            index = {**_inverted_index(value), **index}
    return {**index, **dict.fromkeys(parameters, parameters)}
