"""Evaluation beyond clean accuracy: runs models under the suites that their tasks define."""
