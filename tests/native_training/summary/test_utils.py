import pytest
import torch
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_TENSOR, SummaryMetadata

from monolith.checkpoint import Contents, save, write
from monolith.native_training.summary import utils
from monolith.native_training.summary.utils import (
    SummaryType,
    create_summary_metadata,
    get_nas_weight_json,
    prepare_head,
)
from monolith.train import Run

NAMES, GROUPS = ["f1", "f2", "f3"], [["f1", "f2"], ["f3", "f4"], ["f5", "f6"]]
GATING = (
    b'{"tag_type": "gating", "segment_names": ["f1", "f2", "f3"], '
    b'"segment_sizes": [3, 5, 9], "group_index": [0, 0, 1]}'
)


@pytest.mark.req("TS-SUMUT-T1", "NT-SUMUT-T3")
def test_the_head_of_numbers_is_that_of_gating():
    assert prepare_head(NAMES, [3, 5, 9], GROUPS, out_type="bytes") == (GATING, "gating")


@pytest.mark.req("TS-SUMUT-T2", "NT-SUMUT-T3")
def test_the_head_of_lists_is_that_of_selecting_without_groups():
    sizes = [[3, 6], [5, 10], [4, 8, 16]]
    assert prepare_head(NAMES, sizes, GROUPS, out_type="bytes") == (
        b'{"tag_type": "selecting", "segment_names": ["f1", "f2", "f3"], '
        b'"segment_sizes": [[3, 6], [5, 10], [4, 8, 16]]}',
        "selecting",
    )


def test_a_head_is_text_tensor_or_dictionary():
    head, _ = prepare_head(NAMES, [3, 5, 9], GROUPS)
    assert (head.dtype, bytes(head.tolist())) == (torch.uint8, GATING)
    head, _ = prepare_head(NAMES, [3, 5, 9], GROUPS, out_type="json")
    assert list(head.items()) == [
        ("tag_type", "gating"),
        ("segment_names", NAMES),
        ("segment_sizes", [3, 5, 9]),
        ("group_index", [0, 0, 1]),
    ]
    with pytest.raises(ValueError, match=r"expected out_type of \('bytes', .*\), got 'text'"):
        prepare_head(NAMES, [3, 5, 9], out_type="text")


@pytest.mark.req("NT-SUMUT-T1")
@pytest.mark.parametrize("raw_tag", [None, "mixed"])
def test_without_segments_the_head_is_empty_and_the_type_that_of_the_caller(raw_tag):
    head, kind = prepare_head([], [], raw_tag=raw_tag)
    assert (head.dtype, head.shape, kind) == (torch.uint8, (0,), raw_tag)
    assert prepare_head(None, None, raw_tag=raw_tag, out_type="bytes") == (b"", raw_tag)
    assert prepare_head([], [], raw_tag=raw_tag, out_type="json") == ({}, raw_tag)


@pytest.mark.req("NT-SUMUT-T1")
def test_groups_in_use_are_numbered_in_their_order():
    assert utils._name_to_group_id(["f5", "f1", "f6"], GROUPS) == {"f5": 1, "f1": 0, "f6": 1}
    groups = [[f"g{number}"] for number in range(10)]
    assert utils._name_to_group_id(["g8", "g1"], groups) == {"g8": 1, "g1": 0}


def test_without_groups_segments_are_numbered_in_their_order():
    head, _ = prepare_head(NAMES, [3, 5, 9], raw_tag=SummaryType.fi_train, out_type="json")
    assert (head["tag_type"], head["group_index"]) == ("fi_train", [0, 1, 2])


@pytest.mark.parametrize("raw_tag", ["selecting", "mixed", "simple", "fi_direct"])
def test_other_types_have_no_groups(raw_tag):
    head, kind = prepare_head(NAMES, [3, 5, 9], GROUPS, raw_tag, out_type="json")
    assert (kind, "group_index" in head) == (raw_tag, False)


def test_a_segment_in_no_group_is_an_error():
    with pytest.raises(AssertionError, match="expected 'f7' in a group"):
        prepare_head(["f1", "f7"], [1, 2], GROUPS)


def test_the_constants_are_those_of_the_reference():
    assert (utils.PLUGIN_NAME, utils.ARCH_TENSOR_PREFIX) == ("monolith", "arch_tensor")
    assert (utils.KTYPE, utils.KMETA, utils.KDATA) == ("tag_type", "meta", "data")
    assert utils.MONOLITH_NAS_DATA == "monolith_nas_weight"
    assert utils.MONOLITH_FI_DATA == "monolith_feature_insight"
    kinds = {name: kind for name, kind in vars(SummaryType).items() if not name.startswith("_")}
    assert list(kinds) == ["gating", "selecting", "mixed", "simple", "fi_direct", "fi_train"]
    assert list(kinds) == list(kinds.values())


@pytest.mark.req("NT-SUMUT-T3")
def test_metadata_of_text_and_of_its_bytes_are_equal():
    metadata = create_summary_metadata("what it is", '{"a": "ü"}')
    assert metadata == create_summary_metadata("what it is", '{"a": "ü"}'.encode())
    read = SummaryMetadata.FromString(metadata)
    assert read.plugin_data.plugin_name == "monolith"
    assert read.plugin_data.content.decode() == '{"a": "ü"}'
    assert (read.summary_description, read.data_class) == ("what it is", DATA_CLASS_TENSOR)
    assert read.SerializeToString() == metadata


@pytest.mark.req("NT-SUMOP-T3")
def test_the_bytes_of_metadata_stay():
    assert create_summary_metadata().hex() == "0a0a0a086d6f6e6f6c6974682002"
    assert create_summary_metadata("gating", "{}").hex() == (
        "0a0e0a086d6f6e6f6c69746812027b7d1a06676174696e672002"
    )


def saved(path, values, step=1, name="x/arch_tensor/w", **dense):
    tensors = {"a": torch.ones(2), name: torch.as_tensor(values), **dense}
    return save(Contents(dense=tensors, step=step), path)


@pytest.mark.req("NT-SUMUT-T2")
def test_weights_are_shortest_decimals_of_float32(tmp_path):
    saved(tmp_path, [[0.5, 0.25], [0.1, 1e-5]])
    assert get_nas_weight_json(tmp_path) == ["0.5", "0.25", "0.1", "1e-05"]


@pytest.mark.req("NT-SUMUT-T2")
def test_a_checkpoint_without_such_a_variable_is_an_error(tmp_path):
    saved(tmp_path, [0.5], name="weight")
    with pytest.raises(Exception, match=r"^not arch_weights in ckpt$"):
        get_nas_weight_json(tmp_path)
    assert get_nas_weight_json(tmp_path, "weig") == ["0.5"]


def test_the_first_name_that_has_the_prefix_counts(tmp_path):
    saved(tmp_path, [0.5], **{"y/arch_tensor": torch.ones(1)})
    assert get_nas_weight_json(tmp_path) == ["0.5"]
    assert get_nas_weight_json(tmp_path, "y/") == ["1.0"]


def test_a_directory_stands_for_its_current_checkpoint_and_a_prefix_for_itself(tmp_path):
    first = saved(tmp_path, [0.5], step=1)
    saved(tmp_path, [0.75], step=2)
    assert get_nas_weight_json(tmp_path) == ["0.75"]
    assert get_nas_weight_json(first) == ["0.5"]
    (file,) = tmp_path.glob("*-1.dense-*.safetensors")
    assert get_nas_weight_json(file) == ["0.5"]


def test_weights_are_read_once_for_each_save(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr(utils, "_decimals", lambda tensor: reads.append(1) or tensor.tolist())
    contents = [Contents(dense={"arch_tensor": torch.tensor([value])}) for value in (0.5, 0.75)]
    with Run().as_current():
        write(contents[0], tmp_path / "c")
        assert get_nas_weight_json(tmp_path / "c") == get_nas_weight_json(tmp_path / "c") == [0.5]
        assert len(reads) == 1
        write(contents[1], tmp_path / "c")  # under the same name
        assert get_nas_weight_json(tmp_path / "c") == [0.75]


def test_a_caller_may_change_the_weights_it_gets(tmp_path):
    saved(tmp_path, [0.5])
    get_nas_weight_json(tmp_path).clear()
    assert get_nas_weight_json(tmp_path) == ["0.5"]
