"""Profiles of the calls of a function."""

import functools
import os
import tempfile
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def profile_it(fn: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorate a function to write a trace of each call, also of a call that fails.

    Traces are files `*.pt.trace.json` for Perfetto and TensorBoard, each with the time in its
    name, in the folder `tests_profile` below the system's folder for temporary files. Only one
    call can be profiled at a time.
    """

    @functools.wraps(fn)
    def profiled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        folder = os.path.join(tempfile.gettempdir(), "tests_profile")
        write = torch.profiler.tensorboard_trace_handler(folder)
        with torch.profiler.profile(on_trace_ready=write, record_shapes=True):
            return fn(*args, **kwargs)

    return profiled
