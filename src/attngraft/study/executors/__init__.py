"""Executors of a study's runs: sequential in this process, in several processes, one of these two as
the times and cores suggest, or on a Ray cluster.

Every executor calls `base.run_task`, which trains the run of one folder. All state of a run is in its folder, so a stopped
study can be resumed with a different executor.
"""

from attngraft.study.executors.automatic import Automatic
from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.processes import Processes
from attngraft.study.executors.ray import Ray

__all__ = ["Automatic", "Executor", "Processes", "Ray", "Serial"]
