"""Analyses that can be asked for by name: a file each, from models and images to a `Finding`.

They measure with what stands in `analysis/`; what they find is drawn by `report/findings.py`. A new one is a file here and a
line in `catalog.py`.
"""
