"""Training of a run: `recipe.py` defines its settings, `loop.py` trains it in a folder.

Import `train` from `attngraft.training.loop` and `load_recipe` from `attngraft.training.recipe`. Nothing is imported here,
so that reading a recipe does not import torch.
"""
