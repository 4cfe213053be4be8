"""Give `CheckpointRestorerHook`, which restores a run before its first step, with listeners."""

from monolith.native_training.saver.hook import CheckpointRestorerHook as CheckpointRestorerHook
