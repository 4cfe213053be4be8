"""Give the small helpers: collections, gradients, lists, shapes, names, `params` of a class."""

from monolith import environment as _config
from monolith.cluster.servers import PS_JOB_NAME as PS_JOB_NAME
from monolith.cluster.servers import ps_label as _ps_label
from monolith.native_training.util.class_params import _get_all_parameters as _get_all_parameters
from monolith.native_training.util.class_params import _get_parameters as _get_parameters
from monolith.native_training.util.class_params import _inverted_index as _inverted_index
from monolith.native_training.util.class_params import params as params
from monolith.native_training.util.class_params import with_params as with_params
from monolith.native_training.util.gradients import (
    propagate_back_dict_gradients as propagate_back_dict_gradients,
)
from monolith.native_training.util.gradients import (
    propagate_back_gradients as propagate_back_gradients,
)
from monolith.native_training.util.lists import check_list as check_list
from monolith.native_training.util.lists import extend_as_list as extend_as_list
from monolith.native_training.util.lists import to_list as to_list
from monolith.native_training.util.net import get_local_host as get_local_host
from monolith.native_training.util.run_registry import add_to_collections as add_to_collections
from monolith.native_training.util.run_registry import check_ops_dependence as check_ops_dependence
from monolith.native_training.util.run_registry import get_collection as get_collection
from monolith.native_training.util.shapes import get_ndim as get_ndim
from monolith.native_training.util.shapes import int_shape as int_shape
from monolith.util import names as _names
from monolith.util.names import to_snake_case as to_snake_case

ps_device = _ps_label
get_debugging_info_file_name = _names.debugging_info_path
get_meta_graph_file_name = _names.module_tree_path
get_metric_prefix = _config.metric_prefix
get_test_tmp_dir = _config.tests_directory
set_metric_prefix = _config.set_metric_prefix
