"""The page of faults as Markdown: guarantees (the cases) and measurements (a JSON file)."""

from __future__ import annotations

from collections.abc import Mapping

from proof.faults.bench import EPOCHS, SAVE_EVERY, STUDY_RUNS, UPDATES
from proof.faults.cases import CASES
from proof.faults.outcome import STEPS

COMMAND = "python -m proof.faults --write docs/faults.md"

_HEAD = f"""# Faults

Behavior of runs and studies under faults. Three guarantees hold:

- saved progress is never lost;
- the same command resumes;
- the final state is bit-identical to that of an undisturbed run: weights, their moving average, optimizer, metrics,
  predictions.

A run saves a checkpoint after every epoch, and with `--save-every N` also after every N updates. A checkpoint is written to
a temporary file, flushed to disk, and renamed. The previous one is kept as `previous.pt` and used if the last one is
damaged. All other files of a run (metrics.jsonl, TensorBoard events) are restored from the checkpoint on resuming. Weights,
order, augmentation and dropout depend only on the seed and the position in the run, so it can resume at any update.

Exit codes: 0 finished, 1 failed (the message names file, reason and remedy), 2 invalid usage, 130 stopped and saved.

## Measurements

The last column was measured on one machine by `{COMMAND}`. For each row it
starts the command in a separate process, causes the fault, repeats the command without it, and compares the results
("the end bit-identical": all of the above are equal).
The runs make {UPDATES} updates in {EPOCHS} epochs on the embedded digits and save after every {SAVE_EVERY}th update; the
studies have {len(STUDY_RUNS)} runs of {2 * STEPS} updates. Three faults are simulated: device memory (the host rejects large
batches, except in one row with a real limit), the clock (set back within the process), and a file system without locks.
"""

_FOOT = """
## Limitations

- Power cuts were not tested. Files are flushed to disk before they replace others, so the result should be as for
  `kill -9`, provided that the disk honors flushes.
- With several processes per run (`torchrun`, `accelerate launch`), the others wait after one is killed until the launcher
  ends them; the same command then resumes. SIGTERM to one process stops all of them after the same update, but does not
  interrupt waiting for data. Batch sizes that fit are not searched.
"""


def page(measured: Mapping[str, str]) -> str:
    """Return the page; `measured` maps names of cases to results.

    Raises:
        KeyError: a case was not measured.
    """
    parts = [_HEAD]
    for heading, cases in CASES.items():
        parts.append(f"\n### {heading}\n")
        parts.append("| fault | effect | kept | remedy | measured |\n|---|---|---|---|---|")
        for case in cases:
            cells = (case.fault, case.happens, case.kept, case.remedy, measured[case.name])
            parts.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(parts) + "\n" + _FOOT
