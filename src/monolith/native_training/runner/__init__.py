"""Implement the accelerator runner: `monolith.tpu_runner`."""
