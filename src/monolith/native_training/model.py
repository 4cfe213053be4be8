"""Import path of the reference system; see `monolith.train.ffm`."""

from monolith.train import ffm
from monolith.train.ffm import FFMParams as FFMParams

_NUM_SLOTS, _VOCAB_SIZES, _NUM_EXAMPLES = ffm.NUM_SLOTS, ffm.VOCAB_SIZES, ffm.NUM_EXAMPLES
_FFM_SLOT = ffm.FFM_SLOT
_parse_example = ffm.parse_example
TestFFMModel = ffm.FFMTask
