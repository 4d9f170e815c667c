"""Inputs of analyses, evaluations and exports: images, and models from runs, folders, hosts or files."""
