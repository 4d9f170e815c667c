"""Fast exit of a process."""

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave_now(code: int) -> NoReturn:
    """Run exit handlers, flush, and end this process.

    The regular shutdown of an interpreter with torch takes seconds, or half a minute on a busy machine. The sender
    of a SIGTERM may not wait that long, or may mistake a process that has already saved for a hung one.
    """
    with suppress(Exception):
        atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
