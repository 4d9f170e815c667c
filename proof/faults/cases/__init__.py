"""All faults, in the order of the table."""

from __future__ import annotations

from proof.faults.case import Case
from proof.faults.cases import diverged, killed, loading, memory, places, room, stopped, together

#: heading -> its lines
CASES: dict[str, tuple[Case, ...]] = {
    "Killed: `kill -9`, or the kernel when out of memory": killed.CASES,
    "No space: full disk, quota, file size limit": room.CASES,
    "Signals": stopped.CASES,
    "Data loading processes": loading.CASES,
    "Device memory": memory.CASES,
    "Non-finite loss": diverged.CASES,
    "Two processes in one folder": together.CASES,
    "Clocks and paths": places.CASES,
}
