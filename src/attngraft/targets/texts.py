"""Models of texts and models that caption images, from runs and exported folders, with their tokenizers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from attngraft.errors import UsageError
from attngraft.saved.manifest import MANIFEST, check_file, read_manifest
from attngraft.targets.folders import open_folder, wrong_input
from attngraft.targets.judged import kind_of
from attngraft.tasks.codec import Codec, Serving, TextInput
from attngraft.tasks.text.tokenizer import Tokenizer, read_tokenizer
from attngraft.training.evaluate import Weights
from attngraft.training.run_folder import RunFolder, read_run

_CAPTIONING = "captioning"  #: the task


@dataclass(frozen=True, kw_only=True)
class TextHandle:
    """A model of texts in evaluation mode, or one that captions images, and its conversion of texts or images to inputs."""

    name: str
    model: nn.Module
    encode: Callable[[str, str | None], TextInput]  #: raw input, and the output's text or None (see `Codec.text_input`)
    description: str  #: host with the arguments that change it, graft and parameters


def open_text_handle(
    where: str,
    *,
    name: str | None = None,
    captions: bool = False,
    weights: Weights = "last",
    trust_code: bool = False,
    allow_download: bool = False,
) -> TextHandle:
    """Open a run's folder or an exported folder, whose model takes texts or captions images.

    Args:
        where: the folder.
        captions: the model captions images; otherwise, it takes texts.
        name: display name; default: the name of the run or of the folder.
        weights, trust_code, allow_download: see `folders.open_folder`.

    Raises:
        UsageError: `where` is not such a folder, or its model is of another kind.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    if captions and not writes_captions(where):
        kind_of(where)  # raises an error if there is no such model
        raise UsageError(
            f"{where}: does not caption images, as another --model does; give runs and exported folders of captioning only, "
            "or this model alone"
        )
    option = "--image" if captions else "--text"
    opened = open_folder(where, option=option, weights=weights, trust_code=trust_code, allow_download=allow_download)
    codec = opened.codec
    if isinstance(codec, Serving) and codec.kind == "text":
        file = Path(where) / codec.input["tokenizer"]
        check_file(file, Path(where))
        encode = _encoder(read_tokenizer(file, of_model=codec.input), where)
    elif type(codec).text_input is not Codec.text_input and (codec.takes == "images") == captions:
        encode = partial(codec.text_input, opened.model)
    else:
        raise wrong_input(where, codec, "texts")
    return TextHandle(name=name or opened.name, model=opened.model, encode=encode, description=opened.description)


def writes_captions(where: str) -> bool:
    """Return whether `where` is the folder of a run or of an exported model that captions images.

    Raises:
        TrainingError, ExportError: the folder is damaged.
    """
    path = Path(where)
    if (path / MANIFEST).is_file():
        return read_manifest(path).task == _CAPTIONING
    run = RunFolder(path)
    return run.recipe.is_file() and read_run(path).recipe.task["name"] == _CAPTIONING


def _encoder(tokenizer: Tokenizer, where: str) -> Callable[[str, str | None], TextInput]:
    """Return the conversion of texts for a model without a decoder."""

    def encode(text: str, target: str | None) -> TextInput:
        if target is not None:
            raise UsageError(f"--target: {where} has no decoder; remove it")
        (ids,), _ = tokenizer.encode([text])
        batch = tokenizer.batch([ids])
        return TextInput(kwargs={"input_ids": batch["input_ids"]}, source=tokenizer.tokens(ids))

    return encode
