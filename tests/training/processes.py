"""Runs in real processes of their own: started, killed, stopped, and started together."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from attngraft.training.progress import Silent

_context = multiprocessing.get_context("forkserver")  # a clean process that has imported everything, and forks
_context.set_forkserver_preload(["tests.training.toys", "attngraft.training.loop", "attngraft.models"])


def first_step(folder: Path) -> Path:
    """A file beside `folder` that a run there makes with its first step. From then on it saves itself when it is to stop."""
    return folder.with_name(f"{folder.name}-first-step")


class FirstStep(Silent):
    """Tells of it by `first_step`'s file."""

    def __init__(self, folder: Path) -> None:
        self._file = first_step(folder)

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        self._file.touch()


def start(
    recipe: Mapping[str, Any],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    prepare: Callable[[], None] | None = None,
) -> BaseProcess:
    """A process that trains the toy recipe (plain values) in `folder`, after `prepare()`; it exits like the command line."""
    arguments = (dict(recipe), str(folder), dict(environment or {}), prepare)
    process = _context.Process(target=_train, args=arguments)
    process.start()
    return process


def finish(process: BaseProcess, *, within: float = 120.0) -> int | None:
    """Its exit code."""
    process.join(within)
    if process.is_alive():
        process.kill()
        raise TimeoutError("a training process hangs")
    return process.exitcode


def start_together(
    recipe: Mapping[str, Any], folder: Path, *, processes: int, prepare: Callable[[], None] | None = None
) -> list[BaseProcess]:
    """Processes of one distributed run, as torchrun would start them."""
    return [start(recipe, folder, environment, prepare) for environment in _ranks(processes)]


def run_together(function: Callable[[str], None], argument: str, *, processes: int) -> list[BaseProcess]:
    """`function(argument)` in processes that form one group."""
    group = [_context.Process(target=_run, args=(function, argument, ranks)) for ranks in _ranks(processes)]
    for process in group:
        process.start()
    return group


def _ranks(processes: int) -> list[dict[str, str]]:
    """The environment of each process of a group."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    own = [
        {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(processes)} for rank in range(processes)
    ]
    return [common | each for each in own]


def _run(function: Callable[[str], None], argument: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    function(argument)

    import torch

    torch.distributed.destroy_process_group()


def _train(
    recipe: dict[str, Any], folder: str, environment: dict[str, str], prepare: Callable[[], None] | None
) -> None:
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process started in the background ignores it

    import torch

    import tests.training.toys  # noqa: F401 -- registers task and hosts
    from attngraft.errors import AttngraftError
    from attngraft.training.loop import train
    from attngraft.training.recipe import recipe_from_dict

    torch.set_num_threads(1)
    if prepare is not None:
        prepare()
    multiprocessing.set_start_method("fork", force=True)  # for loading processes; else they would inherit forkserver
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = (
        0.1  # orphans of a killed run leave sooner: the test waits
    )
    try:
        train(recipe_from_dict(recipe), folder, progress=FirstStep(Path(folder)))
    except KeyboardInterrupt:
        sys.exit(130)
    except AttngraftError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    if environment:
        torch.distributed.destroy_process_group()
