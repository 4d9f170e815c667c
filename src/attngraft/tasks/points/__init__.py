"""Point clouds: classes of shapes, and parts of their points."""

from attngraft.tasks.points.parts import PointParts
from attngraft.tasks.points.task import Points

__all__ = ["PointParts", "Points"]
