"""Give the accelerator runner, and start it: `python -m monolith.tpu_runner --task=KEY ...`."""

from monolith.native_training.runner.runner_flags import RunnerFlags
from monolith.native_training.runner.tpu_runner import TPURunner, main

__all__ = ["RunnerFlags", "TPURunner", "main"]

if __name__ == "__main__":
    main()
