"""Captions of images: metrics, the reward of self-critical training, and baselines without a model."""
