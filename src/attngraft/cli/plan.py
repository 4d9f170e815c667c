"""`attngraft plan`: dry run of a graft."""

from typing import Annotated

import typer

from attngraft.cli.output import echo, output_console, print_json
from attngraft.cli.values import HOST, HOST_ARG, assignments


def plan(
    host: Annotated[str, typer.Argument(help=HOST, metavar="HOST")],
    graft: Annotated[str, typer.Argument(help="A graft specification, shortlist or all.", metavar="SPEC")],
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run a random batch and report how much the outputs change.")
    ] = False,
    pretrained: Annotated[
        bool,
        typer.Option(
            "--pretrained",
            help="Load the host's pretrained weights (for --measure). With shortlist and all: list the forms for pretrained "
            "hosts.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the sites of a graft, its parameters and MACs, and the parameters of the host that become unused.

    With shortlist or all, show one line for each graft of the set that fits the host, as --graft of compare uses them.

    Examples:

        attngraft plan vit_tiny_patch16_224 "cb_s@blocks.6-11 + horizontal"

        attngraft plan swin_tiny_patch4_window7_224 "vertical@layers.2" --json

        attngraft plan vit_small_patch16_224 shortlist --pretrained

        attngraft plan vit_small_patch16_224 cb --measure --host-arg img_size=32 --host-arg depth=4
    """
    import torch

    from attngraft.grafting.plan import plan as make_plan
    from attngraft.grafting.report import overview
    from attngraft.grafting.sets import graft_set
    from attngraft.grafting.spec import parse
    from attngraft.mechanisms.registry import GRAFT_SETS
    from attngraft.models.create import create_model

    spec, several = graft.strip(), graft.strip() in GRAFT_SETS
    if not several:
        parse(spec)  # before the host is built
    arguments = assignments(host_arg or [], option="--host-arg")
    loaded = pretrained and (measure or not several)
    with torch.device("cpu" if measure or loaded else "meta"):
        model = create_model(host, pretrained=loaded, **arguments)
    specs = graft_set(model, spec, pretrained=pretrained) if several else [spec]
    reports = [make_plan(model, each, measure=measure) for each in specs]
    console = output_console(highlight=True)
    if several and as_json:
        print_json([report.to_dict() for report in reports])
    elif several:
        console.print(overview(reports, title=f"{spec} on {reports[0].model} ({reports[0].host})"))
    elif as_json:
        echo(reports[0].to_json())
    else:
        console.print(reports[0].table())
        for line in reports[0].summary():
            console.print(line, markup=False, highlight=False)
