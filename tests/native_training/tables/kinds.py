"""Kinds of servers that a test runs on."""

import pytest

PROCESSES = pytest.param(
    "processes", marks=[pytest.mark.dist, pytest.mark.thorough, pytest.mark.req("NT-DPS-T14")]
)

on_every_kind = pytest.mark.parametrize("servers_of", ["objects", PROCESSES], indirect=True)
