"""Synchronous ranks: processes that train one task together, each with a part of all tables."""
