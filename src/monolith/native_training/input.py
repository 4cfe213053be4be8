"""Give random samples for factorization machines."""

from monolith.native_training.tasks.ffm_data import generate_ffm_example, slot_to_key

__all__ = ["generate_ffm_example", "slot_to_key"]
