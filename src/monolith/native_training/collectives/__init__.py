"""Implement the collectives of `hvd_lib`."""
