"""Folders whose models are explored by their codec's inputs: runs and exported folders."""

from dataclasses import dataclass
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
from attngraft.tasks.codec import Codec
from attngraft.training.evaluate import Weights

_OPTIONS = {"images": "--image FILE", "text": "--text TEXT", "point clouds": "--cloud FILE"}


@dataclass(frozen=True, kw_only=True)
class OpenedFolder:
    """A model in evaluation mode, on the accelerator if there is one."""

    name: str  #: of the run or of the folder
    model: nn.Module
    codec: Codec
    description: str  #: host with the arguments that change it, graft and parameters


def open_folder(
    where: str, *, option: str, weights: Weights = "last", trust_code: bool = False, allow_download: bool = False
) -> OpenedFolder:
    """Open the folder of a run or of an exported model.

    Args:
        where: the folder.
        option: the option of the input, for messages.
        weights: which weights of a run to use: last epoch, best epoch, or their moving averages.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Raises:
        UsageError: `where` is not such a folder.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    path = Path(where)
    if (path / MANIFEST).is_file():
        manifest, model = read_manifest(path), load(path, trust_code=trust_code, allow_download=allow_download)
        with from_folder(trust_code=trust_code, allow_download=allow_download):
            codec = open_codec(manifest, path)
        name = path.resolve().name
    elif path.is_dir():
        run = open_run(
            path, weights, unfinished=True, purpose="predict", trust_code=trust_code, allow_download=allow_download
        )
        model, manifest, codec, name = run.model, run.manifest, run.codec, run_name(run.record)
    else:
        raise UsageError(
            f"{where}: no such folder; {option} takes runs and exported folders, which describe the model's inputs"
        )
    device = accelerator_device()
    host = {"name": manifest.host.name, "args": manifest.host.args}
    described = [wording.model_text(host, parameters=sum(each.numel() for each in model.parameters()), input_size=())]
    return OpenedFolder(
        name=name,
        model=(model if device is None else model.to(device)).eval(),
        codec=codec,
        description=", ".join(described + ([manifest.graft] if manifest.graft else [])),
    )


def wrong_input(where: str, codec: Codec, needed: str) -> UsageError:
    """Return the error of a model that does not take the `needed` inputs."""
    option = _OPTIONS.get(codec.takes)
    return UsageError(f"{where}: takes {codec.takes}, not {needed}" + (f"; use {option}" if option else ""))
