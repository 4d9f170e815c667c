"""Imports shared by all forked processes. Nothing is computed, because threads do not survive a fork."""

import matplotlib.figure  # noqa: F401
import scipy.stats  # noqa: F401
import sklearn.datasets  # noqa: F401

import attngraft.cli
import attngraft.models
import attngraft.report
import attngraft.study.runner
import attngraft.tasks.classification.task
import attngraft.training.loop  # noqa: F401
import proof.faults.harm  # noqa: F401
from attngraft.hosts.registry import load

load("timm")
