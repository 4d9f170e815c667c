"""Benchmarks of attention operations: checked outputs, result files, scaling with the number of tokens."""
