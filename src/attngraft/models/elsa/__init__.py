"""ELSA-Swin, by its published names (registration.py) and as modules (swin.py, blocks.py).

Importing this registers the names and nothing more: the operations are made when a model is.
"""

from attngraft.models.elsa import registration

__all__ = ["registration"]
