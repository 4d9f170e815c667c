"""Reports of `graft` and `plan`: one entry per graft and site, as a dictionary, JSON or a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from attngraft._moved import renamed
from attngraft.attention import HookPoint, Unused
from attngraft.notebook import html_table

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One graft at one site."""

    site: str
    module: str  #: class of the host's module with the hook point
    hook_point: HookPoint
    graft: str  #: registered name
    instance: str  #: instance name at this site (`cb`, `cb_2`)
    options: dict[str, Any]
    parameters: int  #: number of added parameters
    macs: int | None  #: added MACs for one input of the host's own size; None if the number of tokens is unknown
    identity: bool  #: whether the graft starts as the identity
    carried: int  #: number of parameters of the host's module that remain in use
    unused: Unused  #: parameters of the host that the graft makes unused
    #: host parameter -> number of values, for parameters detached until undo because the graft replaces their module
    detached: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rounds: bool = False  #: whether a graft here disables one of the host's own fused kernels
    stage = renamed("stage", "hook_point")
    parked = renamed("parked", "detached")

    @property
    def exact(self) -> bool:
        """Whether the graft is bit-identical to the identity at initialization.

        Grafts at `mix` and `weights` are equal to the identity only up to rounding, because explicit attention replaces the
        host's fused kernel. The same applies to grafts that disable another fused
        kernel of the host (`rounds`).
        """
        return self.identity and self.hook_point not in ("mix", "weights") and not self.rounds

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary of plain values; its keys do not change between releases."""
        old = {"hook_point": "stage", "detached": "parked"}
        return {old.get(name, name): value for name, value in asdict(self).items()}

    def unused_text(self) -> str:
        """Return the detached and unused parameters as text; "-" if there are none."""
        modules = dict.fromkeys(name.partition(".")[0] for name in self.detached)
        rows = [f"{name}[{start}:{stop}]" for name, start, stop in self.unused.rows]
        columns = [f"{name}[..., {start}:{stop}]" for name, start, stop in self.unused.columns]
        detached = [f"{name} (detached)" for name in modules]
        return ", ".join([*detached, *self.unused.parameters, *rows, *columns]) or "-"


@dataclass(frozen=True, kw_only=True)
class Change:
    """Difference between the outputs with and without the new grafts, on a random batch."""

    mean_absolute: float
    max_absolute: float
    relative: float  #: norm of the difference divided by the norm of the host's output


@dataclass(frozen=True, kw_only=True)
class GraftReport:
    """Result of `plan` and `graft`."""

    spec: str  #: canonical
    host: str  #: the adapter's name
    model: str  #: the model's class
    host_parameters: int
    entries: Sequence[Entry]
    change: Change | None = None
    #: skipped sites, repeated grafts, and how to save the model
    warnings: Sequence[str] = field(default=())

    @property
    def parameters(self) -> int:
        """Total number of parameters added by the grafts."""
        return sum(entry.parameters for entry in self.entries)

    @property
    def macs(self) -> int | None:
        """MACs that all grafts add for one input; None if they are unknown for any graft."""
        known = [entry.macs for entry in self.entries if entry.macs is not None]
        return sum(known) if len(known) == len(self.entries) else None

    @property
    def names(self) -> tuple[str, ...]:
        """Instance names of the grafts, for `ungraft(names=...)`."""
        return tuple(dict.fromkeys(entry.instance for entry in self.entries))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, totals included."""
        totals = {"parameters": self.parameters, "macs": self.macs}
        return {**asdict(self), "entries": [entry.to_dict() for entry in self.entries], "totals": totals}

    def to_json(self, indent: int | None = 2) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def table(self) -> Table:
        """Return a rich table with one row per graft and site, and totals in the footer."""
        from rich.table import Table  # optional for library users

        table = Table(title=f"{self.spec}  on  {self.model} ({self.host})", title_justify="left", show_footer=True)
        table.add_column("site", footer="total", overflow="fold")
        table.add_column("module")
        table.add_column("graft @ hook point", overflow="fold")
        table.add_column("+ parameters", footer=f"{self.parameters:,}", justify="right")
        table.add_column("+ MACs", footer=_count(self.macs), justify="right")
        table.add_column("host in use", justify="right")
        table.add_column("host unused", overflow="fold")
        for entry in self.entries:
            table.add_row(
                entry.site,
                entry.module,
                f"{entry.instance} @ {entry.hook_point}",
                f"{entry.parameters:,}",
                _count(entry.macs),
                f"{entry.carried:,}",
                entry.unused_text(),
            )
        return table

    def _repr_html_(self) -> str:
        header = ("site", "module", "graft @ hook point", "+ parameters", "+ MACs", "host unused")
        rows = [
            (
                entry.site,
                entry.module,
                f"{entry.instance} @ {entry.hook_point}",
                f"{entry.parameters:,}",
                _count(entry.macs),
                entry.unused_text(),
            )
            for entry in self.entries
        ]
        title = f"{self.spec} on {self.model} ({self.host})"
        return html_table(title, header, rows, notes=self.summary(), rest="; table() has all of them")

    def __str__(self) -> str:
        """Return `summary`, joined by line breaks."""
        return "\n".join(self.summary())

    def summary(self) -> list[str]:
        """Return the notes printed below the table, one sentence each."""
        share = f"{100 * self.parameters / max(self.host_parameters, 1):.3g}%"
        lines = [f"Adds {self.parameters:,} parameters to {self.host_parameters:,} ({share})."]
        detached = [entry for entry in self.entries if entry.detached]
        if detached:
            count = sum(sum(entry.detached.values()) for entry in detached)
            lines.append(
                f"Replaces the host's own attention at {len(detached)} sites: {count:,} parameters are detached, neither "
                "trained nor saved, until the graft is removed."
            )
        changing = sorted({entry.instance for entry in self.entries if not entry.identity})
        if changing:
            lines.append(
                f"Not the identity at initialization: {', '.join(changing)}; the outputs of a pretrained host change."
            )
        elif self.entries:
            how = "" if all(entry.exact for entry in self.entries) else " up to rounding"
            lines.append(f"All grafts start as the identity: the host's outputs are unchanged{how} until training.")
        if self.change is not None:
            lines.append(
                f"Measured at initialization on a random batch: outputs change by {self.change.relative:.3g} of their norm "
                f"(mean |change| {self.change.mean_absolute:.3g}, largest {self.change.max_absolute:.3g})."
            )
        notes = dict.fromkeys(note for entry in self.entries for note in entry.notes)
        return [*lines, *notes, *self.warnings]


def overview(reports: Sequence[GraftReport], *, title: str) -> Table:
    """Return a rich table with one row per report, to compare several specifications on one host."""
    from rich.table import Table

    measured = any(report.change is not None for report in reports)
    table = Table(title=title, title_justify="left")
    table.add_column("graft", overflow="fold")
    for heading in ("sites", "+ parameters", "+ MACs"):
        table.add_column(heading, justify="right")
    table.add_column("identity at start")
    if measured:
        table.add_column("change of the outputs", justify="right")
    for report in reports:
        identity = all(entry.identity for entry in report.entries)
        exact = all(entry.exact for entry in report.entries)
        change = [] if report.change is None else [f"{report.change.relative:.3g}"]
        table.add_row(
            report.spec,
            str(len({entry.site for entry in report.entries})),
            f"{report.parameters:,}",
            _count(report.macs),
            "no" if not identity else "yes" if exact else "up to rounding",
            *change,
        )
    return table


def _count(macs: int | None) -> str:
    return "unknown" if macs is None else f"{macs:,}"
