"""Training: a recipe and a folder in, a finished run out. `recipe.py` says what, `loop.py` does it.

`from attngraft.training.loop import train`, `from attngraft.training.recipe import load_recipe`; nothing is imported here,
because reading a recipe should not cost the import of torch.
"""
