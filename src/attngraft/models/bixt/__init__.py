"""BiXT, the bi-directional cross-attention transformer: its layers, the model, and its timm names.

| file | contents |
|---|---|
| tokenizers.py | images to tokens, and local patch interaction |
| positions.py | position codes, of a fixed grid or of any grid |
| layers.py | blocks and layers, from `mechanisms.bixt` |
| latent_model.py | base class of models with latents and tokens, and their initialization |
| model.py | the network |
| baselines.py | the paper's baselines |
| registration.py | registration of the names with timm |

Importing this package only registers the names: classes are imported, and their operations registered, on first use.
"""

from attngraft.models.bixt import registration

__all__ = ["registration"]
