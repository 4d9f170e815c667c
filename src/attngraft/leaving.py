"""Fast exit of a process."""

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave_now(code: int) -> NoReturn:
    """Run exit handlers, flush, and end this process.

    The regular shutdown of an interpreter with torch takes seconds, on a busy machine half a minute. The sender of a
    SIGTERM may not wait that long, and may take a process that has saved for one that hangs.
    """
    with suppress(Exception):
        atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
