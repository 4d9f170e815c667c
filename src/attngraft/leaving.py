"""The end of a process that nobody waits for any more."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave_now(code: int) -> NoReturn:
    """End this process as soon as what must be done at the end is done.

    Taking an interpreter apart that holds torch takes seconds, on a busy machine half a minute. Who sent SIGTERM may not
    wait for that, and would take a process that has long saved for one that hangs.
    """
    with suppress(Exception):
        atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
