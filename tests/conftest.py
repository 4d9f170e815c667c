"""What all tests share: the folder of reference data, quiet determinism, and plain little inputs."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import settings

from tests.seeding import seed

# a busy machine is no failure
settings.register_profile("attngraft", deadline=None)
settings.load_profile("attngraft")


def pytest_configure() -> None:
    """Models run on the CPU, where results are bitwise reproducible; tests of a GPU place their tensors themselves.

    A shell starts what it runs in the background with Ctrl-C ignored, and many tests press it.
    """
    os.environ.setdefault("ACCELERATE_USE_CPU", "true")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exempt imported modules and collected tests, which stay to the end, from garbage collection.

    Collecting less often than by default saves a twelfth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_unconfigure() -> None:
    """At the very end all may go."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with facts, conformance vectors and small real data sets; skips where it is not at hand."""
    path = Path(os.environ.get("ATTNGRAFT_SHARED", Path(__file__).resolve().parents[1].parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"reference data not found at {path} (set ATTNGRAFT_SHARED)")
    return path


@pytest.fixture(scope="session", autouse=True)
def _costs() -> None:
    """Studies time each model in five rounds, for up to a second, not two minutes."""
    from attngraft.study import cost, runner

    runner.COST_SECONDS, cost.PAIRS = 1.0, cost.FEWEST_PAIRS


@pytest.fixture(scope="session", autouse=True)
def _plot_files() -> None:
    """Studies write no plot files, which takes seconds; the same panels are drawn in their pages."""
    from attngraft.report import figures

    figures.plot_files = lambda result: {}


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is remembered of images goes to a folder of the tests' own, not to the user's."""
    os.environ["ATTNGRAFT_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _no_fsync() -> None:
    """No test takes the power away: files need not reach the disk before a test goes on."""
    os.fsync = lambda descriptor: None


@pytest.fixture(scope="session", autouse=True)
def _command_line() -> None:
    """Build the command line once, not in each call, which takes a tenth of a second."""
    typer.main.get_command = functools.cache(typer.main.get_command)


@pytest.fixture(scope="module", autouse=True)
def _compiled_code() -> Iterator[None]:
    """Discard what a test module compiled: it takes memory, and each graft would search the memory for wrappers."""
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _seeded() -> None:
    seed(0)
