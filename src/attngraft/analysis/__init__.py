"""Analyses of attention and of trained models, one file each.

`catalog.py` lists the analyses by name, `request.py` defines their input, and `report` draws their results. To add an
analysis, write a file that defines `ANALYSIS` and add it to the catalog.
"""
