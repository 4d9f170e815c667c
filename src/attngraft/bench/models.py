"""Speed, memory, multiply-adds and parameters of whole models, side by side on this machine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from attngraft.bench.result import FORMAT, Setting, current_setting
from attngraft.counting import counted
from attngraft.errors import UsageError
from attngraft.models.host_input import host_input
from attngraft.models.trust import from_folder, trusting
from attngraft.results.study import Interval
from attngraft.saved.folder import load, open_codec
from attngraft.saved.manifest import read_manifest
from attngraft.suggest import one_line
from attngraft.targets.judged import HostOptions, create_target, kind_of
from attngraft.targets.run import open_run
from attngraft.tasks.codec import Codec, Program, Serving
from attngraft.tasks.points.codec import PointsCodec
from attngraft.tasks.points.part_codec import PartsCodec
from attngraft.tasks.points.split import Sampling
from attngraft.tasks.seeding import seeded
from attngraft.timing import count_macs, count_parameters, duration, several
from attngraft.timing.memory import peak_bytes
from attngraft.training.profiler import run_device, synchronizer
from attngraft.training.setup import cpu_threads

PAIRS = 30


@dataclass(frozen=True, kw_only=True)
class ModelCost:
    """Costs of one model's forward pass in float32, which runs each program of its task once."""

    name: str
    inputs: Sequence[Sequence[int]]  #: shapes of the tensors in a batch
    examples_per_second: float  #: median
    time_ratio: Interval | None  #: time divided by the first model's, in interleaved pairs; None for the first model
    peak_memory_bytes: int  #: bytes of the weights, the batch, and the allocations of the forward pass
    macs: int  #: multiply-adds per example
    parameters: int


@dataclass(frozen=True, kw_only=True)
class ModelCosts:
    """Result of `attngraft bench model`."""

    setting: Setting
    batch_size: int
    pairs: int
    models: Sequence[ModelCost]
    format: int = field(default=FORMAT)


def open_programs(
    where: str, host: HostOptions, *, trust_code: bool = False, allow_download: bool = False
) -> tuple[nn.Module, Codec]:
    """Open a model to time: a run, an exported folder, a host, or a file of weights that names its host.

    Unlike `targets.judged.open_target` it accepts hosts with random weights, since weights do not affect the cost.

    Raises:
        UsageError: there is no such model, or the input of the host is neither images, texts nor points.
        TrainingError, ExportError, HostError: the model cannot be opened.
    """
    kind, path = kind_of(where, host), Path(where)
    with from_folder(where, trust_code=trust_code, allow_download=allow_download):
        if kind == "run":
            run = open_run(path, unfinished=True, trust_code=trust_code, purpose="predict")
            return run.model, run.codec
        if kind == "exported":
            model = load(path, trust_code=trust_code).float()
            return model, open_codec(read_manifest(path), path)
        config, model = create_target(where, host, trust_code=trust_code)
        with trusting(config.name):
            shown = host_input(config.name, config.args)
    takes = shown.get("kind", "images")
    if takes == "points":
        return model, _point_codec(model, shown["labels"])
    if takes not in ("images", "text"):
        raise UsageError(
            f"{where}: inputs of kind {takes} can only be created by a task; pass a run or an exported folder"
        )
    shown = {"size": shown["input_size"]} if takes == "images" else shown
    return model, Serving(kind=takes, input=shown, activation="none", classes=())


def _point_codec(model: nn.Module, labels: str) -> Codec:
    """Return the codec of a point model, for as many points as in the papers' experiments."""
    sizes: dict[str, Any] = {"sample": "first", "normals": getattr(model, "in_chans", 3) == 6, "normalize": True}
    if labels == "points":
        return PartsCodec(Sampling(points=2048, **sizes), classes=("shape",), parts=((0,),), votes=1)
    return PointsCodec(Sampling(points=1024, **sizes), classes=(), votes=1, activation="none")


def measure_models(
    opened: Mapping[str, tuple[nn.Module, Codec]],
    *,
    batch_size: int,
    tokens: int,
    threads: int | None = None,
    pairs: int = PAIRS,
) -> ModelCosts:
    """Measure the forward pass of models on this process's device.

    Args:
        opened: models with their codecs, by name.
        batch_size: examples in a batch.
        tokens: length of texts in tokens, reduced to the model's maximum.
        threads: number of CPU threads; None: PyTorch's default.
        pairs: number of timed passes of each model.

    Raises:
        UsageError: a forward pass failed.
    """
    device, works = run_device(), {}
    measured: dict[str, dict[str, Any]] = {}
    wait = synchronizer(device)
    with cpu_threads(threads), seeded("bench"):
        setting = current_setting(str(device))
        for name, (model, codec) in counted(opened.items(), "models measured"):
            model = model.to(device).eval()
            try:
                single, batch = (_programs(model, codec, size, tokens, device) for size in (1, batch_size))
            except (MemoryError, RuntimeError) as error:
                raise UsageError(
                    f"{name}: a batch of {batch_size:,} does not fit into memory ({one_line(error)}); reduce --batch-size"
                ) from None
            tensors = [each for part in batch for each in tree_leaves((part.args, dict(part.kwargs)))]
            tensors = [each for each in tensors if isinstance(each, Tensor)]
            works[name] = _forward(batch)
            try:
                peak = peak_bytes(works[name], device, kept=[*model.parameters(), *model.buffers(), *tensors])
                macs = sum(count_macs(part.module, *part.args, **part.kwargs) for part in single)
            except Exception as error:  # of the model's own code
                shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
                raise UsageError(f"{name}: the forward pass on inputs of shape {shapes} failed: {error}") from error
            measured[name] = {
                "inputs": [list(each.shape) for each in tensors],
                "peak_memory_bytes": peak,
                "macs": macs,
                "parameters": count_parameters(model),
            }
        base, *others = works
        if others:
            ratios = several(works[base], {name: works[name] for name in others}, pairs=pairs, synchronize=wait)
            seconds = {base: ratios[others[0]].baseline_seconds}
            seconds |= {name: each.candidate_seconds for name, each in ratios.items()}
        else:
            ratios, seconds = {}, {base: duration(works[base], samples=pairs, warmup=3, synchronize=wait).seconds}
    intervals = {name: Interval(point=each.ratio, low=each.low, high=each.high) for name, each in ratios.items()}
    models = [
        ModelCost(name=name, examples_per_second=batch_size / seconds[name], time_ratio=intervals.get(name), **facts)
        for name, facts in measured.items()
    ]
    return ModelCosts(setting=setting, batch_size=batch_size, pairs=pairs, models=models)


def _programs(model: nn.Module, codec: Codec, batch_size: int, tokens: int, device: torch.device) -> list[Program]:
    """Return the task's programs with random inputs on the device."""
    programs: Iterable[Program] = codec.programs(model, batch_size=batch_size).values()
    if isinstance(codec, Serving) and codec.kind == "text":  # its example texts are shorter
        shape = (batch_size, min(tokens, codec.input["max_length"] or tokens))
        programs = [Program(module=model, args=(torch.randint(codec.input["vocab_size"], shape),))]
    moved = [(part.module.eval(), send_to_device((part.args, dict(part.kwargs)), device)) for part in programs]
    return [Program(module=module, args=args, kwargs=kwargs) for module, (args, kwargs) in moved]


def _forward(programs: Sequence[Program]) -> Callable[[], None]:
    @torch.inference_mode()
    def forward() -> None:
        for part in programs:
            part.module(*part.args, **part.kwargs)

    return forward
