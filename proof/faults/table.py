"""The page of faults as Markdown: promises (the cases) and measurements (a JSON file)."""

from __future__ import annotations

from collections.abc import Mapping

from proof.faults.bench import EPOCHS, SAVE_EVERY, STUDY_RUNS, UPDATES
from proof.faults.cases import CASES
from proof.faults.outcome import STEPS

COMMAND = "python -m proof.faults --write docs/faults.md"

_HEAD = f"""# Faults

This page lists what happens to a run or a study when something breaks. Three promises hold:

- nothing that was saved is lost;
- the same command resumes;
- the final result is bit-identical to that of an undisturbed run: weights, their moving average, optimizer, metrics,
  predictions.

A run saves after every epoch, and with `--save-every N` also after every N updates. A checkpoint is written to a temporary
file, flushed to disk, then renamed; the one before it stays as `previous.pt`, which is used if the last one is damaged.
Everything else in a run's folder (metrics.jsonl, TensorBoard events) is written again from the checkpoint when the run
resumes. Weights, order, augmentation and dropout are functions of the seed and the step, so a run can start at any update.

Exit codes: 0 finished, 1 failed (the message names file, reason and remedy), 2 wrong usage, 130 stopped and saved.

## Measurements

The last column is the result of `{COMMAND}` on one machine. For each line it starts the
command in its own process, causes the fault, repeats the command without it, and compares. The runs make {UPDATES} updates
in {EPOCHS} epochs on the embedded digits and save after every {SAVE_EVERY}th update; the studies are {len(STUDY_RUNS)} runs
of {2 * STEPS} updates. Three things are simulated: a device that runs out of memory (the host refuses large batches; in one
line the memory is really limited), the clock (a process sees it run backwards), and a file system without locks.
"""

_FOOT = """
## Limits

- A power cut was not tried. Files are flushed to disk before they are renamed, so the result should be that of `kill -9`,
  on a disk that does not lose confirmed writes.
- In runs of several processes (`torchrun`, `accelerate launch`), a killed process leaves the others waiting until their
  launcher ends them; the same command then resumes. SIGTERM to one of them stops all after the same update, but does not
  end a wait for slow data. Batch sizes that fit are not tried.
"""


def page(measured: Mapping[str, str]) -> str:
    """Return the page, from the measurements by name of the case.

    Raises:
        KeyError: a case was not measured.
    """
    parts = [_HEAD]
    for heading, cases in CASES.items():
        parts.append(f"\n### {heading}\n")
        parts.append("| fault | consequence | kept | remedy | measured |\n|---|---|---|---|---|")
        for case in cases:
            cells = (case.fault, case.happens, case.kept, case.remedy, measured[case.name])
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(parts) + "\n" + _FOOT
