"""`monolith env`: print the facts that a bug report needs."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from monolith import environment as config
from monolith.cli.console import emit_json, say

app = typer.Typer(add_completion=False)

_PACKAGES = ("monolith-torch", "torch", "numpy", "pyarrow", "fsspec", "s3fs", "pyzmq", "typer", "rich")
_VARIABLES = ("MONOLITH_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "CUDA_VISIBLE_DEVICES", "NO_COLOR")


@app.command(
    help="Example: monolith env\n\nPrint the facts that a bug report needs.",
    short_help="Print the facts that a bug report needs.",
)
def env(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")] = False,
) -> None:
    """Print versions, machine, compiler and environment."""
    facts = {
        "python": f"{platform.python_version()} ({sys.executable})",
        **{name: _version(name) for name in _PACKAGES},
        **_core(),
        **_torch(),
        **_machine(),
    }
    variables = config.variables(*_VARIABLES)
    if as_json:
        emit_json({**facts, "environment": variables})
        return
    width = max(map(len, facts))
    lines = [f"{name:{width}}  {'-' if v is None else v}" for name, v in facts.items()]
    lines += [f"{name}={value}" for name, value in variables.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    say("next: put this into a bug report; --json for machines")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _core() -> dict[str, Any]:
    """Return facts about the compiled core, or the reason why it cannot be loaded."""
    from monolith.ops.compiled import load_native

    try:
        native = load_native()
    except ImportError as error:
        return {"kernels": None, "compiler": None, "core": str(error)}
    return {"kernels": native.kernels_name(), "compiler": native.compiler()}


def _torch() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "torch_threads": torch.get_num_threads(),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda,
        "cuda_devices": ", ".join(devices) or None,
    }


def _machine() -> dict[str, Any]:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": platform.platform(),
        "cpu": _processor(),
        "num_cores": os.cpu_count(),
        "num_usable_cores": usable,
        "memory_gib": round(memory / 2**30, 1),
    }


def _processor(path: str = "/proc/cpuinfo") -> str:
    try:
        with open(path) as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
