"""Executors of a study's runs: this process one after the other, several processes, or a Ray cluster.

`base.run_task` trains one run folder, wherever it is called; each executor calls it in another place. All results of a run
are in its folder, so a study may change its executor whenever it is stopped.
"""

from attngraft.study.executors.base import Executor, Serial
from attngraft.study.executors.processes import Processes
from attngraft.study.executors.ray import Ray

__all__ = ["Executor", "Processes", "Ray", "Serial"]
