"""Import path of the reference system; see `monolith.ops`."""

from monolith.ops.aligned import *  # noqa: F403
from monolith.ops.layout import *  # noqa: F403
from monolith.ops.mapping import *  # noqa: F403
from monolith.ops.offset_fill import *  # noqa: F403
from monolith.ops.segment import *  # noqa: F403
from monolith.ops.split import *  # noqa: F403
from monolith.ops.unique import *  # noqa: F403
