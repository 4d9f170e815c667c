"""Start method of a study's worker processes.

Importing torch and the hosts takes seconds. On Linux, workers are therefore forked from a process that has imported
everything and has not computed anything (multiprocessing's "forkserver"); elsewhere they are spawned.
"""

import multiprocessing
import signal
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext, SpawnContext

#: imported before workers are forked
_MODULES = ["attngraft.study.runner", "attngraft.models", "attngraft.tasks.classification.task"]


def worker_context() -> ForkServerContext | SpawnContext:
    """Return the context that starts workers. The first call starts the process that they are forked from."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    # that process and its workers must not receive Ctrl-C; a study stops its workers itself
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context
