"""Import path of the reference system (`monolith.core.hyperparams`); see `monolith.util.params`."""

from monolith.util.instantiable_params import ALLOWED_KWARGS, InstantiableParams
from monolith.util.params import Params, copy_params_to, update_params
from monolith.util.run_registry import unique_name

__all__ = [
    "InstantiableParams",
    "Params",
    "allowed_kwargs",
    "copy_params_to",
    "get_uname",
    "update_params",
]

allowed_kwargs = ALLOWED_KWARGS
get_uname = unique_name
