"""Benchmarks that compare contenders within one run. `make bench` runs all; docs/benchmarks.md has the numbers."""
