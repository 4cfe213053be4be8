"""Joins impressions and actions to labelled samples: see `join_events`."""

from monolith.data.stream.join.join_settings import JoinSettings
from monolith.data.stream.join.join_stage import join_events
from monolith.data.stream.join.joiner import OnlineJoiner

__all__ = ["JoinSettings", "OnlineJoiner", "join_events"]
