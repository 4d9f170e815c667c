"""Inputs of analyses, evaluations and exports: models (runs, exported folders, hosts, files of weights) and images."""
