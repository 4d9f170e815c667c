"""Executors of a study's runs: sequential in this process, in several processes, or on a Ray cluster.

`Automatic` chooses between the first two. Every executor calls `base.run_task`, which trains the run of one folder. All
state of a run is in its folder, so a stopped study can be resumed with a different executor.
"""

from attngraft.study.executors.automatic import Automatic
from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.processes import Processes
from attngraft.study.executors.ray import Ray

__all__ = ["Automatic", "Executor", "Processes", "Ray", "Serial"]
