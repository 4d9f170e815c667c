"""Start method of a study's worker processes.

Importing torch and the hosts takes seconds. On Linux, workers are therefore forked from a process that has imported
everything and has not computed anything (multiprocessing's "forkserver"); elsewhere they are spawned.
"""

import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any

#: imported before workers are forked
_MODULES = ["attngraft.study.runner", "attngraft.models", "attngraft.tasks.classification.task"]


def worker_context(*, fork: bool = False) -> ForkServerContext | SpawnContext:
    """Return the context that starts workers. The first call starts the process that they are forked from.

    Args:
        fork: fork that process from this one, which must not have computed anything, after importing everything here. By
            default, it is a new process, which imports everything again.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    for module in _MODULES if fork else ():
        importlib.import_module(module)
    starting: Any = util
    start = starting.spawnv_passfds
    # that process and its workers must not receive Ctrl-C; a study stops its workers itself
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    starting.spawnv_passfds = _forked if fork else start
    try:
        forkserver.ensure_running()
    finally:
        starting.spawnv_passfds = start
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


def _forked(path: Any, arguments: Sequence[Any], passed: Sequence[int]) -> int:
    """Run the last of `arguments`, a program, in a fork of this process; return its process number.

    Replaces `multiprocessing.util.spawnv_passfds`, which starts a new interpreter. As there, only the standard streams and
    the file descriptors `passed` stay open.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()  # or the fork writes it again
    number = os.fork()
    if number:
        return number
    try:
        kept = sorted({0, 1, 2, *passed})
        for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
            os.closerange(low + 1, high)
        server: Any = forkserver._forkserver
        server.__init__()  # this process holds its lock
        exec(arguments[-1], {})
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(0)
