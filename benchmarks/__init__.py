"""Benchmarks that compare contenders within one run. `make bench` runs all; docs/BENCHMARKS.md has the numbers."""
