"""Inputs of analyses, evaluations and exports: models (runs, exported folders, timm names) and images."""
