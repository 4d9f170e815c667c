"""Base class of codecs whose inputs are image files, and whose outputs can be saved as files."""

from __future__ import annotations

from PIL import Image

from attngraft.opening import open_regular
from attngraft.tasks.codec import Codec
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources.decoding import decode, in_mode


class ImageFileCodec(Codec):
    """Image files as inputs, in the mode of the host's input.

    Args:
        host: the host's input.
    """

    images = True

    def __init__(self, host: HostInput) -> None:
        self.host = host

    def check(self, raw: str) -> None:
        self.open_image(raw)

    def open_image(self, raw: str) -> Image.Image:
        """Return the image of a file, in its own size.

        Raises:
            DataError: the file cannot be read.
        """
        with open_regular(raw) as stream:
            return in_mode(decode(stream, where=raw), self.host.mode)
