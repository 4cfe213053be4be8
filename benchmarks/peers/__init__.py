"""Programs that run the benchmarks' workload on other systems, with their own interpreters."""
