"""BiXT, the bi-directional cross-attention transformer: its parts, the model, and its names with timm.

| file | what |
|---|---|
| tokenizers.py | images to tokens, and local patch interaction |
| positions.py | position codes of one grid, or of any |
| layers.py | blocks and layers, from `mechanisms.bixt` |
| latent_model.py, initialization.py | the frame around layers of latents and tokens, and how it starts |
| model.py | the network |
| baselines.py | what the paper compares it with |
| registration.py | all of these by name |
| official.py | the authors' weights |
"""

from attngraft.models.bixt import registration
from attngraft.models.bixt.baselines import Iterative, Sequential
from attngraft.models.bixt.model import BiXT
from attngraft.models.bixt.official import load_official

__all__ = ["BiXT", "Iterative", "Sequential", "load_official", "registration"]
