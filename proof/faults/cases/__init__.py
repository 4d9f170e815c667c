"""All faults, in the order of the table."""

from __future__ import annotations

from proof.faults.case import Case
from proof.faults.cases import diverged, killed, loading, memory, places, room, stopped, together

#: heading -> its lines
CASES: dict[str, tuple[Case, ...]] = {
    "Killed: `kill -9`, or the kernel for want of memory": killed.CASES,
    "No room: full disk, quota, file size limit": room.CASES,
    "Asked to stop": stopped.CASES,
    "Processes that load data": loading.CASES,
    "Memory of the device": memory.CASES,
    "A loss that is not a number": diverged.CASES,
    "Two at work in one folder": together.CASES,
    "Clocks and places": places.CASES,
}
