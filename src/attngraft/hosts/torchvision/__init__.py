"""Adapters of torchvision's models: a file each, and the MLP that they share."""
