"""Image captioning: features of images, a caption written word by word, and the metrics of captions.

Import from the modules of this package.
"""
