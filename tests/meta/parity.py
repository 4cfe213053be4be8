"""Acceptance ids, as docs/parity.md lists them and as tests name them."""

import ast
import re

ACCEPTANCE_ID = re.compile(r"\b((?:G|(?:MN|NT|TS)-[A-Z0-9]+)-T)(\d+)(?:\.\.T(\d+))?")


def listed_ids(text):
    """The ids of a text; `NT-GENOPS-T1..T3` stands for three of them."""
    return {
        f"{prefix}{number}"
        for prefix, first, last in ACCEPTANCE_ID.findall(text)
        for number in range(int(first), int(last or first) + 1)
    }


def marked_ids(source):
    """The ids that the `pytest.mark.req` of a test file name."""
    if "mark.req" not in source:  # most files have none, and parsing takes long
        return set()
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    marks = (call for call in calls if getattr(call.func, "attr", "") == "req")
    return {ast.literal_eval(argument) for mark in marks for argument in mark.args}
