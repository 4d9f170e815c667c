"""The page of faults: what is promised (the cases) and what was measured (a JSON file), as Markdown."""

from __future__ import annotations

from collections.abc import Mapping

from proof.faults.bench import EPOCHS, SAVE_EVERY, STUDY_RUNS, UPDATES
from proof.faults.cases import CASES
from proof.faults.outcome import STEPS

COMMAND = "python -m proof.faults --write docs/faults.md"

_HEAD = f"""# Faults

What becomes of a run or a study when something breaks. The rule has three parts:

- nothing that was saved is lost;
- the same command goes on;
- what comes out in the end is bit-identical to a run that was never disturbed: weights, their moving average, optimizer,
  metrics, predictions.

A run saves after every epoch, and with `--save-every N` also after every N updates. A checkpoint is written to a temporary
file, flushed to disk, then renamed; the one before it stays as `previous.pt`, which takes over if the last one is damaged.
Everything else in a run's folder (metrics.jsonl, TensorBoard events) is made again from the checkpoint when the run goes on.
Weights, order, augmentation and dropout follow from the seed and the place in the run, so a run can start at any update.

Exit codes: 0 finished, 1 failed (the message names file, reason and remedy), 2 wrong usage, 130 stopped and saved.

## What was measured

The last column is what `{COMMAND}` measured on one machine. For each line it
starts the command in a process of its own, makes the fault for real, repeats the command without it, and compares.
The runs make {UPDATES} updates in {EPOCHS} epochs on the embedded digits and save after every {SAVE_EVERY}th update; the
studies are {len(STUDY_RUNS)} runs of {2 * STEPS} updates. Three things are simulated: a lack of a device's memory (the host
refuses large batches; in one line memory is short for real), the clock (a process sees it run backwards), and a file system
without locks.
"""

_FOOT = """
## What is not covered

- A power cut was not tried. Files are flushed to disk before they take another's place, so it should be like `kill -9`, on a
  disk that does not lose what it confirmed to have written.
- In runs of several processes (`torchrun`, `accelerate launch`): one process that is killed leaves the others waiting until
  their launcher ends them; the same command then goes on. SIGTERM to one of them stops all after the same update, but does
  not end a wait for slow data. Batch sizes that fit are not tried out.
"""


def page(measured: Mapping[str, str]) -> str:
    """The page, from what was measured by the name of the case.

    Raises:
        KeyError: a case was not measured.
    """
    parts = [_HEAD]
    for heading, cases in CASES.items():
        parts.append(f"\n### {heading}\n")
        parts.append("| fault | what happens | what is kept | how to go on | measured |\n|---|---|---|---|---|")
        for case in cases:
            cells = (case.fault, case.happens, case.kept, case.remedy, measured[case.name])
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(parts) + "\n" + _FOOT
