"""Studies: benchmarks of trained runs, and comparisons of many runs."""
