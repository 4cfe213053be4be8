"""Saves of a run: `checkpoint_hook` takes cuts at a pace, `save_thread` writes them meanwhile."""
