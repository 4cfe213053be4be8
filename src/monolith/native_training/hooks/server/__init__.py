"""Hold the controller of a run: its server, its client and its messages."""
