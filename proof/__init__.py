"""Proof that a comparison is fair: studies whose truth is known, and what the package's statistics say of them.

python -m proof.null_study
"""
