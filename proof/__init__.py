"""Checks of the package's statistics on studies with a known true difference, and of its behavior under faults.

python -m proof.null_study, python -m proof.folds
"""
