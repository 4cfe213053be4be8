"""Give the factorization machine that tests and examples train, and its samples."""

from monolith.native_training.tasks import ffm
from monolith.native_training.tasks.ffm import FFMParams as FFMParams

_NUM_SLOTS, _VOCAB_SIZES, _NUM_EXAMPLES = ffm.NUM_SLOTS, ffm.VOCAB_SIZES, ffm.NUM_EXAMPLES
_FFM_SLOT = ffm.FFM_SLOT
_parse_example = ffm.parse_example
TestFFMModel = ffm.FFMTask
