"""Export of models to a folder with the weights, everything needed to use them, and a model card.

`run.py` exports a trained run. `torch_export.py`, `onnx.py` and `timm_config.py` add other formats. `fold.py` simplifies
models for inference, `card.py` writes the model card, and `hub.py` uploads folders. `predict.py` runs exported models.
`hf.py` saves and loads transformers models.
"""
