"""Import path of the reference system; see `monolith.ops`."""

from monolith.native_training.ops.aligned import *  # noqa: F403
from monolith.native_training.ops.layout import *  # noqa: F403
from monolith.native_training.ops.mapping import *  # noqa: F403
from monolith.native_training.ops.offset_fill import *  # noqa: F403
from monolith.native_training.ops.segment import *  # noqa: F403
from monolith.native_training.ops.split import *  # noqa: F403
from monolith.native_training.ops.unique import *  # noqa: F403
