"""Image captioning: features of images, a caption written word by word, and the metrics of captions."""

from attngraft.tasks.captioning.task import Captioning

__all__ = ["Captioning"]
