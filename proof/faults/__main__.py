"""Cause every fault and record its effect.

    python -m proof.faults --write docs/faults.md

writes benchmarks/faults.json (measurements, machine, versions) and the page generated from it. The exit status is 1 if a
guarantee is violated; then nothing is written. Takes about five minutes on one core. `--only NAME` repeats one case and
keeps the other measurements in the JSON (its commit is stored under `again`).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from attngraft.bench.result import current_setting
from attngraft.files import write_atomically
from proof.faults.bench import Bench
from proof.faults.case import NotHere
from proof.faults.cases import CASES
from proof.faults.table import COMMAND, page

MEASURED = Path("benchmarks/faults.json")


def main(words: Sequence[str] | None = None) -> int:
    given = _arguments(sys.argv[1:] if words is None else words)
    console = Console(stderr=True)
    cases = [case for group in CASES.values() for case in group if not given.only or case.name in given.only]
    setting = current_setting()
    measured: dict[str, str] = {}
    broken = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        bench = Bench(Path(place))
        for case in cases:
            try:
                measured[case.name] = case.run(bench)
            except NotHere as reason:
                measured[case.name] = f"not made: {reason}"
            except AssertionError as error:
                broken += 1
                measured[case.name] = f"BROKEN: {error}"
            console.print(f"{case.name}: {measured[case.name]}", markup=False, highlight=False, soft_wrap=True)
    if given.write and not broken:
        content: dict[str, Any] = {
            "command": COMMAND,
            "environment": setting.environment,
            "measured": measured,
            "again": {},
        }
        if given.only:
            again = dict.fromkeys(measured, setting.environment["commit"])
            content = json.loads(MEASURED.read_text(encoding="utf-8"))
            measured = content["measured"] | measured
            content |= {"again": content["again"] | again}
        content["measured"] = {case.name: measured[case.name] for group in CASES.values() for case in group}
        write_atomically(MEASURED, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        write_atomically(given.write, page(content["measured"]))
    return 1 if broken else 0


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help=f"write this page, and {MEASURED}")
    names = [case.name for cases in CASES.values() for case in cases]
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help="one case; repeatable")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
