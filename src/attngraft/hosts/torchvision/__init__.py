"""Adapters of torchvision's models: one file per family."""
