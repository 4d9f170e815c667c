"""Every graft through every export format; each exported file by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.errors import ExportError, UsageError
from attngraft.export import onnx, timm_config, torch_export
from attngraft.export.run import ROUNDING, Target, export_run
from attngraft.grafting.spec import parse
from attngraft.mechanisms.registry import graft_types
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import read_run
from tests.export.runs import CLASSES, ELSA_SWIN, SWIN, VIT, make_run
from tests.slow import product_but

ALL: tuple[Target, ...] = ("torch", "pt2", "onnx", "hf") if timm_config.LOADS_FOLDERS else ("torch", "pt2", "onnx")
ONE_BLOCK = {
    "vit": {**VIT, "args": {**VIT["args"], "depth": 1}},
    "swin": {**SWIN, "args": {**SWIN["args"], "depths": [2], "num_heads": [2]}},  # plain and shifted windows
}


#: numbers of the ghost heads that are not those which they have by themselves
GHOSTS = ["elsa(kernel=3, mul=2, add=0.5) + cb", "ghost(mul=3, add=0.5)"]


def registered() -> list[str]:
    """Every graft that comes with the package."""
    return sorted(name for name, kind in graft_types().items() if type(kind).__module__.startswith("attngraft."))


def hosts_of(graft: str) -> tuple[str, str]:
    """Return the host to export the graft on, and the other one: Swin for grafts that replace its blocks."""
    replaces = any("space" in graft_types()[term.name].hook_points(term.options) for term in parse(graft).terms)
    return ("swin", "vit") if replaces else ("vit", "swin")


#: every graft and ghost head on two blocks, as many beside each other as go together; alone on demand
BESIDE = [
    ("bisa@blocks.0 + misa@blocks.1 + cb_gate + se + identity", "vit"),
    ("ghost@blocks.0 + uniform_heads@blocks.1 + cb + cb_hybrid", "vit"),
    ("ghost(mul=3, add=0.5)@blocks.0 + cb_s + horizontal + vertical", "vit"),
    ("horizontal", "vit"),
    ("elsa@layers.0.blocks.0 + lsa@layers.0.blocks.1", "swin"),
    ("elsa(kernel=3, mul=2, add=0.5)@layers.0.blocks.0 + involution@layers.0.blocks.1 + cb", "swin"),
    ("ddf@layers.0.blocks.0 + outlooker@layers.0.blocks.1", "swin"),
    ("dwconv", "swin"),
]
#: minutes to translate; others filter neighborhoods in the same way
SLOWEST = {"dynamic_dwconv"}
PAIRS = [(graft, host) for graft in [*registered(), *GHOSTS] for host in hosts_of(graft)]


def test_each_graft_is_beside_others() -> None:
    def forms(specs: list[str]) -> set[str]:
        return {repr((term.name, term.options)) for spec in specs for term in parse(spec).terms}

    assert forms([spec for spec, _ in BESIDE]) == forms([*registered(), *GHOSTS]) - forms(list(SLOWEST))


@pytest.mark.parametrize(("graft", "host"), product_but(dict.fromkeys([*BESIDE, *PAIRS]), BESIDE))
def test_every_graft_goes_through_every_format(tmp_path: Path, graft: str, host: str) -> None:
    """`export_run` itself compares each file with the model, and raises where they differ."""
    try:
        run = make_run(
            tmp_path / "run", graft, host=VIT if (graft, host) in BESIDE and host == "vit" else ONE_BLOCK[host]
        )
    except attngraft.HostError as refusal:
        pytest.skip(f"refused by this host: {refusal}")
    stages = {stage for term in parse(graft).terms for stage in graft_types()[term.name].hook_points(term.options)}
    replaces = "space" in stages  # the host's own attention: plain timm could not do without
    made = export_run(run, tmp_path / "out", to=[to for to in ALL if not (replaces and to == "hf")], fold=True)
    checks = {check.file: check for check in made.manifest.checks}
    assert checks.keys() == {"folding", "model.safetensors", "model.pt2", "model.onnx"}
    assert checks["folding"].difference <= 1e-5
    assert checks["model.onnx"].difference <= 1e-4
    assert checks["model.onnx"].batches == (1, 2, 5)
    images = torch.randn(3, *made.manifest.input_size)
    trained = trained_model(read_run(run), "last").eval()
    with torch.no_grad():
        expected = trained(images)
        torch.testing.assert_close(attngraft.load(tmp_path / "out")(images), expected, rtol=1e-5, atol=1e-5)
        if made.manifest.grafted:
            return
        plain = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
        torch.testing.assert_close(plain(images), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small grafted ViT in every format."""
    folder = tmp_path_factory.mktemp("formats")
    run = make_run(folder / "run", "cb_s + horizontal", host=ONE_BLOCK["vit"])
    export_run(run, folder / "out", to=ALL, dtype="int8")
    return folder / "out"


@pytest.mark.oldest
@pytest.mark.parametrize("file", ["model.pt2", "model.onnx"])
def test_a_program_alone_is_the_model_at_any_batch_size(exported: Path, tmp_path: Path, file: str) -> None:
    alone = Path(shutil.copy(exported / file, tmp_path / file))
    forward, manifest = (onnx.open_onnx if file.endswith("onnx") else torch_export.open_program)(alone)
    model = attngraft.load(exported)
    for size in (1, 3, 7):
        images = torch.randn(size, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(forward(images), model(images), rtol=1e-4, atol=1e-5)
    assert manifest is not None
    assert json.loads(manifest)["serving"]["classes"] == CLASSES


def test_the_quantized_file_is_smaller_and_its_difference_is_told(exported: Path) -> None:
    manifest = json.loads((exported / "attngraft.json").read_text())
    assert manifest["programs"]["onnx int8"] == "model.int8.onnx"
    check = next(check for check in manifest["checks"] if check["file"] == "model.int8.onnx")
    assert 0 < check["difference"] < check["tolerance"]
    assert "model.int8.onnx" in (exported / "README.md").read_text()


def test_a_timm_that_cannot_load_folders_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm_config, "LOADS_FOLDERS", False)
    with pytest.raises(UsageError, match="--to hf: requires timm 1.0.26 or later.*pip install -U timm"):
        export_run(tmp_path / "run", tmp_path / "out", to=("hf",))
    assert not (tmp_path / "out").exists()


@pytest.mark.oldest
@pytest.mark.skipif(not timm_config.LOADS_FOLDERS, reason="timm before 1.0.26 does not load such folders")
def test_plain_timm_loads_the_host_and_the_card_says_that_it_is_not_the_model(exported: Path) -> None:
    plain = timm.create_model(f"local-dir:{exported}", pretrained=True).eval()
    model = attngraft.load(exported)
    host = attngraft.load(exported)
    attngraft.ungraft(host)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(plain(images), host(images))
        assert not torch.allclose(plain(images), model(images), atol=1e-2)
    assert "That is **not** this model" in (exported / "README.md").read_text()
    data = timm.data.resolve_model_data_config(plain)
    assert tuple(data["input_size"]) == (3, 16, 16)
    assert data["crop_pct"] == 0.9
    assert json.loads((exported / "config.json").read_text())["label_names"] == CLASSES


def test_a_host_without_grafts_is_plain_timms(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", host=SWIN)
    made = export_run(run, tmp_path / "out", to=["hf"])
    assert made.plain_difference == 0
    assert not (tmp_path / "out" / "grafts").exists()
    assert "That is this model" in (tmp_path / "out" / "README.md").read_text()


def test_what_stands_in_for_the_hosts_attention_is_refused_for_plain_timm(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "elsa(kernel=3)", host=ONE_BLOCK["swin"])
    with pytest.raises(
        UsageError, match=r"--to hf: .* at 2 sites \(layers\.0\.blocks\.0 is the first\).*remove --to hf"
    ):
        export_run(run, tmp_path / "out", to=["hf"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("graft", "host", "to"),
    [
        ("cb + vertical", "vit", ["pt2", "hf"]),
        ("horizontal", "vit", ["pt2"]),
        pytest.param("bisa", "vit", ["pt2"], marks=pytest.mark.slow),
        pytest.param("misa", "vit", ["pt2"], marks=pytest.mark.product),
        pytest.param("elsa", "swin", ["pt2"], marks=pytest.mark.product),
    ],
)
def test_half_the_size_in_bf16(tmp_path: Path, graft: str, host: str, to: list[Target]) -> None:
    """Of all but the first the program calculates in another order than the model, and so rounds otherwise."""
    run = make_run(tmp_path / "run", graft, host=ONE_BLOCK[host])
    export_run(run, tmp_path / "fp32")
    made = export_run(run, tmp_path / "bf16", to=to, dtype="bfloat16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("fp32", "bf16")]
    assert sizes[1] < 0.6 * sizes[0]
    model = attngraft.load(tmp_path / "bf16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    checks = {check.file: check for check in made.manifest.checks}
    assert 0 < checks["rounding to bfloat16"].difference < 0.1
    assert checks["model.pt2"].difference < 0.05
    assert 1e-5 < checks["model.pt2"].tolerance < ROUNDING


def test_a_model_of_transformers_is_refused_for_timm(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="needs the extra hf")
    sizes = {"img_size": 16, "patch_size": 8, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    run = make_run(tmp_path / "run", "cb_s", host={"name": "transformers_classifier", "args": sizes})
    with pytest.raises(ExportError, match=r"transformers_classifier is a transformers model.*use --to torch"):
        export_run(run, tmp_path / "out", to=["hf"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    export_run(run, tmp_path / "out")
    model, images = attngraft.load(tmp_path / "out"), torch.randn(2, 3, 16, 16)
    attngraft.save_pretrained(model.model, tmp_path / "folder")  # as the message says
    with torch.no_grad():
        assert torch.equal(attngraft.from_pretrained(tmp_path / "folder")(images).logits, model(images))


@pytest.mark.slow
def test_elsa_swin_is_translated_with_its_windows(tmp_path: Path) -> None:
    """Those of the last stage stand still and shifted, each on a map of four."""
    made = export_run(make_run(tmp_path / "run", host=ELSA_SWIN), tmp_path / "out", to=["pt2", "onnx"])
    assert {check.file for check in made.manifest.checks} == {"model.safetensors", "model.pt2", "model.onnx"}


def test_what_does_not_go_together_is_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = tmp_path / "no-run"
    with pytest.raises(UsageError, match="bf16"):
        export_run(nothing, tmp_path / "out", to=["onnx"], dtype="bfloat16")
    with pytest.raises(UsageError, match="--to onnx"):
        export_run(nothing, tmp_path / "out", dtype="int8")
    monkeypatch.setattr(onnx, "PACKAGES", ("onnx", "not_a_package"))
    with pytest.raises(UsageError, match=r'requires not_a_package; run pip install "attngraft\[export\]"'):
        export_run(nothing, tmp_path / "out", to=["onnx"])


@pytest.mark.parametrize("name", ["model.pt2", "model.onnx"])
def test_damaged_programs_are_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(ExportError, match=name):
        (onnx.open_onnx if name.endswith("onnx") else torch_export.open_program)(tmp_path / name)


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("PytorchStreamWriter failed writing file data/0: file write failed")

    run = make_run(tmp_path / "run", host=ONE_BLOCK["vit"])
    monkeypatch.setattr(torch.export, "save", full)
    with pytest.raises(ExportError, match=r"model\.pt2: cannot be written .* free some space"):
        export_run(run, tmp_path / "out", to=["pt2"])
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
