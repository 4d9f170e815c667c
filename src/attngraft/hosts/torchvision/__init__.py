"""Adapters of torchvision's models: a file per family."""
