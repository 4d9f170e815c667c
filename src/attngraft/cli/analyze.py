"""`attngraft analyze`: what attention does in trained models, as the papers show it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attngraft.cli.evaluate import Weights

if TYPE_CHECKING:
    from attngraft.analysis.ask import Analysis, Ask
    from attngraft.results.analysis import Finding
    from attngraft.targets.handle import ModelHandle

_MODELS, _IMAGES, _OUTPUT = "Which models", "Which images", "What comes out"
ALL = "all"


def analyze(
    names: Annotated[
        list[str],
        typer.Argument(help="Analyses by name (attngraft list analyses), or all that fit.", metavar="NAME..."),
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "--run",
            help="A run's folder, an exported folder, or a model of timm; repeatable.",
            metavar="RUN|FOLDER|NAME",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            "--study",
            help="All variants of a study, one run each; its report gets what is found.",
            metavar="FOLDER",
            rich_help_panel=_MODELS,
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            "--variant", help="With --study: these variants alone; repeatable.", metavar="NAME", rich_help_panel=_MODELS
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="With --study: which run of each variant; its first.", rich_help_panel=_MODELS),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="What a model is called, in the order of --model.", rich_help_panel=_MODELS),
    ] = None,
    weights: Annotated[
        Weights, typer.Option("--weights", help="Which weights of a run.", rich_help_panel=_MODELS)
    ] = Weights.last,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Models of timm with their weights.", rich_help_panel=_MODELS)
    ] = False,
    host_arg: Annotated[
        list[str] | None,
        typer.Option(
            "--host-arg", metavar="NAME=VALUE", help="For models of timm; repeatable.", rich_help_panel=_MODELS
        ),
    ] = None,
    sites: Annotated[
        str, typer.Option("--sites", help="Which layers, as in a graft specification.", rich_help_panel=_MODELS)
    ] = "all",
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="Their validation part; a run's own if left out.", metavar="SOURCE", rich_help_panel=_IMAGES
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option("--split", help="Another part of the data by name.", metavar="NAME", rich_help_panel=_IMAGES),
    ] = None,
    image: Annotated[
        list[str] | None,
        typer.Option("--image", help="Files, folders, patterns; repeatable.", metavar="FILE", rich_help_panel=_IMAGES),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Images that means are taken over.", rich_help_panel=_IMAGES)
    ] = 500,
    shown: Annotated[
        int, typer.Option("--pictures", min=1, help="Images that are shown one by one.", rich_help_panel=_IMAGES)
    ] = 4,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images at a time.", rich_help_panel=_IMAGES)] = 32,
    label_maps: Annotated[
        Path | None,
        typer.Option(
            "--label-maps",
            help="structure: PNGs of class numbers, named as the images, for boundaries.",
            metavar="FOLDER",
            rich_help_panel=_IMAGES,
        ),
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Pictures head by head, not their mean.", rich_help_panel=_OUTPUT)
    ] = False,
    latent: Annotated[
        list[int] | None,
        typer.Option(
            "--latent",
            min=0,
            help="latents: which ones, by number; repeatable.",
            metavar="N",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(
            "--at",
            help="filters: a place of the first layer's map, from 0; repeatable.",
            metavar="ROW,COLUMN",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Default: analysis/ in the study or the one run; else attngraft-analysis/.",
            metavar="FOLDER",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page.", rich_help_panel=_OUTPUT)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was found as JSON.", rich_help_panel=_OUTPUT)
    ] = False,
) -> None:
    """Look at what attention does: the papers' figures and measures, on your models and your images.

    Each analysis writes its numbers (.json, .csv) and its figures (.png, .svg, also on dark) and stands in analysis.html;
    those of a study stand in its report too. Several models are drawn beside each other, on the same images.

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
    """
    import json

    from attngraft.analysis.ask import Ask
    from attngraft.cli.models import images_for, models_of_study, open_models
    from attngraft.cli.values import assignments
    from attngraft.errors import UsageError

    wanted, baseline = _wanted(names), None
    left_out: dict[str, str] = {}
    if (study is None) == (not model):
        raise UsageError("say which models: --study FOLDER, or --model RUN|FOLDER|NAME (repeatable)")
    if study is not None:
        subjects, baseline, left_out = models_of_study(study, variants=variant or [], seed=seed, weights=weights.value)
    else:
        arguments = assignments(host_arg or [], option="--host-arg")
        subjects = open_models(
            model or [], names=name or [], weights=weights.value, pretrained=pretrained, arguments=arguments
        )
    saved = not (image or data or split) and all(subject.has_predictions for subject in subjects)
    needs = any(each.needs_images(saved=saved) for each in wanted)
    given = {"latents": ("--latent", latent), "filters": ("--at", at), "structure": ("--label-maps", label_maps)}
    for analysis, (option, value) in given.items():
        if value and analysis not in [each.name for each in wanted]:
            raise UsageError(f"{option} is for {analysis}, which was not asked for; add it or leave {option} out")
    album = images_for(subjects, images=image or [], data=data, split=split) if needs else None
    ask = Ask(
        subjects=subjects,
        album=album,
        baseline=baseline,
        left_out=left_out,
        sites=sites,
        limit=limit,
        shown=shown,
        batch=batch,
        heads=heads,
        latents=tuple(latent or ()),
        at=tuple(_row_and_column(text) for text in at or ()),
        label_maps=label_maps,
    )
    folder = out or _place(study, subjects)
    findings = _find(wanted, ask, folder, title=title, study=study, tolerant=ALL in names, weights=weights.value)
    if as_json:
        import dataclasses

        typer.echo(json.dumps([dataclasses.asdict(each) for each in findings], indent=2, ensure_ascii=False))
    else:
        _show(findings, folder, study)


def _wanted(names: list[str]) -> list[Analysis]:
    from attngraft.analysis.catalog import analyses, analysis

    return analyses() if ALL in names else [analysis(name) for name in dict.fromkeys(names)]


def _row_and_column(text: str) -> tuple[int, int]:
    from attngraft.errors import UsageError

    row, _, column = text.partition(",")
    try:
        return int(row), int(column)
    except ValueError:
        raise UsageError(f"--at {text}: give a row and a column of the map, counted from 0, as 3,10") from None


def _place(study: Path | None, subjects: tuple[ModelHandle, ...]) -> Path:
    from attngraft.analysis.storage import FOLDER

    if study is not None:
        return study / FOLDER
    record = subjects[0].record
    return record.folder / FOLDER if len(subjects) == 1 and record is not None else Path("attngraft-analysis")


def _find(
    wanted: list[Analysis],
    ask: Ask,
    folder: Path,
    *,
    title: str | None,
    study: Path | None,
    tolerant: bool,
    weights: str,
) -> list[Finding]:
    """Each finding is written as soon as it is there, so that an interruption loses the one at work alone. Among `all`,
    analyses that do not fit are told and passed over."""
    import dataclasses

    from attngraft.cli.models import bar
    from attngraft.errors import RecordError, UsageError
    from attngraft.report.analyses import write_findings

    findings: list[Finding] = []
    for each in wanted:
        total = {"none": 0, "shown": ask.shown, "many": ask.limit}[each.images] * len(ask.subjects)
        try:
            with bar(total, each.name) as progress:
                found = each(dataclasses.replace(ask, progress=progress))
        except (RecordError, UsageError) as error:
            if not tolerant:
                raise
            typer.echo(f"attngraft: {each.name} left out: {error}", err=True)
            continue
        found = dataclasses.replace(found, made=_made(ask, each, weights))
        write_findings([found], folder, title=title or _title(ask, study))
        findings.append(found)
    if not findings:
        raise UsageError("no analysis fits these models; attngraft list analyses says what each needs")
    if study is not None:
        _renew_report(study)
    return findings


def _renew_report(study: Path) -> None:
    from attngraft.report import write_report
    from attngraft.results.storage import RESULT_FILE, load_result

    if (study / RESULT_FILE).is_file():
        write_report(load_result(study), study)


def _made(ask: Ask, analysis: Analysis, weights: str) -> dict[str, Any]:
    import shlex
    import sys
    from datetime import UTC, datetime

    from attngraft._version import __version__

    made: dict[str, Any] = {"command": shlex.join(["attngraft", *sys.argv[1:]])}
    if ask.album is not None and analysis.images != "none" and not (analysis.answers and ask.saved):
        count = min(len(ask.album), ask.shown if analysis.images == "shown" else ask.limit)
        made["images"] = f"{count} of {ask.album.source}"
    if any(subject.record is not None for subject in ask.subjects):
        made["weights"] = weights
    return made | {"made": datetime.now(UTC).isoformat(timespec="seconds"), "attngraft": __version__}


def _title(ask: Ask, study: Path | None) -> str:
    if study is not None:
        return f"What attention does in {study.resolve().name}"
    return f"What attention does in {', '.join(subject.name for subject in ask.subjects)}"


def _show(findings: list[Finding], folder: Path, study: Path | None) -> None:
    import sys

    from rich.console import Console
    from rich.text import Text

    from attngraft.report import REPORT_FILE
    from attngraft.report.analyses import PAGE

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for finding in findings:
        console.print(Text(f"{finding.title} ({finding.name})", "bold"))
        for name, value in finding.numbers.items():
            console.print(Text(f"  {name}: {value:.4g}"))
        for name, why in finding.left_out.items():
            console.print(Text(f"  left out: {name}: {why}", "yellow"))
    console.print(Text(str(folder / PAGE)))
    if study is not None and (study / REPORT_FILE).is_file():
        console.print(Text(str(study / REPORT_FILE)))
