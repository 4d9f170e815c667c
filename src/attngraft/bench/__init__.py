"""Benchmarks of attention operations: sizes, a correctness check before anything is timed, result files."""
