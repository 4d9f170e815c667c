"""`attngraft plan`: dry run of a graft."""

from typing import Annotated

import typer

from attngraft.cli.output import output_console
from attngraft.cli.values import HOST, HOST_ARG, assignments


def plan(
    host: Annotated[str, typer.Argument(help=HOST, metavar="HOST")],
    graft: Annotated[str, typer.Argument(help="A graft specification.", metavar="SPEC")],
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also run a random batch and report how much the outputs change.")
    ] = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="Load the host's pretrained weights (for --measure).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the sites of a graft, its parameters and MACs, and the parameters of the host that become unused.

    Examples:

        attngraft plan vit_tiny_patch16_224 "cb_s@blocks.6-11 + horizontal"

        attngraft plan swin_tiny_patch4_window7_224 "vertical@layers.2" --json

        attngraft plan vit_small_patch16_224 cb --measure --host-arg img_size=32 --host-arg depth=4
    """
    import torch

    from attngraft.grafting.plan import plan as make_plan
    from attngraft.grafting.spec import parse
    from attngraft.models.create import create_model

    spec = parse(graft)
    arguments = assignments(host_arg or [], option="--host-arg")
    with torch.device("cpu" if measure or pretrained else "meta"):
        model = create_model(host, pretrained=pretrained, **arguments)
    report = make_plan(model, spec, measure=measure)
    if as_json:
        typer.echo(report.to_json())
        return
    console = output_console(highlight=True)
    console.print(report.table())
    for line in report.summary():
        console.print(line, markup=False, highlight=False)
