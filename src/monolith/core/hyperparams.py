"""Give `Params` and `InstantiableParams`, at the path that tasks import them from."""

from monolith.native_training.util.instantiable_params import ALLOWED_KWARGS, InstantiableParams
from monolith.native_training.util.params import Params, copy_params_to, update_params
from monolith.native_training.util.run_registry import unique_name

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
