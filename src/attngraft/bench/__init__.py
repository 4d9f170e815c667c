"""Timing and counting: one harness for all of them, behind a correctness gate.

`paired` times a candidate against a baseline; `macs` counts multiply-adds, parameters and activation bytes; `gate`
checks outputs before anything is timed; `result` and `machine` record what was measured, where, and by which command.
"""

from attngraft.bench.macs import activation_bytes, count_macs, count_parameters
from attngraft.bench.paired import Bar, Duration, PairedRatio, duration, paired_ratio, several

__all__ = [
    "Bar",
    "Duration",
    "PairedRatio",
    "activation_bytes",
    "count_macs",
    "count_parameters",
    "duration",
    "paired_ratio",
    "several",
]
