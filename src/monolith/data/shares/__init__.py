"""Shares: how the data of a job is divided among its workers."""

from monolith.data.shares.division import Shares, split_source

__all__ = ["Shares", "split_source"]
