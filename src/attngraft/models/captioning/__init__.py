"""The meshed-memory (M2) captioner, a host of the horizontal and vertical attention paper, and its name in timm's registry.

Importing this package only registers the name: the network is imported when a model is created.
"""

from attngraft.models.captioning import registration

__all__ = ["registration"]
