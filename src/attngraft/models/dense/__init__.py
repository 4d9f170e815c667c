"""Dense models: necks, decoders and heads around a grafted host."""

from attngraft.models.dense.segmenter import Segmenter, padded_size, segmenter

__all__ = ["Segmenter", "padded_size", "segmenter"]
