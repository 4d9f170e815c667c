"""The suites of all tasks, and their selection by name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attngraft.errors import ConfigError, UsageError
from attngraft.suggest import did_you_mean
from attngraft.tasks.capabilities import require
from attngraft.tasks.suites import Suite
from attngraft.tasks.task import Task, known_tasks, load_task


@dataclass(frozen=True, kw_only=True)
class SuiteChoice:
    """A requested suite, with a folder of examples if it should not use the run's examples."""

    suite: Suite
    data: str | None = None

    @property
    def text(self) -> str:
        """The choice in the format of `parse_suites`."""
        return self.suite.name if self.data is None else f"{self.suite.name}={self.data}"


def suites() -> Mapping[str, Suite]:
    """Return the suites of all tasks by name, skipping tasks that cannot be imported."""
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
        texts: each a suite name, a comma-separated list of names, or `name=FOLDER` with a folder of examples.
        option: name of the command-line option, for messages.

    Raises:
        UsageError: a suite is unknown or specified with two folders, or the folder after `=` is missing.
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
    """Check that a task supports the chosen suites.

    For a task without suites of its own, only the capabilities that the suites require are checked.

    Raises:
        ConfigError: the task lacks a capability, or does not have the suite.
    """
    own = task.suites()
    for choice in choices:
        require(task, *choice.suite.needs)
        if own and choice.suite.name not in own:
            raise ConfigError(f"task {task.name}: has no suite {choice.suite.name}; available: {', '.join(own)}")
