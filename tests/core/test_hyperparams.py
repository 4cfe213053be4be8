import pytest

from monolith.core import hyperparams
from monolith.native_training import hyperparams as neighbour
from monolith.native_training.util import params as implementation


def test_the_import_path_of_the_reference_system_is_ours():
    assert hyperparams.Params is implementation.Params
    names = ("InstantiableParams", "copy_params_to", "update_params", "allowed_kwargs", "get_uname")
    assert all(getattr(hyperparams, name) is getattr(neighbour, name) for name in names)


def test_an_unknown_parameter_names_the_nearest():
    params = hyperparams.Params()
    params.define("activation", "relu", "")
    with pytest.raises(AttributeError, match=r"^actuvation \(did you mean: \[activation\]\)$"):
        _ = params.actuvation
