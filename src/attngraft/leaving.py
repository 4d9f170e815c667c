"""Process exit without interpreter finalization, which is slow once torch is loaded."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave_now(code: int) -> NoReturn:
    """Run exit handlers, flush logs and streams, and exit without finalizing the interpreter.

    With torch loaded, finalization takes seconds, on a busy machine half a minute. A scheduler that sent SIGTERM may
    kill the process before that, although everything is saved.
    """
    with suppress(Exception):
        atexit._run_exitfuncs()
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
