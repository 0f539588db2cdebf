"""Measurements, as ratios in one run. `make bench` runs them all; docs/BENCHMARKS.md has the numbers."""
