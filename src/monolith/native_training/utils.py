"""Import path of the reference system; see `monolith.util.placement`."""

from monolith.util.placement import PS_JOB_NAME as PS_JOB_NAME
from monolith.util.placement import ps_label as _ps_label

ps_device = _ps_label
