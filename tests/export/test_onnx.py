"""What the ONNX file cannot hold, in words that say which operation it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import ExportError
from attngraft.export.onnx import write_onnx
from attngraft.export.torch_export import export_program
from attngraft.targets.run import open_run
from tests.export.runs import make_run


class FiveAxes(nn.Module):
    """Attention that torch runs and its exporter does not take."""

    def forward(self, images: Tensor) -> Tensor:
        x = images[:, None]
        return F.scaled_dot_product_attention(x, x, x)


@pytest.mark.slow
def test_the_cause_is_told_and_not_the_advice(tmp_path: Path) -> None:
    manifest, model = open_run(make_run(tmp_path / "run")).manifest, FiveAxes()
    with pytest.raises(ExportError) as refusal:
        write_onnx(export_program(model, manifest), model, manifest, tmp_path)
    said = str(refusal.value)
    assert "only 4D query, key, and value are supported, at aten.scaled_dot_product_attention.default" in said
    assert "use --to pt2 or --to torch" in said
    assert "Next steps" not in said
    assert "\x1b" not in said


SUMMARY = """Failed. \x1b[96mThis is step 3/3\x1b[0m of exporting the model. Next steps:
- Debug it.

## Exception summary

<class 'torch.onnx.errors.DispatchError'>: No ONNX function found
⬆️
<class 'ConversionError'>: Error when translating node %a : call_function[target=torch.ops.aten.a.b](args = ())
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SUMMARY, "DispatchError: No ONNX function found, at aten.a.b"),
        ("\x1b[96mno\x1b[0m memory\nmore of it", "no memory"),
        ("", "RuntimeError"),
    ],
    ids=["summary", "colors", "no words"],
)
def test_of_a_long_message_one_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(text)

    manifest, model = open_run(make_run(tmp_path / "run")).manifest, FiveAxes()
    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(ExportError, match=rf"cannot be converted to ONNX \({expected}\);"):
        write_onnx(export_program(model, manifest), model, manifest, tmp_path)
