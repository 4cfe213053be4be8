"""Give every public name of the compiled core.

The import loads the core and has no fallback; see `monolith.ops.compiled`.
"""

from monolith.ops.compiled import load_native

load_native()

from monolith._native import *  # noqa: E402, F403 - only after a load with a clear error
