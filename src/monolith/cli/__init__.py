"""The command line: one file per command; nothing imports it."""
