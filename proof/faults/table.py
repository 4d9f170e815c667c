"""The page of faults as Markdown: guarantees (the cases) and measurements (a JSON file)."""

from __future__ import annotations

from collections.abc import Mapping

from proof.faults.bench import EPOCHS, SAVE_EVERY, STUDY_RUNS, UPDATES
from proof.faults.cases import CASES
from proof.faults.outcome import STEPS

COMMAND = "python -m proof.faults --write docs/faults.md"

_HEAD = f"""# Faults

This page lists what happens to a run or a study when something breaks. In all of these cases:

- nothing that was saved is lost;
- the same command resumes;
- the final result is bit-identical to that of an undisturbed run. This includes weights, their moving average, optimizer
  state, metrics and predictions.

A run saves after every epoch, and with `--save-every N` also after every N updates. A checkpoint is written to a temporary
file, flushed to disk and then renamed. The previous checkpoint is kept as `previous.pt`, which is used if the last one is
damaged. Everything else in a run's folder (metrics.jsonl, TensorBoard events) is written again from the checkpoint when the
run resumes. Initialization, order, augmentation and dropout depend only on the seed and the step, so a run can resume at any
update.

The exit codes are 0 (finished), 1 (failed; the message names file, reason and remedy), 2 (invalid command or
broken data), 70 (an unexpected error) and 130 (stopped and saved). The message of exit code 70 is one
line too: the command, the error, the file in use if it is known, what to try, and the file with the traceback, which the
option `--debug` before the command also prints. Control characters in names are printed as `\\u001b`.

## Measurements

The last column was written by `{COMMAND}` on one machine. For each row,
this program starts a command in its own process, causes the fault, repeats the command without the fault, and compares
the results with those of an undisturbed run. Each run makes {UPDATES} updates in {EPOCHS} epochs on the included digits and
saves after every {SAVE_EVERY}th update; each study has {len(STUDY_RUNS)} runs of {2 * STEPS} updates. Three faults are
simulated: a device that runs out of memory (the host refuses large batches; in one row the memory is really limited), a
clock that runs backwards, and a file system without locks.
"""

_FOOT = """
## Damaged files

finished.json has the size and SHA-256 of each file of the run, and checksums.json those of the files of a study, of a
suite's results or of an exported model. A file is compared when it is read. `attngraft doctor --verify FOLDER` compares all
files of a run with its suites, a study or an exported model, and metrics with predictions. Folders of earlier versions have
no checksums, which `--verify` says.
Locks, logs, TensorBoard events, caches, spare checkpoints, plots, reports and model cards have none.

- metrics.jsonl, predictions.npz or finished.json of a finished run: reports and evaluations fail. Rerun `attngraft compare`
  or `attngraft train`, which makes the file again from the checkpoint, bit-identical.
- recipe.yaml, data.json, split.csv and other files that training reads, and weights: the command that reads them fails.
  Restore a copy, or delete the run's folder and rerun the command.
- Weights that are not finite, or a loss that is not a number in an evaluation: the command fails.
- metrics.jsonl of an unfinished run: a warning. The run resumes and writes the file again.
- Facts in data.json of a folder without checksums that are missing or of another type: the command fails and names the
  field.
- Metrics that differ from those of the predictions, also in folders without checksums: the report fails and prints both.
- results.json of a study: reading it fails. `attngraft compare --report-only` writes it again.
- cost.json of a study: costs are measured again.
- Results or predictions of a suite: reading them fails. `attngraft eval` or `compare` with the suite makes them again.
- A file of an exported model: loading fails. Restore a copy, or export again.

The tests are in `tests/training/test_damage.py`, `tests/training/test_run_folder.py` and `tests/study/test_verify.py`.

## Files that are not what they seem

- A FIFO, socket or device in place of a file is an error at once.
- A link planted where a file is written does not change its target; a FIFO, socket or device there is not replaced, nor are
  plots written through a linked folder.
- An output of `explore`, `predict` or `data check` that would replace a file that is read is an error.
- An archive or an image that unpacks to gigabytes is an error before it takes memory.
- YAML with nested aliases, JSON nested too deeply, integers of thousands of digits and very long specifications are errors
  that quote at most 80 characters.

The tests are in `tests/faults/test_hostile_files.py`, `tests/test_yaml_config.py`, `tests/test_opening.py` and
`tests/grafting/test_spec.py`.

## Limits

- Power cuts were not tested. Files are flushed to disk before they are renamed, so on a disk that does not lose confirmed
  writes the result should be the same as that of `kill -9`.
- In runs of several processes (`torchrun`, `accelerate launch`), the others wait for a killed process until their launcher
  ends them; the same command then resumes. SIGTERM to one of them stops all after the same update, but does not interrupt a
  wait for slow data. After an out-of-memory error, smaller batch sizes are not tried.
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
