"""Executors of a study's runs: one after the other in this process, in several processes, or on a Ray cluster.

Every executor calls `base.run_task`, which trains one run folder. All results of a run are in its folder, so a stopped study
can be resumed with a different executor.
"""

from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.processes import Processes
from attngraft.study.executors.ray import Ray

__all__ = ["Executor", "Processes", "Ray", "Serial"]
