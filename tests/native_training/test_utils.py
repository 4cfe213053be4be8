import pytest
import torch

from monolith import environment as config
from monolith.cluster import servers as placement
from monolith.native_training import hyperparams, utils
from monolith.native_training.util import class_params, gradients, lists, net, run_registry, shapes
from monolith.native_training.util.instantiable_params import ALLOWED_KWARGS
from monolith.util import names


@pytest.mark.req("TS-UTIL-T1")
def test_propagate_back_dict_gradients():
    x = torch.tensor(8.0, requires_grad=True)
    y = 2 * x
    grouped = utils.propagate_back_dict_gradients([(3 * y, y)], {x: "group1"}, {y})
    assert list(grouped) == ["group1"]
    assert [(dx.item(), x.item()) for dx, x in grouped["group1"]] == [(96, 8)]


@pytest.mark.parametrize(
    ("name", "ours"),
    {
        "PS_JOB_NAME": placement.PS_JOB_NAME,
        "_get_all_parameters": class_params._get_all_parameters,
        "_get_parameters": class_params._get_parameters,
        "_inverted_index": class_params._inverted_index,
        "check_list": lists.check_list,
        "extend_as_list": lists.extend_as_list,
        "get_debugging_info_file_name": names.debugging_info_path,
        "get_local_host": net.get_local_host,
        "get_meta_graph_file_name": names.module_tree_path,
        "get_metric_prefix": config.metric_prefix,
        "get_ndim": shapes.get_ndim,
        "get_test_tmp_dir": config.tests_directory,
        "int_shape": shapes.int_shape,
        "params": class_params.params,
        "propagate_back_dict_gradients": gradients.propagate_back_dict_gradients,
        "propagate_back_gradients": gradients.propagate_back_gradients,
        "ps_device": placement.ps_label,
        "set_metric_prefix": config.set_metric_prefix,
        "to_list": lists.to_list,
        "to_snake_case": names.to_snake_case,
        "with_params": class_params.with_params,
    }.items(),
)
def test_a_name_of_the_reference_system_is_ours(name, ours):
    assert getattr(utils, name) is ours


def test_parameters_of_the_reference_system():
    assert hyperparams.allowed_kwargs is ALLOWED_KWARGS
    assert hyperparams.get_uname is run_registry.unique_name
    assert hyperparams.InstantiableParams(int).cls is int
