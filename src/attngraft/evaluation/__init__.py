"""Evaluation beyond clean accuracy: attacks, missing parts and corruptions as functions of tensors, and suites of them."""
