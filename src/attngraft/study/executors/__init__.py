"""Executors of a study's runs: sequential in this process, in several processes, or on a Ray cluster.

Every executor calls `base.run_task`, which trains the run of one folder. All state of a run is in its folder, so a stopped
study can be resumed with a different executor.
"""

from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.processes import Processes
from attngraft.study.executors.ray import Ray

__all__ = ["Executor", "Processes", "Ray", "Serial"]
