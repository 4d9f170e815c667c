"""Analyses of attention and of trained models: a file each, from models and images to an `AnalysisResult`.

`catalog.py` lists them by name, `request.py` holds their input, and `report` draws their results. To add one, write a file
with an `ANALYSIS` and list it in the catalog.
"""
