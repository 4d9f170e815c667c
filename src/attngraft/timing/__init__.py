"""Timing by interleaved pairs, counts of multiply-adds and parameters, and memory use."""

from attngraft.timing.macs import activation_bytes, count_macs, count_parameters
from attngraft.timing.paired import Bar, Duration, PairedRatio, duration, paired_ratio, several

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
