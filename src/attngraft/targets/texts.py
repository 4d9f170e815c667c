"""Models of texts, from runs and exported folders, with their tokenizers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from attngraft.errors import UsageError
from attngraft.targets.folders import open_folder, wrong_input
from attngraft.tasks.codec import Codec, Serving, TextInput
from attngraft.tasks.text.tokenizer import Tokenizer, read_tokenizer
from attngraft.training.evaluate import Weights


@dataclass(frozen=True, kw_only=True)
class TextHandle:
    """A model of texts in evaluation mode, and its conversion of texts to inputs."""

    name: str
    model: nn.Module
    encode: Callable[[str, str | None], TextInput]  #: text, and the output's text or None (see `Codec.text_input`)
    description: str  #: host with the arguments that change it, graft and parameters


def open_text_handle(
    where: str,
    *,
    name: str | None = None,
    weights: Weights = "last",
    trust_code: bool = False,
    allow_download: bool = False,
) -> TextHandle:
    """Open a run's folder or an exported folder, whose model takes texts.

    Args:
        where: the folder.
        name: display name; default: the name of the run or of the folder.
        weights, trust_code, allow_download: see `folders.open_folder`.

    Raises:
        UsageError: `where` is not such a folder, or its model does not take texts.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    opened = open_folder(where, option="--text", weights=weights, trust_code=trust_code, allow_download=allow_download)
    codec = opened.codec
    if isinstance(codec, Serving) and codec.kind == "text":
        encode = _encoder(read_tokenizer(Path(where) / codec.input["tokenizer"]), where)
    elif type(codec).text_input is not Codec.text_input:
        encode = partial(codec.text_input, opened.model)
    else:
        raise wrong_input(where, codec, "texts")
    return TextHandle(name=name or opened.name, model=opened.model, encode=encode, description=opened.description)


def _encoder(tokenizer: Tokenizer, where: str) -> Callable[[str, str | None], TextInput]:
    """Return the conversion of texts for a model without a decoder."""

    def encode(text: str, target: str | None) -> TextInput:
        if target is not None:
            raise UsageError(f"--target: {where} has no decoder; remove it")
        (ids,), _ = tokenizer.encode([text])
        batch = tokenizer.batch([ids])
        return TextInput(kwargs={"input_ids": batch["input_ids"]}, source=tokenizer.tokens(ids))

    return encode
