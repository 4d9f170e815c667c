"""Dense models: necks, decoders and heads around a grafted host."""

from attngraft.models.dense.segmenter import Segmenter, segmenter

__all__ = ["Segmenter", "segmenter"]
