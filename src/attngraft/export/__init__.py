"""Taking a model away: a folder with its weights, what is needed to use it, and a card that says what it is.

`folder.py` writes and loads such folders, `manifest.py` is what they say of themselves; `torch_export.py`, `onnx.py` and
`timm_config.py` add programs and configurations for others; `fold.py` simplifies for inference; `card.py` writes the model
card, `hub.py` uploads; `run.py` does all of it for a trained run; `predict.py` uses what came out.
"""
