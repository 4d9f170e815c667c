"""What tasks on images share, whatever their labels are.

`config.py` is their part of the recipe; `sources/` find and open images; `inputs.py` is what the host expects, `views.py`
what the model sees; `splits.py` serves examples to the engine; `checks.py` refuses what cannot be trained on.
"""
