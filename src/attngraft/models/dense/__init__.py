"""Dense models: necks, decoders and heads around a grafted host."""

from attngraft.models.dense.detector import Detector, FixedWork, detector
from attngraft.models.dense.model import padded_size
from attngraft.models.dense.rle import masks_to_rle
from attngraft.models.dense.segmenter import Segmenter, segmenter

__all__ = ["Detector", "FixedWork", "Segmenter", "detector", "masks_to_rle", "padded_size", "segmenter"]
