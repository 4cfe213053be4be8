"""Import path of the reference system; see `monolith.data.ffm`."""

from monolith.data.ffm import generate_ffm_example, slot_to_key

__all__ = ["generate_ffm_example", "slot_to_key"]
