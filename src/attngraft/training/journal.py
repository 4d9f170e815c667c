"""What a run writes down after each epoch: metrics.jsonl and TensorBoard events."""

from __future__ import annotations

import json

from torch.utils.tensorboard import SummaryWriter

from attngraft.files import write_atomically
from attngraft.training.run_folder import Metrics, RunFolder


class Journal:
    """Both files as the checkpoint knows them: on a resumed run, later lines and events are taken back."""

    def __init__(self, run: RunFolder, rows: list[Metrics]) -> None:
        self._run, self._rows = run, list(rows)
        self._events = SummaryWriter(str(run.tensorboard), purge_step=len(rows) + 1 if rows else None)
        self._write_rows()

    def add(self, row: Metrics) -> None:
        """Write down a finished epoch."""
        self._rows.append(row)
        self._write_rows()
        for name, value in row.items():
            if name != "epoch":
                self._events.add_scalar(name, value, int(row["epoch"]))
        self._events.flush()

    def close(self) -> None:
        self._events.close()

    def _write_rows(self) -> None:
        write_atomically(self._run.metrics, "".join(json.dumps(row) + "\n" for row in self._rows))
