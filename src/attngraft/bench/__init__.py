"""Benchmarks of attention operations: output checks, result files, scaling with the number of tokens."""
