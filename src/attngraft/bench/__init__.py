"""Benchmarks of attention operations: a check of outputs before timing, result files, scaling over the number of tokens."""
