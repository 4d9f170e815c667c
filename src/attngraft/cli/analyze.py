"""`attngraft analyze`: the papers' figures and measures of attention, for trained models."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from attngraft._version import __version__
from attngraft.cli.evaluate import Weights
from attngraft.cli.models import host_options, images_for, models_of_study, open_models
from attngraft.cli.output import command_line, counts_displayed, echo, images_bar, output_console, print_json
from attngraft.cli.values import ALLOW_DOWNLOAD, DEVICE, HOST_ARG, HOST_WEIGHTS, MODEL, TRUST_CODE, limit_downloads
from attngraft.errors import RecordError, UsageError

if TYPE_CHECKING:
    from attngraft.analysis.request import Analysis, AnalysisRequest
    from attngraft.results.analysis import AnalysisResult
    from attngraft.targets.handle import ModelHandle

_models, _images, _output = (partial(typer.Option, rich_help_panel=panel) for panel in ("Models", "Images", "Output"))

ALL = "all"


def analyze(
    names: Annotated[
        list[str],
        typer.Argument(help="Names of analyses (attngraft list analyses), or all.", metavar="NAME..."),
    ],
    model: Annotated[
        list[str] | None,
        _models(
            "--model",
            "--run",
            help=f"{MODEL} Repeatable.",
            metavar="RUN|FOLDER|HOST|FILE",
        ),
    ] = None,
    study: Annotated[
        Path | None,
        _models(
            "--study",
            help="Analyze all variants of this study, one run each, and add the results to its report.",
            metavar="FOLDER",
        ),
    ] = None,
    variant: Annotated[
        list[str] | None, _models("--variant", help="With --study: only these variants; repeatable.", metavar="NAME")
    ] = None,
    seed: Annotated[
        int | None, _models("--seed", help="With --study: seed of the runs. Default: the study's first seed.")
    ] = None,
    name: Annotated[list[str] | None, _models("--name", help="Display names, in the order of --model.")] = None,
    weights: Annotated[Weights, _models("--weights", help="Weights of a run to use.")] = "last",
    pretrained: Annotated[bool, _models("--pretrained", help="Load the pretrained weights of hosts.")] = False,
    host_weights: Annotated[Path | None, _models("--host-weights", metavar="FILE", help=HOST_WEIGHTS)] = None,
    host_arg: Annotated[list[str] | None, _models("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    trust_code: Annotated[bool, _models("--trust-code", help=TRUST_CODE)] = False,
    allow_download: Annotated[bool, _models("--allow-download", help=ALLOW_DOWNLOAD, callback=limit_downloads)] = False,
    sites: Annotated[str, _models("--sites", help="Layers to analyze, as in a graft specification.")] = "all",
    data: Annotated[
        str | None,
        _images("--data", help="Data source; its validation split is used. Default: the run's data.", metavar="SOURCE"),
    ] = None,
    split: Annotated[
        str | None, _images("--split", help="Name of the split to use instead of the validation split.", metavar="NAME")
    ] = None,
    image: Annotated[
        list[str] | None, _images("--image", help="Image files, folders or patterns; repeatable.", metavar="FILE")
    ] = None,
    limit: Annotated[int, _images("--limit", min=1, help="Number of images to average over.")] = 500,
    shown: Annotated[int, _images("--pictures", min=1, help="Number of images to show individually.")] = 4,
    batch: Annotated[int, _images("--batch", min=1, help="Batch size.")] = 32,
    label_maps: Annotated[
        Path | None,
        _images(
            "--label-maps",
            help="structure: folder of label maps (PNGs of class indices, named like the images) that define boundaries. "
            "Default: the masks of a segmentation run's data.",
            metavar="FOLDER",
        ),
    ] = None,
    heads: Annotated[bool, _output("--heads", help="Show heads separately instead of their mean.")] = False,
    latent: Annotated[
        list[int] | None,
        _output("--latent", min=0, help="latents: index of a latent to show; repeatable.", metavar="N"),
    ] = None,
    at: Annotated[
        list[str] | None,
        _output(
            "--at",
            help="filters: a position on the first layer's map, counted from 0; repeatable.",
            metavar="ROW,COLUMN",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        _output(
            "--out",
            help="Output folder. Default: analysis/ in the study or the single run; else attngraft-analysis/.",
            metavar="FOLDER",
        ),
    ] = None,
    device: Annotated[str | None, _models("--device", metavar="NAME", help=DEVICE)] = None,
    title: Annotated[str | None, _output("--title", help="Title of the page.")] = None,
    as_json: Annotated[bool, _output("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Analyze attention: the papers' figures and measures, on your models and your images.

    Each analysis writes its numbers (.json, .csv) and figures (.png, .svg, also for dark pages) and is added to
    analysis.html; with --study also to the study's report. Several models are drawn side by side, on the same images.

    Examples:

        attngraft analyze entropy distance --study study

        attngraft analyze all --study study --seed 1

        attngraft analyze cka sides --study study --variant baseline --variant cb_s

        attngraft analyze confusion sides --model runs/baseline --model ./flowers-model --data ./more-flowers

        attngraft analyze class-token entropy-maps --run runs/baseline --run runs/cb_s --image dog.jpg --image cat.jpg

        attngraft analyze latents --run runs/bixt --image dog.jpg --latent 3 --latent 17 --heads

        attngraft analyze filters --run runs/elsa --image dog.jpg --at 3,10 --at 12,0

        attngraft analyze structure --run runs/baseline --run runs/bisa --image ./scenes --label-maps ./scenes-labels

        attngraft analyze cka --run runs/baseline --run runs/cb_s --data ./flowers --limit 1000

        attngraft analyze entropy --model vit_small_patch16_224 --pretrained --data ./photos --out looks

        attngraft analyze entropy --model torchvision:vit_b_16 --host-weights vit.pth --image dog.jpg
    """
    from attngraft.analysis.catalog import ANALYSES, analysis
    from attngraft.analysis.request import AnalysisRequest
    from attngraft.devices import use_device
    from attngraft.files import check_output
    from attngraft.targets.judged import refuse_folder

    check_output(out, folder=True)
    if out is not None:
        refuse_folder(out)
    use_device(device)
    analyses = [analysis(each) for each in dict.fromkeys(ANALYSES if ALL in names else names)]
    baseline = None
    left_out: dict[str, str] = {}
    if (study is None) == (not model):
        raise UsageError("give the models with either --study FOLDER or --model RUN|FOLDER|HOST|FILE (repeatable)")
    if study is not None:
        models, baseline, left_out = models_of_study(
            study, variants=variant or [], seed=seed, weights=weights, trust_code=trust_code
        )
    else:
        models = open_models(
            model or [],
            names=name or [],
            weights=weights,
            host=host_options(pretrained, host_weights, host_arg),
            trust_code=trust_code,
        )
    saved = not (image or data or split) and all(each.has_predictions for each in models)
    needs = any(each.needs_images(saved=saved) for each in analyses)
    specific = {"latents": ("--latent", latent), "filters": ("--at", at), "structure": ("--label-maps", label_maps)}
    for each, (option, value) in specific.items():
        if value and each not in [analysis.name for analysis in analyses]:
            raise UsageError(f"{option} only applies to the analysis {each}; add {each}, or remove {option}")
    with counts_displayed():
        image_set = images_for(models, images=image or [], data=data, split=split) if needs else None
    request = AnalysisRequest(
        models=models,
        image_set=image_set,
        baseline=baseline,
        left_out=left_out,
        sites=sites,
        limit=limit,
        shown=shown,
        batch=batch,
        heads=heads,
        latents=tuple(latent or ()),
        positions=tuple(_row_and_column(text) for text in at or ()),
        label_maps=label_maps,
    )
    folder = out or _default_folder(study, models)
    results = _run(analyses, request, folder, title=title, study=study, tolerant=ALL in names, weights=weights)
    if as_json:
        print_json([dataclasses.asdict(each) for each in results])
    else:
        _show(results, folder, study)


def _row_and_column(text: str) -> tuple[int, int]:
    row, _, column = text.partition(",")
    try:
        return int(row), int(column)
    except ValueError:
        raise UsageError(f"--at {text}: give a row and a column of the map, counted from 0, such as 3,10") from None


def _default_folder(study: Path | None, models: tuple[ModelHandle, ...]) -> Path:
    from attngraft.analysis.catalog import FOLDER

    if study is not None:
        return study / FOLDER
    record = models[0].record
    return record.folder / FOLDER if len(models) == 1 and record is not None else Path("attngraft-analysis")


def _run(
    analyses: list[Analysis],
    request: AnalysisRequest,
    folder: Path,
    *,
    title: str | None,
    study: Path | None,
    tolerant: bool,
    weights: str,
) -> list[AnalysisResult]:
    """Run the analyses and write each result immediately, so that an interruption loses only the current one.

    `tolerant` (for `all`) reports analyses that do not apply, and skips them.
    """
    from attngraft.report import write_report
    from attngraft.report.analyses import write_analyses
    from attngraft.results.storage import RESULT_FILE, read_study

    shown = study.resolve().name if study is not None else ", ".join(request.names)
    results: list[AnalysisResult] = []
    for each in analyses:
        total = {"none": 0, "shown": request.shown, "many": request.limit}[each.images] * len(request.models)
        try:
            with images_bar(total, each.name) as progress:
                result = each(dataclasses.replace(request, progress=progress))
        except (RecordError, UsageError) as error:
            if not tolerant:
                raise
            echo(f"attngraft: {each.name} left out: {error}", err=True)
            continue
        result = dataclasses.replace(result, made=_provenance(request, each, weights))
        write_analyses([result], folder, title=title or f"Attention in {shown}")
        results.append(result)
    if not results:
        raise UsageError(
            "no analysis applies to these models; run attngraft list analyses for the requirements of each"
        )
    if study is not None and (study / RESULT_FILE).is_file():
        write_report(read_study(study), study)
    return results


def _provenance(request: AnalysisRequest, analysis: Analysis, weights: str) -> dict[str, Any]:
    made: dict[str, Any] = {"command": command_line()}
    saved = analysis.predictions and request.use_saved_predictions
    if request.image_set is not None and analysis.images != "none" and not saved:
        count = min(len(request.image_set), request.shown if analysis.images == "shown" else request.limit)
        made["images"] = f"{count} of {request.image_set.source}"
    if any(model.record is not None for model in request.models):
        made["weights"] = weights
    return made | {"made": datetime.now(UTC).isoformat(timespec="seconds"), "attngraft": __version__}


def _show(results: list[AnalysisResult], folder: Path, study: Path | None) -> None:
    from attngraft.report.analyses import PAGE
    from attngraft.results.study import REPORT_FILE

    console = output_console()
    for result in results:
        console.print(Text(f"{result.title} ({result.name})", "bold"))
        for name, value in result.numbers.items():
            console.print(Text(f"  {name}: {value:.4g}"))
        for name, why in result.left_out.items():
            console.print(Text(f"  left out: {name}: {why}", "yellow"))
    console.print(Text(str(folder / PAGE)))
    if study is not None and (study / REPORT_FILE).is_file():
        console.print(Text(str(study / REPORT_FILE)))
