"""Capabilities of tasks beyond training and comparison, checked before anything is trained or written."""

from attngraft.errors import ConfigError
from attngraft.tasks.task import Task

#: capability -> description, and remedy for tasks without it
CAPABILITIES = {
    "analyses": ("analyses of images (attngraft analyze)", "give models of another task"),
    "attacks": ("suites that attack with gradients of the loss (fgsm, pgd)", "remove these suites"),
    "calibration": ("the suite calibration", "remove this suite"),
    "data_check": ("attngraft data check", "train on the data, which checks them first"),
    "explorer": (
        "the explorer of images (attngraft explore --image)",
        "give models of images; --text TEXT is for models of texts, --cloud FILE for models of point clouds",
    ),
    "export": ("export", "give a run of another task"),
    "folds": ("--folds", "remove it"),
    "generation": ("generation", ""),  # never required; FSDP rejects it (`Task.needs_unwrapped`)
    "halving": ("--halving", "remove it"),
    "labels": ("test sets and analyses of one label per example", "remove them"),
    "predict": ("prediction (attngraft predict)", "give a run of another task"),
    "suites": ("suites that change images", "remove --suite"),
    "teacher": ("training with a teacher", "remove the section distill from the recipe"),
}


def require(task: Task | type[Task], *capabilities: str) -> None:
    """Check that a task has capabilities; a task without declared capabilities is not checked.

    Raises:
        ConfigError: the task lacks a capability; the message lists the task's capabilities.
    """
    declared = task.capabilities
    for name in capabilities:
        if declared is not None and name not in declared:
            what, remedy = CAPABILITIES[name]
            known = ", ".join(sorted(set(declared) - {"generation"})) or "none"
            raise ConfigError(f"task {task.name}: does not support {what}; {remedy} (supported: {known})")
