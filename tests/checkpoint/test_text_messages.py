"""State files agree with the text format of google.protobuf, in both directions."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st

from monolith.checkpoint.state import (
    CheckpointState,
    HashTableType,
    MonolithCheckpointState,
    read_checkpoint_state,
    read_monolith_checkpoint_state,
    write_checkpoint_state,
    write_monolith_checkpoint_state,
)
from tests.data.records.protos import CHECKPOINT, classes

pytestmark = pytest.mark.req("G-T5")

TYPES = classes(CHECKPOINT)
NEWER = classes(CHECKPOINT, newer=True)
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)
PATHS = NAMES.map(lambda name: f"/models/{name}")
TIMES = st.floats(0, 1e12)
STATES = st.builds(
    CheckpointState,
    PATHS,
    st.lists(PATHS, max_size=3),
    st.lists(TIMES, max_size=3),
    st.none() | TIMES,
)
MONOLITH_STATES = st.builds(
    MonolithCheckpointState,
    st.lists(PATHS, max_size=3),
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.sampled_from(list(HashTableType)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("model")


def fields_of(message):
    return {field.name: value for field, value in message.ListFields()}


@given(state=STATES)
def test_google_reads_our_checkpoint_file(folder, state):
    write_checkpoint_state(folder, state)
    message = text_format.Parse((folder / "checkpoint").read_text(), TYPES["CheckpointState"]())
    assert message.model_checkpoint_path == state.model_checkpoint_path
    assert list(message.all_model_checkpoint_paths) == list(state.all_model_checkpoint_paths)
    assert list(message.all_model_checkpoint_timestamps) == list(
        state.all_model_checkpoint_timestamps
    )
    kept = message.last_preserved_timestamp
    assert (kept if message.HasField("last_preserved_timestamp") else None) == (
        state.last_preserved_timestamp
    )


@given(state=STATES, is_newer=st.booleans(), is_utf8=st.booleans(), is_line=st.booleans())
def test_a_checkpoint_file_of_google_is_read(folder, state, is_newer, is_utf8, is_line):
    message = (NEWER if is_newer else TYPES)["CheckpointState"](
        model_checkpoint_path=state.model_checkpoint_path,
        all_model_checkpoint_paths=state.all_model_checkpoint_paths,
        all_model_checkpoint_timestamps=state.all_model_checkpoint_timestamps,
        last_preserved_timestamp=state.last_preserved_timestamp,
    )
    if is_newer:
        message.newer_text = 'a "quoted" text: {'
        message.newer_numbers.extend([1, 1 << 63])
    text = text_format.MessageToString(message, as_utf8=is_utf8, as_one_line=is_line)
    (folder / "checkpoint").write_text(text)
    read = read_checkpoint_state(folder)
    paths = list(state.all_model_checkpoint_paths)
    current = state.model_checkpoint_path
    assert read.model_checkpoint_path == current
    assert list(read.all_model_checkpoint_paths) == (
        paths if current in paths else [*paths, current]
    )
    assert list(read.all_model_checkpoint_timestamps) == list(state.all_model_checkpoint_timestamps)
    assert read.last_preserved_timestamp == state.last_preserved_timestamp


@given(state=MONOLITH_STATES)
def test_google_reads_our_monolith_checkpoint_file(folder, state):
    write_monolith_checkpoint_state(folder, state)
    text = (folder / "monolith_checkpoint").read_text()
    message = text_format.Parse(text, TYPES["MonolithCheckpointState"]())
    expected = {
        "exempt_model_checkpoint_paths": list(state.exempt_model_checkpoint_paths),
        "last_checkpoint_save_timestamp": state.last_checkpoint_save_timestamp,
        "builtin_hash_table_type": state.builtin_hash_table_type,
    }
    assert fields_of(message) == {
        name: value for name, value in expected.items() if value is not None and value != []
    }


@given(state=MONOLITH_STATES, is_number=st.booleans())
def test_a_monolith_checkpoint_file_of_google_is_read(folder, state, is_number):
    message = TYPES["MonolithCheckpointState"](
        exempt_model_checkpoint_paths=state.exempt_model_checkpoint_paths,
        last_checkpoint_save_timestamp=state.last_checkpoint_save_timestamp,
        builtin_hash_table_type=state.builtin_hash_table_type,
    )
    text = text_format.MessageToString(message, use_short_repeated_primitives=is_number)
    (folder / "monolith_checkpoint").write_text(text)
    read = read_monolith_checkpoint_state(folder)
    assert list(read.exempt_model_checkpoint_paths) == list(state.exempt_model_checkpoint_paths)
    assert read.last_checkpoint_save_timestamp == state.last_checkpoint_save_timestamp
    assert read.builtin_hash_table_type == state.builtin_hash_table_type
