"""Suites: named lists of conditions under which a model is evaluated. Finished conditions are reused.

from attngraft.evaluation.suites import evaluate_suites, parse_suites

for result in evaluate_suites("runs/flowers", parse_suites(["robustness", "calibration"])):
    print(result.title, {group.label: group.metrics[result.metric].mean for group in result.groups})
"""

from attngraft.evaluation.suites.catalog import SuiteChoice, parse_suites, suites
from attngraft.evaluation.suites.evaluate import evaluate_suites
from attngraft.evaluation.suites.result import GroupMetric, GroupResult, SuiteRun, SuitesFailed
from attngraft.tasks.suites import Condition, Suite

__all__ = [
    "Condition",
    "GroupMetric",
    "GroupResult",
    "Suite",
    "SuiteChoice",
    "SuiteRun",
    "SuitesFailed",
    "evaluate_suites",
    "parse_suites",
    "suites",
]
