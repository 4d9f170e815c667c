"""Evaluation beyond clean accuracy: attacks, occlusion and corruptions as functions of tensors, and suites of them."""
