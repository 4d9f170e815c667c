"""ELSA-Swin and ELSA-VOLO, by name (registration.py) and as modules (swin.py, volo.py, blocks.py).

Importing this registers the names and nothing more: the operations are made when a model is.
"""

from attngraft.models.elsa import registration

__all__ = ["registration"]
