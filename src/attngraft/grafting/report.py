"""What grafting did, or would do: one entry per graft and site, as a dictionary, JSON or a table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from attngraft.attention import HookPoint, Unused

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One graft at one site."""

    site: str
    module: str  #: class of the host's module that carries the hook point
    hook_point: HookPoint
    graft: str  #: registered name
    instance: str  #: its name at this site (`cb`, `cb_2`)
    options: dict[str, Any]
    parameters: int  #: what it adds
    macs: int | None  #: what it adds for one input of the host's own size; None where tokens are not known
    identity: bool  #: whether it starts as the identity
    carried: int  #: parameters of the host's module that stay in use
    unused: Unused  #: what it leaves of the host without use
    #: host parameters taken out of the model until undo, where the graft stands in for them, with their sizes
    detached: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rounds: bool = False  #: whether a graft here makes the host give up a kernel of its own

    @property
    def exact(self) -> bool:
        """Whether it starts as the identity bit for bit.

        Around the attention map it is one to rounding only: the host's fused attention gives way to one spelled out. The
        same holds wherever the host has a kernel for more than a graft can stand in (`rounds`).
        """
        return self.identity and self.hook_point not in ("mix", "weights") and not self.rounds


@dataclass(frozen=True, kw_only=True)
class Change:
    """By how much the model's output differs at initialization, on a random batch: float differences of the outputs."""

    mean_absolute: float
    max_absolute: float
    relative: float  #: norm of the difference over norm of the host's output


@dataclass(frozen=True, kw_only=True)
class GraftReport:
    """The outcome of `plan` and `graft`."""

    spec: str  #: canonical
    host: str  #: the adapter's name
    model: str  #: the model's class
    host_parameters: int
    entries: Sequence[Entry]
    change: Change | None = None
    warnings: Sequence[str] = field(default=())  #: what was passed over, and why

    @property
    def parameters(self) -> int:
        """Parameters that all grafts add."""
        return sum(entry.parameters for entry in self.entries)

    @property
    def macs(self) -> int | None:
        """MACs that all grafts add for one input; None where one of them is not known."""
        known = [entry.macs for entry in self.entries if entry.macs is not None]
        return sum(known) if len(known) == len(self.entries) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The instance names, as `ungraft(names=...)` takes them."""
        return tuple(dict.fromkeys(entry.instance for entry in self.entries))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, totals included."""
        totals = {"parameters": self.parameters, "macs": self.macs}
        return {**asdict(self), "entries": [_plain(entry) for entry in self.entries], "totals": totals}

    def to_json(self, indent: int | None = 2) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def table(self) -> Table:
        """A rich table with one row per graft and site, totals below."""
        from rich.table import Table

        table = Table(title=f"{self.spec}  on  {self.model} ({self.host})", title_justify="left", show_footer=True)
        table.add_column("site", footer="total", overflow="fold")
        table.add_column("module")
        table.add_column("graft @ hook point", overflow="fold")
        table.add_column("+ parameters", footer=f"{self.parameters:,}", justify="right")
        table.add_column("+ MACs", footer=_count(self.macs), justify="right")
        table.add_column("host carried", justify="right")
        table.add_column("left without use", overflow="fold")
        for entry in self.entries:
            table.add_row(
                entry.site,
                entry.module,
                f"{entry.instance} @ {entry.hook_point}",
                f"{entry.parameters:,}",
                _count(entry.macs),
                f"{entry.carried:,}",
                ", ".join(filter(None, (_detached(entry), _unused(entry.unused)))) or "-",
            )
        return table

    def __str__(self) -> str:
        """What `summary` says, a line each."""
        return "\n".join(self.summary())

    def summary(self) -> list[str]:
        """Sentences that belong under the table."""
        lines = [f"Adds {self.parameters:,} parameters to {self.host_parameters:,} ({_percent(self)})."]
        detached = [entry for entry in self.entries if entry.detached]
        if detached:
            numbers = sum(sum(entry.detached.values()) for entry in detached)
            lines.append(
                f"Stands in for the host's own attention at {len(detached)} sites: {numbers:,} parameters are detached, neither "
                "trained nor saved, until the graft is taken out."
            )
        changing = sorted({entry.instance for entry in self.entries if not entry.identity})
        if changing:
            lines.append(f"Not the identity at start: {', '.join(changing)}; a pretrained host's outputs change.")
        elif self.entries:
            how = "" if all(entry.exact for entry in self.entries) else " to rounding"
            lines.append(
                f"All grafts start as the identity: the host's outputs are unchanged{how} until training moves them."
            )
        if self.change is not None:
            lines.append(
                f"Measured at initialization on a random batch: outputs change by {self.change.relative:.3g} of their norm "
                f"(mean |change| {self.change.mean_absolute:.3g}, largest {self.change.max_absolute:.3g})."
            )
        notes = dict.fromkeys(note for entry in self.entries for note in entry.notes)
        return [*lines, *notes, *self.warnings]


def _percent(report: GraftReport) -> str:
    return f"{100 * report.parameters / max(report.host_parameters, 1):.3g}%"


def _count(macs: int | None) -> str:
    return "unknown" if macs is None else f"{macs:,}"


def _unused(unused: Unused) -> str:
    rows = [f"{name}[{start}:{stop}]" for name, start, stop in unused.rows]
    columns = [f"{name}[..., {start}:{stop}]" for name, start, stop in unused.columns]
    return ", ".join([*unused.parameters, *rows, *columns])


def _plain(entry: Entry) -> dict[str, Any]:
    """Return the entry as plain values, under the keys of every release."""
    old = {"hook_point": "stage", "detached": "parked"}
    return {old.get(name, name): value for name, value in asdict(entry).items()}


def _detached(entry: Entry) -> str:
    return ", ".join(f"{name} (detached)" for name in dict.fromkeys(name.partition(".")[0] for name in entry.detached))
