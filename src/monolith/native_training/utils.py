"""Import path of the reference system; see `monolith.util.placement`."""

from monolith.util.placement import PS_JOB_NAME as PS_JOB_NAME
from monolith.util.placement import ps_label as _ps_label
from monolith.util.run_registry import add_to_collections as add_to_collections
from monolith.util.run_registry import check_ops_dependence as check_ops_dependence
from monolith.util.run_registry import get_collection as get_collection

ps_device = _ps_label
