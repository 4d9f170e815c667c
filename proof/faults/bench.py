"""Small runs and studies on the embedded digits in which faults are caused, and undisturbed ones for comparison."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from attngraft.files import write_atomically
from attngraft.results.study import Cost, StudyResult
from proof.faults.case import NotHere
from proof.faults.harm import Harm, WithTools
from proof.faults.outcome import STEPS, differences, study_differences, updates
from proof.faults.process import Ended, Running

HOST = "host.args={img_size: 8, patch_size: 4, in_chans: 1, embed_dim: 16, depth: 1, num_heads: 2, drop_rate: 0.1}"
SMALL = ("--recipe", "digits", "--set", HOST, "--set", "train.threads=1", "--set", "train.batch_size=128")
EPOCHS, SAVE_EVERY = 3, 4
UPDATES = EPOCHS * STEPS

#: 33 updates, with a moving average and dropout, saved after every fourth and after every epoch
RUN = ("train", *SMALL, "--set", "train.ema=0.9", "--epochs", str(EPOCHS), "--save-every", str(SAVE_EVERY))

#: three runs of 22 updates
STUDY = ("compare", *SMALL, "--epochs", "2", "--seeds", "1", "--graft", "cb_s", "--graft", "horizontal")
STUDY_RUNS = ("baseline", "cb_s", "horizontal")


def _no_costs(*args: object, **options: object) -> dict[str, Cost]:
    """Return made-up costs of a study's variants, since measuring them takes long and is not tested here."""
    cost = Cost(
        parameters=1,
        macs=None,
        parameters_ratio=1.0,
        macs_ratio=None,
        train_time_ratio=None,
        inference_time_ratio=None,
        memory_ratio=None,
        train_seconds_per_step=None,
        inference_seconds_per_batch=None,
        peak_memory_bytes=None,
    )
    return dict.fromkeys(("none", "cb_s", "horizontal"), cost)


NO_COSTS = WithTools({"measure_costs": _no_costs})


def _page_alone(result: StudyResult, folder: Path) -> Path:
    """Write the report without the plot files, which take longest to draw."""
    from attngraft.report.page import report_html

    return write_atomically(folder / "report.html", report_html(result))


NO_PLOTS = WithTools({"write_report": _page_alone})


class Bench:
    """Creates folders under `place`, and starts processes; each undisturbed run is trained only once."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._whole: dict[tuple[str, ...], Path] = {}
        self._folders = 0

    def folder(self, name: str = "run") -> Path:
        """Return the path of a folder to create, in a new empty folder."""
        self._folders += 1
        path = self.place / f"{self._folders:03d}"
        path.mkdir(parents=True)
        return path / name

    def start(self, arguments: Sequence[str], out: Path, *harms: Harm) -> Running:
        words = [*arguments, "--out", str(out)]
        return Running(words, harms=harms, environment={"ATTNGRAFT_CACHE": str(out.parent / "cache")})

    def run(self, arguments: Sequence[str], out: Path, *harms: Harm) -> Ended:
        return self.start(arguments, out, *harms).finish()

    def whole(self, arguments: Sequence[str]) -> Path:
        """Return the folder of the undisturbed run or study."""
        key = tuple(arguments)
        if key not in self._whole:
            out = self.folder("whole")
            ended = self.run(arguments, out, NO_COSTS, NO_PLOTS)
            assert ended.code == 0, ended.text
            self._whole[key] = out
        return self._whole[key]

    def new_study(self) -> Path:
        """Create a study's folder that already contains the costs, which take longest to measure."""
        out = self.folder("study")
        out.mkdir()
        shutil.copy(self.whole(STUDY) / "cost.json", out)
        return out

    def goes_on(
        self,
        arguments: Sequence[str],
        out: Path,
        *harms: Harm,
        whole: Sequence[str] | None = None,
        total: int = UPDATES,
    ) -> str:
        """Rerun the command of a run, check that it resumes and that its result is undisturbed, and return a summary."""
        saved = updates(out)
        ended = self.run(arguments, out, *harms)
        assert ended.code == 0, ended.text
        if saved < total:
            begin = f"resuming after step {saved} of {total} steps" if saved else f"training for {total} steps"
            assert begin in ended.text, ended.text
        found = differences(self.whole(whole or arguments), out)
        assert not found, found
        return f"{saved} of {total} updates kept, final result bit-identical"

    def study_goes_on(self, arguments: Sequence[str], out: Path, *, whole: Sequence[str] = STUDY) -> str:
        """Do the same for a study, whose finished runs must not be repeated; plots are only drawn if results.json exists."""
        harms = () if (out / "results.json").exists() else (NO_PLOTS,)
        done = [path.parent for path in sorted((out / "runs").rglob("finished.json"))]
        saved = sum(updates(path.parent.parent) for path in (out / "runs").rglob("last.pt"))
        stamps = [(run / "finished.json").stat().st_mtime_ns for run in done]
        ended = self.run(arguments, out, *harms)
        assert ended.code == 0, ended.text
        assert stamps == [(run / "finished.json").stat().st_mtime_ns for run in done]
        found = study_differences(self.whole(whole), out)
        assert not found, found
        runs = len(STUDY_RUNS)
        return f"{len(done)} of {runs} runs and {saved} of {runs * 2 * STEPS} updates kept, final result bit-identical"

    @contextmanager
    def small_disk(self, megabytes: int) -> Iterator[Path]:
        """Mount a file system in memory of this size.

        Raises:
            NotHere: mounting is not permitted.
        """
        path = self.folder("disk")
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except OSError as error:
            raise NotHere(f"a small disk cannot be mounted here: {error}") from None
        if done.returncode:
            raise NotHere(f"a small disk cannot be mounted here: {done.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run(["umount", "--lazy", str(path)], check=True, capture_output=True)

    def images(self) -> Path:
        """Return a folder of 240 small images of three digits, by class."""
        path = self.place / "images"
        if not path.is_dir():
            _write_digits(path)
        return path


def expect(ended: Ended, *, code: int, says: str = "") -> None:
    """Check the exit code, that the output matches the pattern `says`, and that it has no traceback."""
    assert ended.code == code, f"{ended}: {ended.text}"
    assert re.search(says, ended.plain), ended.text
    assert "Traceback" not in _HANDING_OVER.sub("", ended.text), ended.text


#: traceback of the thread that sends file descriptors to a process that was killed
_HANDING_OVER = re.compile(
    r"Traceback \(most recent call last\):\n  File .*resource_sharer.*\n(?: .*\n)*ConnectionResetError.*\n"
)


def _write_digits(path: Path) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label in range(3):
        (path / str(label)).mkdir(parents=True)
        for number, pixels in enumerate(digits.images[digits.target == label][:80]):
            image = Image.fromarray((pixels * 15).astype(np.uint8))
            image.save(path / str(label) / f"{number:02d}.png")
