"""Point clouds: operations, layers and models.

Importing this package only registers the names of the models: networks are imported when a model is created.
"""

from attngraft.models.points import registration

__all__ = ["registration"]
