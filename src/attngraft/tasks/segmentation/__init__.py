"""Semantic segmentation of images."""

from attngraft.tasks.segmentation.task import Segmentation

__all__ = ["Segmentation"]
