"""Hold the reference system: its modules at their import paths, and what they are made of.

The packages `tables`, `ops`, `tasks`, `slots`, `queues`, `saver`, `util` and `hooks` hold the
implementations; the other modules give them at the import paths of the reference system.
docs/reference/README.md shows where each thing is.
"""
