"""Saves and loads of shards: each server writes and reads the files of its own rows."""
