"""Loss and training steps of segmentation.

    python bench/segmentation.py --threads 2 --out benchmarks/segmentation.json

The loss is that of logits (2, 150, 128, 128) and labels of 512 x 512, forward and backward: in blocks of rows, relative to
`interpolate` and `cross_entropy`, time and peak memory. Steps are of UPerNet (width 512, with its auxiliary head) on Swin-T:
with grafts, relative to the plain host; and without the auxiliary head, relative to `UPerNet` of segmentation_models_pytorch
with `interpolate` and `cross_entropy`. Before timing, losses and gradients must be equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import segmentation_models_pytorch as smp
import timm
import torch
import torch.nn.functional as F
from steps import grafted
from torch import Tensor, nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measured_once, measurement
from attngraft.models.dense import segmenter
from attngraft.tasks.segmentation.loss import row_block_loss
from attngraft.timing import paired_ratio
from attngraft.timing.memory import growth, in_fresh_process

CLASSES, WIDTH = 150, 512
GRAFTS = {"cb": 1.03, "bisa@first:2": 1.20}
Loss = Callable[[Tensor, Tensor], Tensor]


def plain_loss(logits: Tensor, label: Tensor) -> Tensor:
    large = F.interpolate(logits, label.shape[1:], mode="bilinear", align_corners=False)
    return F.cross_entropy(large, label.long(), ignore_index=255)


LOSSES: dict[str, Loss] = {"blocks of rows": row_block_loss, "interpolate": plain_loss}


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    label = torch.randint(CLASSES, (2, size, size)).to(torch.uint8)
    return torch.randn(2, CLASSES, size // 4, size // 4), label


def with_gradient(loss: Loss, logits: Tensor, label: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
    given = logits.clone().requires_grad_()

    def work() -> tuple[Tensor, Tensor]:
        given.grad = None
        value = loss(given, label)
        value.backward()
        return value.detach(), given.grad

    return work


def growth_here(name: str, size: int) -> int:
    """Return the growth of this process's memory by one loss with its gradient, in bytes."""
    with_gradient(LOSSES[name], *batch_of(32))()
    grown, _ = growth(with_gradient(LOSSES[name], *batch_of(size)))
    return grown or 0


def step_of(model: nn.Module, loss: Callable[[Any], Tensor], images: Tensor) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-5)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model(images)).backward()
        optimizer.step()

    return step


def smp_upernet() -> nn.Module:
    """Return UPerNet on Swin-T, with logits at stride 4."""
    name, sizes = "tu-swin_tiny_patch4_window7_224", {"strict_img_size": False, "always_partition": True}
    model = smp.UPerNet(name, encoder_weights=None, decoder_channels=WIDTH, classes=CLASSES, **sizes)
    model.segmentation_head = model.segmentation_head[0]  # `plain_loss` upsamples
    return model


def main() -> int:
    parser = options("Loss and training steps of segmentation.", pairs=30)
    parser.add_argument("--size", type=int, default=512, help="side of the label maps of the loss")
    parser.add_argument("--image", type=int, default=64, help="side of the images of a step")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's default if not given")
    parser.add_argument(
        "--bytes-here", choices=LOSSES, help="only print the growth of this process's memory by one loss"
    )
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    if arguments.bytes_here is not None:
        print(growth_here(arguments.bytes_here, arguments.size))
        return 0
    setting, pairs = current_setting("cpu"), arguments.pairs
    ours, theirs = (with_gradient(loss, *batch_of(arguments.size)) for loss in LOSSES.values())
    check_outputs(ours(), theirs(), what="the loss", rtol=1e-4, atol=1e-7)
    lines = [measurement("loss in blocks of rows: time", paired_ratio(theirs, ours, pairs=pairs), bar=0.8)]
    threads = torch.get_num_threads()
    rows, whole = (in_fresh_process(__file__, name, "--size", str(arguments.size), threads=threads) for name in LOSSES)
    share = rows / max(1, whole)
    lines.append(measured_once("loss in blocks of rows: peak memory", share, bar=0.3))
    torch.manual_seed(0)
    images = torch.randn(1, 3, arguments.image, arguments.image)
    label = torch.randint(CLASSES, (1, arguments.image, arguments.image)).to(torch.uint8)

    def host() -> nn.Module:
        torch.manual_seed(0)
        sizes = {"num_classes": 0, "strict_img_size": False, "always_partition": True}
        return timm.create_model("swin_tiny_patch4_window7_224", **sizes)

    def with_auxiliary(outputs: tuple[Tensor, Tensor]) -> Tensor:
        logits, auxiliary = outputs
        return row_block_loss(logits, label) + 0.4 * row_block_loss(auxiliary, label)

    def steps(host: nn.Module) -> Callable[[], object]:
        return step_of(
            segmenter(host, classes=CLASSES, head="upernet", width=WIDTH, norm="group"), with_auxiliary, images
        )

    plain = steps(host())
    for spec, bar in GRAFTS.items():
        what = f"UPerNet on Swin-T with {spec}: training step over the plain one"
        lines.append(measurement(what, paired_ratio(plain, steps(grafted(host(), spec)), pairs=pairs), bar=bar))
    both = images.repeat(2, 1, 1, 1), label.repeat(2, 1, 1)  # batch norm needs two
    mine = segmenter(host(), classes=CLASSES, head="upernet", width=WIDTH, auxiliary=False)
    ours, theirs = (
        step_of(model, lambda logits, loss=loss: loss(logits, both[1]), both[0])
        for model, loss in ((mine, row_block_loss), (smp_upernet(), plain_loss))
    )
    what = "UPerNet on Swin-T: training step over that of segmentation_models_pytorch"
    lines.append(measurement(what, paired_ratio(theirs, ours, pairs=pairs), bar=1.02))
    result = setting.result(
        "Segmentation",
        settings={"size": arguments.size, "image": arguments.image, "pairs": pairs, "threads": threads},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
