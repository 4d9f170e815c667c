"""The suites of all tasks, and the choice of some by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attngraft.errors import ConfigError, UsageError
from attngraft.suggest import did_you_mean
from attngraft.tasks.capabilities import require
from attngraft.tasks.suites import Suite
from attngraft.tasks.task import Task, known_tasks, load_task


@dataclass(frozen=True, kw_only=True)
class SuiteChoice:
    """A requested suite, with a folder of examples if they are not the run's."""

    suite: Suite
    data: str | None = None

    @property
    def text(self) -> str:
        """The choice in the format of `parse_suites`."""
        return self.suite.name if self.data is None else f"{self.suite.name}={self.data}"


def suites() -> Mapping[str, Suite]:
    """Return the suites of all tasks by name; an installed package that cannot be imported has none."""
    found: dict[str, Suite] = {}
    for name in known_tasks():
        try:
            found |= load_task(name).suites()
        except ConfigError:
            continue
    return found


def parse_suites(texts: Iterable[str], *, option: str = "--suite") -> tuple[SuiteChoice, ...]:
    """Parse requested suites, keeping their order and dropping duplicates.

    Args:
        texts: names of suites, each a single name, a comma-separated list, or `name=FOLDER` with a folder of examples.
        option: name of the command-line option, for messages.

    Raises:
        UsageError: a suite is unknown, or has two folders.
    """
    texts = list(texts)
    known = suites() if texts else {}  # which imports all tasks
    chosen = dict[str, SuiteChoice]()
    for text in texts:
        parts = [text] if "=" in text else text.split(",")
        for part in parts:
            name, equals, data = part.strip().partition("=")
            if equals and not data:
                raise UsageError(f"{option} {part}: the folder after = is missing; add it, or remove the =")
            if name not in known:
                near = did_you_mean(name, known)
                raise UsageError(f"{option}: unknown suite {name!r}{near}; available: {', '.join(known)}")
            for suite in [known[each] for each in known[name].stands_for or (name,)]:
                given = SuiteChoice(suite=suite, data=data or None)
                if chosen.setdefault(suite.name, given).data != given.data:
                    raise UsageError(f"{option} {suite.name}: specified with two folders; keep one")
    return tuple(chosen.values())


def require_suites(task: Task | type[Task], choices: Iterable[SuiteChoice]) -> None:
    """Check that a task has suites; of a task without suites of its own, only the capabilities are checked.

    Raises:
        ConfigError: it lacks a capability, or the suite is for a different kind of example.
    """
    own = task.suites()
    for choice in choices:
        require(task, *choice.suite.needs)
        if own and choice.suite.name not in own:
            raise ConfigError(f"task {task.name}: has no suite {choice.suite.name}; available: {', '.join(own)}")
