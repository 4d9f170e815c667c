"""ELSA-Swin and ELSA-VOLO, by name (registration.py) and as modules (swin.py, volo.py, blocks.py).

Importing this package only registers the names; operations are registered when a model is created.
"""

from attngraft.models.elsa import registration

__all__ = ["registration"]
