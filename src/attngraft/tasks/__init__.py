"""Tasks: data, head, loss, metrics and predictions of one kind of work, a folder each, behind one interface."""

from attngraft.tasks.task import Evaluation, Predictions, Split, Task, TaskData, load_task

__all__ = ["Evaluation", "Predictions", "Split", "Task", "TaskData", "load_task"]
