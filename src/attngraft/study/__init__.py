"""Studies: variants of a host, trained under one recipe with several seeds and compared.

    config = study_from_dict({"host": "vit_tiny_patch16_224", "grafts": ["cb_s"], "data": "digits", "out": "study"})
    result = compare(config)

From the call to the first batch: `runner.compare` resolves the configuration (`config`, `variants`) into a `Study` with
the recipe and state of every run (`plan`), checks it (`checks`), estimates the time (`throughput`), and hands the runs to
an executor, whose processes call `executors.base.run_task`, which calls `training.loop.train`. `collect` then reads the
finished runs, compares their predictions (`verdict`), and returns a `StudyResult`.
"""

from attngraft.results.outlook import incomplete
from attngraft.results.storage import load_result
from attngraft.results.study import StudyResult
from attngraft.study.config import StudyConfig, read_study, read_study_file, study_from_dict
from attngraft.study.runner import Tools, compare, prepare, report_only

__all__ = [
    "StudyConfig",
    "StudyResult",
    "Tools",
    "compare",
    "incomplete",
    "load_result",
    "prepare",
    "read_study",
    "read_study_file",
    "report_only",
    "study_from_dict",
]
