"""Training: a recipe (`recipe.py`) and a folder in, a finished run (`loop.py`) out.

`from attngraft.training.loop import train`, `from attngraft.training.recipe import load_recipe`; nothing is imported here,
so that reading a recipe does not import torch.
"""
