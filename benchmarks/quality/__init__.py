"""Studies of what a model gains in quality; `benchmarks/run.py` measures how fast it is."""
