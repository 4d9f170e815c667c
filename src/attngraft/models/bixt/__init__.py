"""BiXT, the bi-directional cross-attention transformer: its parts, the model, and its names with timm.

| file | what |
|---|---|
| tokenizers.py | images to tokens, and local patch interaction |
| positions.py | position codes of one grid, or of any |
| layers.py | blocks and layers, from `mechanisms.bixt` |
| model.py, initialization.py | the network, and how it starts |
| registration.py | the published models by name |
"""

from attngraft.models.bixt import registration
from attngraft.models.bixt.model import BiXT

__all__ = ["BiXT", "registration"]
