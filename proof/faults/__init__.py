"""Real faults, and their effects on runs and studies.

python -m proof.faults --write docs/faults.md

Every case starts the package's command in a separate process, harms it at a chosen moment (`harm`), reruns the command
without the harm, and compares the results with those of an undisturbed run, bit for bit (`outcome`). The package has no code
for this. `tests/faults` runs the same cases.
"""
