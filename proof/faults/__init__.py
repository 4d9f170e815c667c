"""Faults made for real, and what becomes of runs and studies that meet them.

python -m proof.faults --write docs/faults.md

Every case starts the package's own command in a process of its own, harms it at a chosen moment (`harm`), repeats the
command without the harm, and compares what comes out with an undisturbed run, bit for bit (`outcome`). The package knows
nothing of this. `tests/faults` runs the same cases.
"""
