"""Suites: named lists of conditions under which a trained run is evaluated; what is done is kept, what is left goes on.

    from attngraft.evaluation.suites import evaluate_suites, parse_suites

    for found in evaluate_suites("runs/flowers", parse_suites(["robustness", "calibration"])):
        print(found.title, {group.label: group.metrics[found.metric].mean for group in found.groups})

| file | |
|---|---|
| condition.py, catalog.py | what a suite is, and which there are |
| changes.py, salience.py | what a condition does to examples |
| test_sets.py, judging.py | images that the user downloads; what may be answered there, and what is right |
| ground.py | the examples for a suite |
| bench.py, evaluate.py, throughput.py | the model under conditions |
| failing.py | one suite's error among several |
| kept.py, grouping.py, result.py | predictions, and what is told of them |
| progress.py | who is told how it gets on |
"""

from attngraft.evaluation.suites.catalog import SuiteChoice, parse_suites, suites
from attngraft.evaluation.suites.condition import Condition, Suite
from attngraft.evaluation.suites.evaluate import evaluate_suites
from attngraft.evaluation.suites.failing import SuitesFailed
from attngraft.evaluation.suites.result import GroupResult, Measured, SuiteRun

__all__ = [
    "Condition",
    "GroupResult",
    "Measured",
    "Suite",
    "SuiteChoice",
    "SuiteRun",
    "SuitesFailed",
    "evaluate_suites",
    "parse_suites",
    "suites",
]
