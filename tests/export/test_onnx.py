"""What the ONNX file cannot hold, in words that say which operation it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import ExportError
from attngraft.export.onnx import open_onnx, write_onnx
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


def graph(kind: str) -> Any:
    """A model with a loop, a tensor of 10^9 numbers, a size that comes from pixels, or functions of 2^40 operators."""
    onnx = pytest.importorskip("onnx", reason="needs the extra export")
    helper, floats, integers = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    body = helper.make_graph([], "body", [], [])
    shape = [helper.make_tensor("shape", integers, [2], [10**5, 10**4])]
    brightest = [
        helper.make_node("ReduceMax", ["image"], ["brightest"], keepdims=0),
        helper.make_node("Cast", ["brightest"], ["count"], to=integers),
        helper.make_node("Expand", ["shape", "count"], ["many"]),
        helper.make_node("Size", ["many"], ["out"]),
    ]
    nodes = {
        "loop": [helper.make_node("Loop", ["steps"], ["out"], body=body)],
        "size": [
            helper.make_node("ConstantOfShape", ["shape"], ["large"]),
            helper.make_node("Size", ["large"], ["out"]),
        ],
        "pixels": brightest,
        "functions": [helper.make_node("f39", ["shape"], ["out"], domain="own")],
    }[kind]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    doubling = [
        helper.make_function(
            "own",
            f"f{number}",
            ["x"],
            ["z"],
            [
                helper.make_node(f"f{number - 1}", ["x"], ["y"], domain="own"),
                helper.make_node(f"f{number - 1}", ["y"], ["z"], domain="own"),
            ],
            opsets,
        )
        for number in range(40)
    ]
    out = helper.make_tensor_value_info("out", integers, [])
    inputs = [helper.make_tensor_value_info("image", floats, ["batch", 3, 8, 8])]
    made = helper.make_graph(nodes, "graph", inputs, [out], initializer=shape)
    functions = doubling if kind == "functions" else []
    return helper.make_model(made, functions=functions, ir_version=8, opset_imports=opsets)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("loop", "the operator 'Loop', which may run forever"),
        ("size", "'large' has 1,000,000,000 numbers"),
        ("pixels", "the size of the tensor 'many' depends on the values of pixels"),
        ("functions", "expand to 2,199,023,255,551 operators"),
    ],
)
def test_programs_without_bounds_are_refused(tmp_path: Path, kind: str, message: str) -> None:
    (tmp_path / "a.onnx").write_bytes(graph(kind).SerializeToString())
    with pytest.raises(ExportError, match=message):
        open_onnx(tmp_path / "a.onnx")


@pytest.mark.parametrize("names", [["aux", "logits"], ["aux", "other"]])
def test_the_output_is_found_by_its_name(tmp_path: Path, names: list[str]) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra export")
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    floats = onnx.TensorProto.FLOAT
    nodes = [onnx.helper.make_node(kind, ["image"], [name]) for kind, name in zip(("Neg", "Abs"), names, strict=True)]
    values = [onnx.helper.make_tensor_value_info(name, floats, [1, 2]) for name in ("image", *names)]
    made = onnx.helper.make_graph(nodes, "graph", values[:1], values[1:])
    model = onnx.helper.make_model(made, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString())
    if "logits" not in names:
        with pytest.raises(ExportError, match=r"a\.onnx: has 2 outputs, none of which is called logits"):
            open_onnx(tmp_path / "a.onnx")
        return
    forward, _ = open_onnx(tmp_path / "a.onnx")
    assert forward(torch.tensor([[-1.0, 2.0]])).tolist() == [[1.0, 2.0]]
    with pytest.raises(ExportError, match=r"a\.onnx: onnxruntime cannot run it \(.*dimension"):
        forward(torch.ones(3, 2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.graph.ClearField("output"), "has 0 outputs"),
        (lambda model: model.graph.initializer.add(name="image", data_type=1, dims=[1], raw_data=bytes(4)), "0 inputs"),
        (lambda model: [model.metadata_props.add(key="a", value=each) for each in "bc"], "metadata have 'a' twice"),
        (lambda model: model.metadata_props.add(key="attngraft", value="QQQQ"), "onnxruntime cannot read it .*utf-8"),
    ],
)
def test_programs_of_another_form_are_refused(tmp_path: Path, change: Callable[..., None], message: str) -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra export")
    pytest.importorskip("onnxruntime", reason="needs the extra export")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("image", "logits")]
    made = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["image"], ["logits"])], "graph", values[:1], values[1:]
    )
    model = onnx.helper.make_model(made, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    change(model)
    (tmp_path / "a.onnx").write_bytes(model.SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfd\xfc"))
    with pytest.raises(ExportError, match=rf"a\.onnx: .*{message}"):
        open_onnx(tmp_path / "a.onnx")
