"""Speed and memory of tables, beside baselines of the same run. Start with `run.py --help`."""
