"""Models of texts, from runs and exported folders, with their tokenizers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import nn

from attngraft.devices import accelerator_device
from attngraft.errors import UsageError
from attngraft.models.trust import from_folder
from attngraft.results import wording
from attngraft.saved.folder import load, open_codec
from attngraft.saved.manifest import MANIFEST, read_manifest
from attngraft.targets.handle import run_name
from attngraft.targets.run import open_run
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
        weights: which weights of a run to use: last epoch, best epoch, or their moving averages.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Raises:
        UsageError: `where` is not such a folder, or its model does not take texts.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    path = Path(where)
    if (path / MANIFEST).is_file():
        manifest, model = read_manifest(path), load(path, trust_code=trust_code, allow_download=allow_download)
        with from_folder(trust_code=trust_code, allow_download=allow_download):
            codec = open_codec(manifest, path)
        called = path.resolve().name
    elif path.is_dir():
        run = open_run(
            path, weights, unfinished=True, purpose="predict", trust_code=trust_code, allow_download=allow_download
        )
        model, manifest, codec, called = run.model, run.manifest, run.codec, run_name(run.record)
    else:
        raise UsageError(f"{where}: no such folder; --text takes runs and exported folders, which contain a tokenizer")
    device = accelerator_device()
    model = (model if device is None else model.to(device)).eval()
    if isinstance(codec, Serving) and codec.kind == "text":
        encode = _encoder(read_tokenizer(path / codec.input["tokenizer"]), where)
    elif type(codec).text_input is not Codec.text_input:
        encode = partial(codec.text_input, model)
    else:
        raise UsageError(f"{where}: takes {manifest.serving.takes}, not texts; use --image FILE for an image model")
    parameters = sum(each.numel() for each in model.parameters())
    host = {"name": manifest.host.name, "args": manifest.host.args}
    described = [wording.model_text(host, parameters=parameters, input_size=())]
    return TextHandle(
        name=name or called,
        model=model,
        encode=encode,
        description=", ".join(described + ([manifest.graft] if manifest.graft else [])),
    )


def _encoder(tokenizer: Tokenizer, where: str) -> Callable[[str, str | None], TextInput]:
    """Return the conversion of texts for a model without a decoder."""

    def encode(text: str, target: str | None) -> TextInput:
        if target is not None:
            raise UsageError(f"--target: {where} has no decoder; remove it")
        (ids,), _ = tokenizer.encode([text])
        batch = tokenizer.batch([ids])
        return TextInput(kwargs={"input_ids": batch["input_ids"]}, source=tokenizer.tokens(ids))

    return encode
