"""Evaluation beyond clean accuracy, under the suites that each task defines."""
