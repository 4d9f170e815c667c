"""Memory that inference on the largest example needs, estimated without computing anything."""

from __future__ import annotations

import logging

from attngraft.tasks.memory import InferenceMemory
from attngraft.tasks.task import Task, TaskData
from attngraft.tensors import meta_device
from attngraft.training.build import build_model
from attngraft.training.recipe import Recipe

log = logging.getLogger(__name__)


def estimate_memory(recipe: Recipe, task: Task, data: TaskData) -> InferenceMemory | None:
    """Return the memory of inference with the recipe's model; None if the task or the model does not support an estimate.

    Args:
        recipe: describes host and graft.
        task: the task, which has loaded its data.
        data: the loaded data.
    """
    if type(task).inference_memory is Task.inference_memory:
        return None
    try:
        with meta_device():
            model = build_model(recipe, data.model_args, load_weights=False, facts=data.facts).eval()
        return task.inference_memory(model)
    except (RuntimeError, NotImplementedError) as error:  # of operations without a meta kernel
        log.debug("the memory of inference cannot be estimated: %s", error)
        return None
