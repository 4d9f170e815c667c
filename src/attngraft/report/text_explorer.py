"""The explorer of texts: an HTML page with attention between the tokens of a text or image and those of the output."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from attngraft._version import __version__
from attngraft.analysis.text_attention import TextAttention, text_attention
from attngraft.errors import UsageError
from attngraft.files import write_atomically
from attngraft.report.explorer import MOST_BYTES, MOST_PIXELS, data_url, plain_tensor
from attngraft.report.templating import render, script
from attngraft.results.wording import shown
from attngraft.targets.texts import TextHandle


def explore_text(
    handles: Sequence[TextHandle],
    text: str,
    *,
    target: str | None = None,
    out: Path | str,
    sites: str = "all",
    title: str | None = None,
) -> Path:
    """Write a page that shows the attention of one or two models on a text, or on an image that they caption.

    The page shows the attention map of one layer and head as a matrix with tokens at both sides, and an overview of all
    layers and heads. The cross-attention of an encoder-decoder has the output's tokens as rows and the text's as columns.
    In captioning, the columns are the positions of the image's features, in one map per level of the encoder. If they are
    a grid, the page shows the image with the attention of the selected word.

    Args:
        handles: one or two models (`targets.texts.open_text_handle`).
        text: the text, or the image file; for models that take features also a .npy file.
        target: the output's text, for encoder-decoders; None: each model's own output.
        out: file of the page, written atomically.
        sites: sites to show, as in a graft specification.
        title: title of the page; the text by default.

    Raises:
        UsageError: there are no models or more than two, or the page would exceed 48 MB (choose fewer `sites`).
        DataError: the text or image cannot be used.
        RecordError: no chosen site attends to tokens of the text, or attention values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    if not 1 <= len(handles) <= 2:
        raise UsageError(f"the explorer page shows one or two models, but {len(handles)} were given")
    models, size = [], 0
    for handle in handles:
        found = text_attention(handle.model, handle.encode(text, target), sites=sites)
        size += sum(layer.weights.bytes.numel() for layer in found.layers)
        models.append({"name": shown(handle.name), "description": shown(handle.description), **_plain(found)})
    if size * 4 / 3 > MOST_BYTES:  # in base64
        raise UsageError(f"the page would be {size * 4 / 3e6:.0f} MB; choose fewer sites, such as sites='last:4'")
    page = render(
        "text_explorer.html.j2",
        title=shown(title or text),
        version=__version__,
        models=len(models),
        pictured=any(each["picture"] for each in models),
        data={"models": models},
        **script("maps.js", "text_explorer.js"),
    )
    return write_atomically(Path(out), page)


def _plain(found: TextAttention) -> dict[str, Any]:
    tokens = found.tokens
    return {
        "source": [shown(token) for token in tokens.source],
        "inputs": [shown(token) for token in tokens.inputs],
        "target": [shown(token) for token in tokens.target],
        "keys": [shown(token) for token in tokens.keys],
        "picture": None if tokens.picture is None else _picture(tokens.picture),
        "grid": tokens.grid,
        "layers": [
            {
                "site": shown(layer.site),
                "rows": layer.rows,
                "columns": layer.columns,
                "weights": plain_tensor(layer.weights),
            }
            for layer in found.layers
        ],
        "skipped": [[shown(site), shown(reason)] for site, reason in found.skipped.items()],
    }


def _picture(image: Image.Image) -> str:
    smaller = image.copy()
    smaller.thumbnail((MOST_PIXELS, MOST_PIXELS))
    return data_url(smaller)
