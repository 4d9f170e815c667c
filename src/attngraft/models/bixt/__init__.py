"""BiXT, the bi-directional cross-attention transformer: its parts, the model, and its names with timm.

| file | contents |
|---|---|
| tokenizers.py | images to tokens, and local patch interaction |
| positions.py | position codes of one grid, or of any |
| layers.py | blocks and layers, from `mechanisms.bixt` |
| latent_model.py | base class of models of latents and tokens, with their initialization |
| model.py | the network |
| baselines.py | the paper's baselines |
| registration.py | all of these by name |

Importing this package only registers the names: classes are imported, and their operations registered, on first use.
"""

from attngraft.models.bixt import registration

__all__ = ["registration"]
