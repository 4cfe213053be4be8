"""Import path of the reference system; see `monolith.native_training.tasks.ffm_data`."""

from monolith.native_training.tasks.ffm_data import generate_ffm_example, slot_to_key

__all__ = ["generate_ffm_example", "slot_to_key"]
