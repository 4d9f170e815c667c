"""Coverage of timm's models as Markdown, from `benchmarks/coverage.json`."""

from __future__ import annotations

import json
from pathlib import Path

from docs.generate.markdown import table

COUNT = Path(__file__).parents[2] / "benchmarks" / "coverage.json"

_OPENING = """# Which of timm's models

This page shows how many of timm's models can be grafted. It counts the {names} model names of timm {timm} whose forward
pass computes torch's scaled dot product attention or a softmax over tokens. (The models are created on the meta device, so
nothing is downloaded or computed.) A model takes a graft if at least one of its sites does. The shares are {shares}.

Each family is a source file of timm. This command prints the table:

```console
$ attngraft list hosts --coverage
```

`attngraft doctor --host NAME` lists the sites of one model, and any attention modules that are not sites. You can add a
family without changing attngraft: see [Writing a host](../extend/host.md).
"""


def coverage_table() -> str:
    """Return the page."""
    count = json.loads(COUNT.read_text(encoding="utf-8"))
    shares = ", ".join(f"`{graft}`: {share:.1%}" for graft, share in count["share"].items())
    grafts = list(count["share"])
    rows = [
        [
            family["family"],
            str(len(family["names"])),
            *(str(len(family["takes"][graft])) for graft in grafts),
            ", ".join(family["hosts"]) or "-",
            "; ".join(family["why"]) or "-",
        ]
        for family in count["families"]
    ]
    header = ["family", "names", *(f"`{graft}`" for graft in grafts), "adapter", "refused, and why"]
    return _OPENING.format(timm=count["timm"], names=count["names"], shares=shares) + "\n" + table(header, rows)
