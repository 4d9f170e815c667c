"""Real faults, and their effects on runs and studies.

python -m proof.faults --write docs/faults.md

Every case starts the package's command in a separate process, causes a fault at a chosen moment (`harm`), reruns the
command without the fault, and compares the results with those of an undisturbed run, bit for bit (`outcome`). The package
contains no code for these checks. `tests/faults` runs the same cases.
"""
