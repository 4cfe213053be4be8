"""Shares: how the data of a job is divided among its workers."""

__all__ = []
