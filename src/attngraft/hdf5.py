"""Arrays in HDF5 files that others wrote."""

import math
from typing import Any

from attngraft.opening import check_unpacked


def array_in(file: Any, entry: str) -> Any:
    """Return an array of an open file, without reading it; None if there is none, or it is in another file.

    Raises:
        UnsuitableFile: it unpacks to much more than the file, because it is compressed or a hole.
    """
    import h5py  # optional dependency

    inside = isinstance(file.get(entry, getlink=True), h5py.HardLink)  # a link is not followed
    dataset = file[entry] if inside else None
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None or dataset.external or dataset.is_virtual:
        return None
    entries = max(dataset.size, math.prod(dataset.chunks or ()))  # a chunk is unpacked as a whole
    check_unpacked(file.filename, entries * dataset.dtype.itemsize, file.id.get_filesize())
    return dataset
