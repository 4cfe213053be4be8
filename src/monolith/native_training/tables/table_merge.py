"""Which features share a table, and what the shared table is called."""

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from monolith.native_training.tables.entry_config import HashTableConfigInstance

_OLD_SLOT = re.compile(r"\Afc_(?=slot_[0-9]+\Z)")


class SubTables(NamedTuple):
    """The tables of some features.

    Attributes:
        sub_table_name_to_config: what each table is, in the order of the features.
        feature_to_sub_table_name: the table of each feature.
    """

    sub_table_name_to_config: dict[str, HashTableConfigInstance]
    feature_to_sub_table_name: dict[str, str]


def get_sub_table_name(strs: Iterable[str]) -> tuple[str, str]:
    """The names joined by commas, and the MD5 of that as hex digits.

    Example:
        >>> get_sub_table_name(["a", "b"])
        ('a,b', 'b345e1dc09f20fdefdea469f09167892')
    """
    joined = ",".join(strs)
    return joined, hashlib.md5(joined.encode(), usedforsecurity=False).hexdigest()


def older_name(name: str) -> str:
    """Return the name that older checkpoints have for a feature: without `fc_` of `fc_slot_<n>`.

    Example:
        >>> older_name("fc_slot_12"), older_name("fc_slot_user")
        ('slot_12', 'fc_slot_user')
    """
    return _OLD_SLOT.sub("", name)


def merge_feature_config(
    feature_configs: Mapping[str, HashTableConfigInstance], *, ids_carry_slot: bool
) -> SubTables:
    """Features with equal configs share one table, if their ids cannot meet in it.

    A merged table also has the name that older checkpoints gave it, without the `fc_` of
    `fc_slot_<digits>`, among its extra restore names.

    Args:
        feature_configs: by name of the feature.
        ids_carry_slot: the slot of a feature is a part of its ids, as in fids of both versions.
            Plain ids of two features would share rows, so they are never merged.
    """
    if not ids_carry_slot:
        return no_merge_feature_config(feature_configs)
    members: dict[HashTableConfigInstance, list[str]] = {}
    for name in sorted(feature_configs):
        members.setdefault(feature_configs[name], []).append(name)
    tables: dict[str, HashTableConfigInstance] = {}
    table_of: dict[str, str] = {}
    for config, names in members.items():
        table = get_sub_table_name(names)[1]
        given = [
            other for name in names for other in feature_configs[name].extra_restore_names or ()
        ]
        older = get_sub_table_name(map(older_name, names))[1]
        extra = dict.fromkeys([*given, older])  # in order, each once
        extra.pop(table, None)
        tables[table] = dataclasses.replace(config, extra_restore_names=tuple(extra) or None)
        table_of.update(dict.fromkeys(names, table))
    return SubTables(tables, {name: table_of[name] for name in sorted(table_of)})


def no_merge_feature_config(feature_configs: Mapping[str, HashTableConfigInstance]) -> SubTables:
    """Every feature has a table of its own, with its name."""
    names = sorted(feature_configs)
    return SubTables({name: feature_configs[name] for name in names}, {n: n for n in names})
