"""Real training: how many runs are made at a time, and by whom, changes no bit of what they leave."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from attngraft.study import StudyConfig, Tools, compare, incomplete, study_from_dict
from attngraft.study.executors import Executor, Processes, Ray
from attngraft.study.plan import resolve_runs

HOST = {
    "name": "vit_tiny_patch16_224",
    "args": {"img_size": 8, "patch_size": 4, "depth": 2, "embed_dim": 24, "num_heads": 3, "in_chans": 1},
}


def tiny(out: Path, **changes: object) -> StudyConfig:
    """Two variants, with what could depend on processes: shuffling, augmentation, mixup, threads."""
    plain = {
        "host": HOST,
        "grafts": ["cb"],
        "data": "digits",
        "set": ["train.batch_size=128", "task.augment.mixup=0.2", "train.threads=1"],
        "seeds": 2,
        "epochs": 2,
        "out": str(out),
    }
    return study_from_dict({**plain, **changes})


def carry_out(config: StudyConfig, executor: Executor | None = None) -> None:
    quick = Tools(measure_throughput=lambda config, benchmark: None, write_report=lambda result, folder: folder)  # type: ignore[arg-type, return-value]
    assert not incomplete(compare(config, executor=executor, costs=False, tools=quick))


def same_bits(one: StudyConfig, other: StudyConfig) -> bool:
    """Whether metrics (but for seconds), predictions and best weights of all runs are the same, bit for bit."""
    return all(_same(a.folder, b.folder) for a, b in zip(resolve_runs(one).runs, resolve_runs(other).runs, strict=True))


def _same(one: Path, other: Path) -> bool:
    rows = [
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in path.read_text().splitlines()]
        for path in (one / "metrics.jsonl", other / "metrics.jsonl")
    ]
    with np.load(one / "predictions.npz") as a, np.load(other / "predictions.npz") as b:
        predictions = a.files == b.files and all(np.array_equal(a[name], b[name]) for name in a.files)
    weights = [load_file(next(path.rglob("best.safetensors"))) for path in (one, other)]
    equal = weights[0].keys() == weights[1].keys() and all(
        weights[0][name].numpy().tobytes() == weights[1][name].numpy().tobytes() for name in weights[0]
    )
    return len(rows[0]) == 2 and rows[0] == rows[1] and predictions and equal


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> StudyConfig:
    """One run after the other, in this process."""
    config = tiny(tmp_path_factory.mktemp("alone"))
    carry_out(config)
    return config


@pytest.mark.slow
def test_jobs_change_no_bit(alone: StudyConfig, tmp_path: Path) -> None:
    config = tiny(tmp_path)
    carry_out(config, Processes(jobs=2))
    assert same_bits(alone, config)
    one, other, *_ = resolve_runs(alone).runs
    assert not _same(one.folder, other.folder)  # the comparison can tell seeds apart


@pytest.mark.product
def test_started_by_processes_killed_and_finished_by_ray(alone: StudyConfig, tmp_path: Path) -> None:
    """The command is killed with its workers, so that nobody saves; a Ray cluster goes on, then processes again."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (extra ray)")
    from attngraft.study.runner import write_study

    config = tiny(tmp_path / "study")
    config.out.mkdir()
    write_study(config)
    command = [sys.executable, "-m", "attngraft", "compare", "--study", str(config.out / "study.yaml"), "--jobs", "2"]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list(config.out.rglob("metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)
    assert any(run.state != "finished" for run in resolve_runs(config).runs)
    first = tiny(tmp_path / "study", seeds=1)
    carry_out(first, Ray(cpus=1))
    assert sum(run.state == "finished" for run in resolve_runs(config).runs) >= 2
    carry_out(config, Processes(jobs=2))
    assert same_bits(alone, config)
