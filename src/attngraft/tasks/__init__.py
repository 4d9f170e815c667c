"""Tasks: data, head, loss, metrics and predictions behind one interface, one folder per task."""

from attngraft.tasks.task import Evaluation, Predictions, Split, Task, TaskData, load_task

__all__ = ["Evaluation", "Predictions", "Split", "Task", "TaskData", "load_task"]
