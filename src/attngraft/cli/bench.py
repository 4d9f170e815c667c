"""`attngraft bench`: cost of a mechanism, or of whole models, on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from attngraft.cli.output import counts_displayed, echo, output_console, print_rows, progress_bars
from attngraft.cli.values import ALLOW_DOWNLOAD, HOST_ARG, HOST_WEIGHTS, MODEL, TRUST_CODE, limit_downloads
from attngraft.errors import UsageError

if TYPE_CHECKING:
    from attngraft.bench.models import ModelCost
    from attngraft.bench.scaling import ScalingResult


log = logging.getLogger(__name__)


def models(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="RUN|FOLDER|HOST|FILE...", help=f"{MODEL} Several models are compared with the first."),
    ],
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, max=2**40, metavar="N", help="Batch size.")] = 32,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens", min=1, max=2**20, metavar="N", help="Tokens per text, limited to the model's maximum."
        ),
    ] = 128,
    threads: Annotated[
        int | None,
        typer.Option("--threads", min=1, max=1024, metavar="N", help="CPU threads. Default: torch's default."),
    ] = None,
    pretrained: Annotated[bool, typer.Option("--pretrained", help="Load the pretrained weights of hosts.")] = False,
    host_weights: Annotated[Path | None, typer.Option("--host-weights", metavar="FILE", help=HOST_WEIGHTS)] = None,
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    trust_code: Annotated[bool, typer.Option("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Output file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure speed, memory, multiply-adds and parameters of models, and compare their speed with the first.

    The forward pass is measured in float32 on random inputs, on the accelerator if there is one. Passes of all models
    alternate; relative times are medians of 30 paired ratios to the first model, with 95% bootstrap intervals. Weights do
    not affect the cost, so hosts have random weights unless --pretrained is given. Point models get clouds of 1,024 points,
    those of parts 2,048.

    Examples:

        attngraft bench model runs/flowers

        attngraft bench model study/runs/none/seed0 study/runs/cb_s/seed0 --batch-size 8 --threads 2

        attngraft bench model vit_tiny_patch16_224 swin_tiny_patch4_window7_224 ./flowers-model --out speed.json

        attngraft bench model hf:./my-bert --tokens 256 --json
    """
    from attngraft.bench.models import measure_models, open_programs
    from attngraft.bench.result import to_json, write_result
    from attngraft.cli.models import host_options, options_of_each

    _refuse_other_suffix(out)
    if again := next((target for target in targets if targets.count(target) > 1), None):
        raise UsageError(f"{again} is given twice; give it once")
    given = host_options(pretrained, host_weights, host_arg)
    options = options_of_each(targets, given) if len(targets) > 1 else [given]
    opened = {
        target: open_programs(target, own, trust_code=trust_code) for target, own in zip(targets, options, strict=True)
    }
    with counts_displayed():
        result = measure_models(opened, batch_size=batch_size, tokens=tokens, threads=threads)
    if out is not None:
        write_result(result, out)
    if as_json:
        echo(to_json(result))
    else:
        print_rows([_row(each) for each in result.models], f"forward pass, batch size {batch_size}")


def _row(cost: ModelCost) -> dict[str, str]:
    from attngraft.results import wording

    time = cost.time_ratio
    return {
        "model": cost.name,
        "examples/s": f"{cost.examples_per_second:.4g}",
        "time / first": "1" if time is None else f"{time.point:.3f} [{time.low:.3f}, {time.high:.3f}]",
        "peak memory": wording.size(cost.peak_memory_bytes),
        "MACs": wording.si(cost.macs),
        "parameters": wording.si(cost.parameters),
        "inputs": ", ".join("x".join(map(str, shape)) for shape in cost.inputs),
    }


def bixt(
    out: Annotated[
        Path, typer.Option(metavar="FILE.json", help="Output file; plots are written next to it (.png, .svg, -dark).")
    ] = Path("bixt-scaling.json"),
    sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of tokens. Default: seven sizes from 196 to 1048576."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(
            metavar="LAYER,...",
            help="Layers to compare with: vit (fused attention, slow for many tokens), vit-explicit (N x N maps, which fill "
            "the memory), or none.",
        ),
    ] = "vit,vit-explicit",
    backward: Annotated[bool, typer.Option("--backward", help="Measure forward and backward passes.")] = False,
    depth: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Number of stacked layers.")] = 1,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Minimum number of timed calls per size.")] = 5,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Measure CPU time instead of wall time, for a machine with other load.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, max=1024, metavar="N", help="CPU threads. Default: torch's default.")
    ] = None,
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=1e6,
            metavar="SECONDS",
            help="Time limit for all calls of one size; a curve ends at the first size that takes longer.",
        ),
    ] = 120.0,
    memory_limit: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1e6, metavar="GB", help="Address space limit for one size. Default: 4/5 of free memory."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure time and memory of a BiXT layer from 196 to 1,048,576 tokens, next to a ViT block.

    The layer is complete: bi-directional cross-attention with projections and feed-forward networks, then a block over the
    latents; width 192, 3 heads, 64 latents, batch size 1, on the CPU. Each size runs in a separate process; its memory is
    the growth of resident memory during one call. A curve ends where memory runs out or a size takes too long. Exponents are
    fitted to the sizes of at least 3,136 tokens; the exit code is 1 if an exponent of BiXT is not within 0.1 of 1.

    Each measurement is saved immediately: rerun the same command after an interruption, or with other --sizes, to add the
    rest.

    Examples:

        attngraft bench bixt

        attngraft bench bixt --backward --threads 2 --out bixt-backward.json

        attngraft bench bixt --sizes 3136,12544,50176 --against none --time-limit 20

        attngraft bench bixt --memory-limit 8 --json
    """
    import torch

    from attngraft.bench.result import current_setting
    from attngraft.bench.scaling import SIZES, Call, Limits, begin

    _refuse_other_suffix(out)
    layers = ["bixt", *([] if against == "none" else (name.strip() for name in against.split(",")))]
    numbers = SIZES if sizes is None else _numbers(sizes, option="--sizes")
    limit = None if memory_limit is None else int(memory_limit * 1e9)
    result = begin(
        f"BiXT over the number of tokens, {'forward and backward' if backward else 'forward'}",
        layers,
        setting=current_setting(),
        call=Call(
            depth=depth,
            backward=backward,
            cpu_time=cpu_time,
            threads=threads or torch.get_num_threads(),
            repeats=repeats,
        ),
        limits=Limits(seconds=time_limit, memory=limit),
        bars={"bixt": 1.0},
    )
    _run(result, layers, numbers, out=out, as_json=as_json)


def _run(result: ScalingResult, layers: Sequence[str], sizes: Sequence[int], *, out: Path, as_json: bool) -> None:
    """Measure with a progress bar; write the file, plots and table, even after an interruption."""
    from attngraft.bench.result import to_json, write_result
    from attngraft.bench.scaling import read_scaling, resumed, sweep
    from attngraft.files import write_atomically
    from attngraft.report.scaling import scaling_plots

    if out.exists():
        result = resumed(result, read_scaling(out), path=out)

    def keep(latest: ScalingResult) -> None:
        nonlocal result
        result = latest
        write_result(latest, out)

    stopped = False
    with _bar(len(layers) * len(sizes)) as starting:
        try:
            sweep(result, layers, sizes, starting=starting, done=keep)
        except KeyboardInterrupt:
            stopped = True
    for name, content in scaling_plots(result, stem=out.stem).items():
        write_atomically(out.with_name(name), content)
    if as_json:
        echo(to_json(result))
    else:
        _show(result, out)
    if stopped:
        raise KeyboardInterrupt(f"measurements are in {out}; rerun the same command to resume")
    if not result.passed:
        raise typer.Exit(1)


def _show(result: ScalingResult, out: Path) -> None:
    from attngraft.report.scaling import exponent_lines, scaling_table

    console = output_console()
    console.print(scaling_table(result))
    for line, passed in exponent_lines(result):
        verdict = {None: Text(), True: Text(": pass", "green"), False: Text(": FAIL", "bold red")}[passed]
        console.print(Text(line) + verdict)
    console.print(Text(f"{out}, {out.with_suffix('.png')}"))


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str, int], None]]:
    """Show a progress bar, or log lines, and yield a function that advances to the next measurement."""
    with progress_bars() as bars:
        task, begun = bars.add_task("starting", total=total), 0

        def starting(title: str, tokens: int) -> None:
            nonlocal begun
            bars.update(task, completed=begun, description=f"{title}, {tokens:,} tokens")
            begun += 1
            if not bars.console.is_terminal:
                log.info("%d of %d: %s, %s tokens", begun, total, title, f"{tokens:,}")

        yield starting


def _refuse_other_suffix(out: Path | None) -> None:
    from attngraft.files import check_output

    check_output(out)
    if out is not None and out.suffix != ".json":
        raise UsageError(f"--out must end in .json; got {out}")


def _numbers(text: str, *, option: str) -> tuple[int, ...]:
    """Parse positive integers separated by commas, such as `196,784`.

    Raises:
        UsageError: `text` is not a list of positive integers.
    """
    words = [word.strip().replace("_", "") for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 and int(word) > 0 for word in words):
        raise UsageError(f"{option} takes positive integers separated by commas, such as 196,784; got {text!r}")
    return tuple(map(int, words))
