"""The number of each verb on the wire. A number is never given to another verb."""

from collections.abc import Mapping
from types import MappingProxyType

_VERBS = (
    # of every host
    "bye",
    # of one table, or of several
    *("apply_gradients", "apply_sums", "assign", "assign_add", "changes", "clear", "close"),
    *("close_cut", "contains", "count_clamped", "cursors", "cut_candidates", "cut_changes"),
    *("cut_chunk", "cut_entries", "drop_cursor", "erase", "evict", "evict_slice"),
    *("export_candidates", "export_chunk", "has_cut", "import_candidates", "import_rows"),
    *("lookup", "lookup_entry", "lookup_or_insert", "memory_report", "num_rows", "open_cut"),
    *("pull", "push", "reinitialize", "release_cut", "seen_time", "set_seen_time"),
    *("set_update_calls", "stats", "update_calls"),
    # of a server
    *("clients_state", "describe", "open_group", "open_table", "read_values", "restore_clients"),
    *("table_names", "value_names", "write_values"),
    # of files that shards write and read
    *("hurry_job", "job_state", "start_load", "start_save", "stop_job"),
    # of a cut of one table
    "cut_lookup",
    # of the job that workers share
    *("describe_job", "end_job", "export_dense", "export_job", "fence", "give_up_workers"),
    *("hold_job", "import_dense", "import_job", "job_number", "join_job", "leave_job"),
    *("note_held", "note_lost", "offer_shares", "open_job", "read_dense", "read_flags"),
    *("read_text", "release_job", "set_flag", "set_ready", "set_start_values", "set_steps"),
    *("set_text", "start_values", "step_job", "stop_workers", "take_share", "wait_held"),
    *("watch_job",),
    # of a server
    "renumber",
    # of the job that workers share
    *("note_parked", "park_job", "unpark_job", "worker_facts"),
    # of the data service
    *("close_stream", "data_shares", "data_workers", "describe_service", "join_service"),
    *("open_reading", "open_stream", "read_batch", "take_data"),
    # of a profiler
    "profile",
)

NUMBER_OF_VERB: Mapping[str, int] = MappingProxyType(
    {verb: number for number, verb in enumerate(_VERBS, start=1)}
)
"""Verb -> its number."""

VERB_OF_NUMBER: Mapping[int, str] = MappingProxyType(
    {number: verb for verb, number in NUMBER_OF_VERB.items()}
)
"""Number -> the verb."""
