"""The scripts in `bench/`: their checks detect wrong outputs, and (slow) each runs end to end."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
from products import products_only
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from attngraft.attention import GraftedModule
from attngraft.bench.result import BenchResult, WrongOutputsError, check_outputs, read_benchmark
from attngraft.cli import main
from attngraft.errors import AttngraftError
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.report import figures
from attngraft.report.figures import plot_files
from attngraft.timing import several
from attngraft.timing.memory import in_fresh_process
from tests.slow import product_but

BENCH = Path(__file__).resolve().parents[2] / "bench"
RESULTS = BENCH.with_name("benchmarks")
DATA = Path(os.environ.get("ATTNGRAFT_SHARED", BENCH.parents[1] / "shared")).resolve() / "data"
COMMANDS = {
    "loop_overhead": ["--depth", "1"],
    "graft_cost": ["--batch", "1"],
    "import_time": [],
    "first_hour": ["--parts", "demo", "--demo-args", "--epochs 1 --seeds 1"],
    "report_size": ["--seeds", "2", "--epochs", "3", "--images", "300", "--classes", "12"],
    "data_loading": ["--invented", "80", "--batch", "16", "--epochs", "1", "--workers", "1"],
    "bisa_layer": ["--shapes", "LeViT-128S, stage 1", "4096 tokens", "--threads", "1"],
    "compiled": ["--batch", "1", "--only", "cb_s", "--backend", "eager"],
    "bisa_models": ["--hosts", "levit_128s", "--batch", "2", "--threads", "1"],
    "jobs": ["--epochs", "1", "--depth", "1", "--size", "8"],
    "local_filter": ["--ghosts", "add", "--threads", "1"],
    "elsa_models": ["--batch", "1", "--threads", "1"],
    "recording": ["--batch", "1", "--large-batch", "2", "--large", "vit_tiny_patch16_224", "--threads", "1"],
    "resampling": [],
    "triton_kernels": ["--only", "two-way"],
    "generation": ["--sizes", "192", "--tokens", "2", "--threads", "1"],
    "bixt_op": ["--sizes", "1x196", "--parts", "forward", "--threads", "1"],
    "load": ["--rows", "300", "--files", "100", "--variants", "3", "--seeds", "2", "--epochs", "2", "--images", "60"],
    "camvid": ["--data", str(DATA / "camvid"), "--epochs", "1", "--threads", "1"],
    "nuclei": ["--data", str(DATA / "nuclei"), "--epochs", "1", "--threads", "1"],
    "points": ["--threads", "1"],
    "segmentation": ["--size", "64", "--image", "32", "--threads", "1"],
    "detection": ["--size", "60", "80", "--image", "32", "--threads", "1"],
    "captioning": [
        *("--samples", "4", "--images", "20", "--threads", "1", "--captioned", "20", "--rows", "3", "--channels", "8"),
        *("--steps", "2", "--evaluated", "2", "--set", "host.args={dim: 24, depth: 1, heads: 2, hidden: 32, slots: 4}"),
    ],
    "translation": ["--tokens", "60", "--sentences", "4", "--decoded", "2", "--threads", "1"],
}
PARTS = {"products", "steps"}  #: modules that commands share


def command(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def tiny() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, embed_dim=24, num_heads=3, num_classes=5)


def test_there_is_a_test_for_every_command():
    assert {path.stem for path in BENCH.glob("*.py")} == set(COMMANDS) | PARTS


def test_a_results_command_is_the_one_that_is_documented():
    """Except for the number of pairs, which may grow before a result is measured again; if given, it is 30 or more."""
    rows = re.findall(r"^\| `(python bench/.+?)` \|", (RESULTS / "README.md").read_text(), re.MULTILINE)
    assert {row.split()[1] for row in rows} == {f"bench/{name}.py" for name in COMMANDS}
    for row in rows:
        result = read_benchmark(BENCH.parent / row.split()[-1], BenchResult)
        documented, measured = (re.sub(r" --pairs \d+", "", text) for text in (row, result.command))
        assert documented == measured
        pairs = re.search(r"--pairs (\d+)", row)
        assert pairs is None or int(pairs[1]) >= 30 or "jobs.py" in row  # its runs are minutes long


def test_the_check_of_graft_cost_detects_a_change():
    graft_cost, host, images = command("graft_cost"), tiny(), torch.randn(2, 3, 32, 32)
    models = {name: graft_cost.grafted(host, name) for name in graft_cost.BARS if name != graft_cost.PLAIN}
    models[graft_cost.PLAIN] = graft_cost.patched(host)
    assert sum(isinstance(module, GraftedModule) for module in models[graft_cost.PLAIN].modules()) >= 4
    graft_cost.check(host, models, images)
    with torch.no_grad():
        models[graft_cost.PLAIN].head.bias[0] += 1e-3
    with pytest.raises(WrongOutputsError, match="patched"):
        graft_cost.check(host, models, images)


@pytest.mark.parametrize("spec", ["horizontal", "vertical"])
def test_products_alone_change_nothing_and_reach_every_matrix(spec: str):
    host, images = tiny(), torch.randn(2, 3, 32, 32)
    model = products_only(command("graft_cost").grafted(host, spec))
    output = model(images)
    assert torch.equal(output, host(images))
    output.sum().backward()
    added = {name: parameter for name, parameter in model.named_parameters() if ".grafts." in name}
    assert {name for name, parameter in added.items() if parameter.grad is None} == {
        name for name in added if name.endswith("bias")
    }


def test_a_step_of_graft_cost_trains():
    graft_cost, host = command("graft_cost"), tiny()
    before = host.head.weight.detach().clone()
    graft_cost.training_step(host, torch.randn(2, 3, 32, 32), torch.tensor([0, 1]))()
    assert not torch.equal(host.head.weight, before)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "levit_128s"])
def test_the_check_of_bisa_models_covers_every_inverse_branch(name: str):
    bisa_models, images = command("bisa_models"), torch.randn(1, 3, 224, 224)
    torch.manual_seed(0)
    model = bisa_models.grafted(timm.create_model(name), bisa_models.SPEC).eval()
    mixes = [module for module in model.modules() if isinstance(module, BidirectionalMix)]
    assert len(mixes) == 2
    bisa_models.check_against_reference(model, images, what=name)
    with torch.no_grad():
        expected = model(images)
        for mix in mixes:
            held, mix.inverse.transform.weight.data = mix.inverse.transform.weight.data, torch.zeros(32, 32, 32)
            with pytest.raises(WrongOutputsError):
                check_outputs(expected, model(images), what=name, rtol=10 * 1e-4, atol=10 * 1e-5)
            mix.inverse.transform.weight.data = held
            assert all((map.norm is None) == ("swin" in name) for map in (mix.inverse.query, mix.inverse.value))
            assert all(
                map.norm is None or map.norm.weight.eq(1).all() for map in (mix.inverse.query, mix.inverse.value)
            )


def test_the_check_of_bisa_layer_detects_another_hypernetwork():
    bisa_layer = command("bisa_layer")
    name = "LeViT-128S, stage 1"
    _, lean, _ = bisa_layer.SHAPES[name].layers()
    tokens = torch.randn(1, 196, 128, requires_grad=True)
    naive = bisa_layer.naive(lean)
    ours, theirs = (bisa_layer.forward_and_backward(layer, tokens)() for layer in (lean, naive))
    check_outputs(ours, theirs, what=name, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        next(module for module in naive.modules() if isinstance(module, bisa_layer.NaiveTransform)).weight[0] *= 2
    with pytest.raises(WrongOutputsError, match=name):
        check_outputs(ours, bisa_layer.forward_and_backward(naive, tokens)(), what=name, rtol=1e-3, atol=1e-4)


def test_the_check_of_bixt_op_detects_another_similarity(monkeypatch: pytest.MonkeyPatch):
    bixt_op = command("bixt_op")
    bixt_op.check("1x600")
    by_head = bixt_op.Explicit.by_head
    monkeypatch.setattr(bixt_op.Explicit, "by_head", lambda self, projected: by_head(self, 1.1 * projected))
    with pytest.raises(WrongOutputsError, match="1x600"):
        bixt_op.check("1x600")


@pytest.mark.parametrize("ghost", ["add", "mul and add"])
def test_the_check_of_local_filter_detects_a_shift(monkeypatch: pytest.MonkeyPatch, ghost: str):
    local_filter = command("local_filter")
    monkeypatch.setattr(local_filter, "PIXELS", 12)
    local_filter.check(ghost)
    plain = local_filter.plain
    monkeypatch.setitem(local_filter.FORMS, "plain", lambda values, *rest: plain(values.roll(1, 2), *rest))
    with pytest.raises(WrongOutputsError, match=ghost):
        local_filter.check(ghost)


def test_the_loss_of_translation_is_its_one_hot_form():
    """With padding, and with gradients; smoothing over all classes is another loss."""
    translation = command("translation")
    logits, labels = torch.randn(6, 11, requires_grad=True), torch.tensor([3, -100, 0, 10, 5, -100])
    losses = translation.smoothed_loss, translation.one_hot_loss
    ours, written = (translation.with_gradient(loss, logits, labels)() for loss in losses)
    check_outputs(ours, written, what="loss")
    with pytest.raises(WrongOutputsError, match="loss"):
        check_outputs(nn.functional.cross_entropy(logits, labels, label_smoothing=0.1), written[0], what="loss")


class Large(TorchDispatchMode):
    """Holds the storage of every tensor with so many numbers or more, so that no two are the same by chance."""

    def __init__(self, numbers: int) -> None:
        super().__init__()
        self.numbers = numbers
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.numel() >= self.numbers:
            storage = found.untyped_storage()
            self.storages[storage.data_ptr()] = storage
        return found


@pytest.mark.parametrize(("ghost", "made"), [("add", 3), ("mul and add", 4)])
def test_the_plain_form_of_local_filter_copies_no_weights(monkeypatch: pytest.MonkeyPatch, ghost: str, made: int):
    """Windows, filters (two steps with both matrices) and the product."""
    local_filter = command("local_filter")
    monkeypatch.setattr(local_filter, "PIXELS", 12)
    given = local_filter.operands(ghost, "channels first", images=1)
    with Large(given[0].numel() * local_filter.KERNEL**2) as seen:
        local_filter.plain(*given)
    assert len(seen.storages) == made


def test_the_peak_of_memory_is_what_is_held_at_a_time():
    bisa_layer = command("bisa_layer")

    def work() -> None:
        for _ in range(3):
            torch.empty(2**20).add_(1)

    assert 4 * 2**20 <= bisa_layer.peak_bytes(work) < 5 * 2**20


def test_laps_count_from_the_first_update_to_the_last(monkeypatch: pytest.MonkeyPatch):
    loop_overhead = command("loop_overhead")
    laps, times = loop_overhead.Laps(), iter([10.0, 11.0, 13.0, 50.0, 54.0])
    monkeypatch.setattr(loop_overhead.time, "perf_counter", lambda: next(times))
    for losses in ([3.0, 2.0, 1.0], [3.0, 2.0]):
        laps.start()
        for loss in losses:
            laps.update(loss)
    assert laps() == 3.0 + 4.0
    assert laps.losses == [3.0, 2.0]


def test_the_check_of_data_loading_detects_another_view(tmp_path: Path):
    loading = command("data_loading")
    folder = loading.invent(tmp_path, images=6, size=64)
    split = loading.our_split(folder)
    loading.check(folder, split)
    split.transform.transforms.pop(1)
    with pytest.raises(WrongOutputsError, match="view of"):
        loading.check(folder, split)


def test_the_check_of_report_size_detects_a_missing_run(tmp_path: Path):
    from attngraft.study import Tools, report_only

    size = command("report_size")
    config = size.invent(tmp_path, seeds=2, epochs=2, images=60, classes=6)
    result = report_only(config, tools=Tools(write_report=lambda result, folder: folder))
    assert sum(len(variant.runs) for variant in result.variants) == 20
    assert result.notes == [], "nothing about the invented runs seems odd"
    (tmp_path / "runs" / "cb" / "seed1" / "finished.json").unlink()
    report_only(config, tools=Tools(write_report=lambda result, folder: folder))
    (tmp_path / "report.html").write_text("")
    with pytest.raises(WrongOutputsError, match="lacks runs"):
        size.check(tmp_path, config)


#: values of a command's module that make it quick, besides its options
SMALL: dict[str, dict[str, Any]] = {
    "points": {"CLOUDS": 2, "POINTS": 150, "ANCHORS": 40, "GROUPED": 2, "CHANNELS": 8},
    "import_time": {"LARGEST": ("swin_tiny_patch4_window7_224",), "PLANNED": "vit_tiny_patch16_224", "WARMUP": 0},
    "report_size": {"GRAFTS": ("cb", "cb_s")},
    "recording": {"SMALL": "vit_tiny_patch16_224"},
    "local_filter": {"PIXELS": 14, "IMAGES": 1, "SECONDS": 0.01},
    "elsa_models": {"SMALL": 64, "LARGE": (128,)},
    "segmentation": {"WIDTH": 32},
    "detection": {"CLASSES": 3, "NARROW": {"width": 16, "box_width": 16}, "OBJECTS": 2, "IMAGES": 2},
    "translation": {
        "SIZES": {"vocab_size": 50, "dim": 24, "depth": 1, "heads": 3, "hidden": 32},
        "WRITTEN": 4,
        "GREEDY": 2,
    },
    "resampling": {"IMAGES": 60, "CLASSES": 5, "RESAMPLES": 20, "FEW": 5, "WITHIN": 1e6, "VARIANTS": 2, "EXAMPLES": 50},
}
#: arguments of timm's models that make them small
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"depth": 2},
    "swin_tiny_patch4_window7_224": {"depths": (2, 2, 1, 1), "embed_dim": 24},
    "elsa_swin_tiny": {"depths": (1, 1, 1, 1)},
}


def small_model(create_model: Callable[..., nn.Module], name: str, *args: Any, **arguments: Any) -> nn.Module:
    return create_model(name, *args, **SMALL_MODELS.get(name, {}) | arguments)


def report_only(out: Path) -> None:
    with suppress(SystemExit), redirect_stdout(io.StringIO()):
        main(["compare", "--report-only", "--out", str(out)])


def printed_bytes(script: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """What the script prints with these options, here instead of in a process of its own."""
    with monkeypatch.context() as patch, redirect_stdout(io.StringIO()) as said:
        patch.setattr(sys, "argv", ["script", *words])
        assert script.main() == 0
    return max(int(said.getvalue()), 1)


def test_memory_is_measured_by_a_new_process(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(len(sys.argv) if os.environ['MALLOC_TRIM_THRESHOLD_'] == '0' else 0)")
    assert in_fresh_process(str(script), "this", "that", threads=1) == 6


def test_first_hour_times_equal_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The processes choose their threads themselves, and a failing one ends the measurement."""
    first_hour = command("first_hour")
    for name in ("a", "b", "c"):
        (tmp_path / "train" / name).mkdir(parents=True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    first_hour.run(sys.executable, "-c", "import os, sys; sys.exit('OMP_NUM_THREADS' in os.environ)")
    with pytest.raises(AttngraftError, match="failed with exit code 3:\nno memory"):
        first_hour.run(sys.executable, "-c", "print('no memory'); raise SystemExit(3)")
    ran: list[list[str]] = []
    monkeypatch.setattr(first_hour, "run", lambda *words: ran.append([str(word) for word in words]))
    monkeypatch.setattr(first_hour, "check", lambda out, *, variants: ran.append([f"{variants} variants"]))
    folders = (tmp_path / str(number) for number in count())
    for work in first_hour.against_peer("compare", tmp_path, tmp_path / "train.py", folders, epochs=4):
        work()
    *peer, study, checked = ran
    assert checked == ["4 variants"]
    assert len(peer) == 4
    assert len({each[each.index("--output") + 1] for each in peer}) == 4
    assert peer[0][peer[0].index("--num-classes") + 1] == "3"
    for argument in ("img_size=64", "patch_size=8", "depth=4", "num_heads=3", "vit_tiny_patch16_224", str(tmp_path)):
        assert argument in peer[0]
        assert argument in study
    assert [each[each.index("--epochs") + 1] for each in (peer[0], study)] == ["4", "4"]
    del ran[:]
    for work in first_hour.demo(folders, ["--epochs", "1"]):
        work()
    quiet, checked, busy, again = ran
    assert quiet[:-1] == busy[:-1] and quiet[-1] != busy[-1]
    assert quiet[-5:-1] == [str(BENCH.with_name("examples") / "digits.yaml"), "--epochs", "1", "--out"]
    assert checked == again == ["5 variants"]
    monkeypatch.setattr(sys, "argv", ["first_hour.py", "--parts", "study", "train", "--pairs", "1"])
    assert first_hour.main() == 0
    assert "skipped: study, train, which need --data FOLDER and --peer FILE" in capsys.readouterr().err


# `jobs` compares bits that `test_bitwise.py` compares, `import_time` and `load` only start processes, `first_hour` runs
# `make demo`, and `camvid` and `nuclei` train for minutes
@pytest.mark.parametrize(
    "name",
    product_but(COMMANDS, COMMANDS.keys() - {"jobs", "import_time", "load", "first_hour", "camvid", "nuclei"}),
)
def test_every_command_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """In this process, which has imported everything already."""
    if name == "triton_kernels" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    script, out = command(name), tmp_path / "result.json"
    for variable, value in SMALL.get(name, {}).items():
        monkeypatch.setattr(script, variable, value)
    monkeypatch.setitem(several.__kwdefaults__, "warmup", 0)
    monkeypatch.setattr(timm, "create_model", partial(small_model, timm.create_model))
    monkeypatch.chdir(tmp_path)
    if name in ("camvid", "nuclei") and not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} not found (set ATTNGRAFT_SHARED)")
    if name == "loop_overhead":
        monkeypatch.setitem(script.RECIPE["host"]["args"], "img_size", 8)
    if name == "report_size":
        monkeypatch.setattr(script, "report", report_only)
        monkeypatch.setattr(figures, "plot_files", plot_files)
    if name in ("local_filter", "recording", "segmentation"):
        here = partial(printed_bytes, script, monkeypatch)
        monkeypatch.setattr(script, "in_fresh_process", lambda _, *what, threads: here("--bytes-here", *what))
    if name == "bisa_layer":
        monkeypatch.setattr(script, "LONG_SHAPE", replace(script.LONG_SHAPE, size=(1, 256, 384)))
        monkeypatch.setattr(script, "long_bytes", lambda threads: printed_bytes(script, monkeypatch, "--long-here"))
    options = ["--pairs", "1", "--json", "--out", str(out), *COMMANDS[name]]
    monkeypatch.setattr(sys, "argv", [str(BENCH / f"{name}.py"), *options])
    assert script.main() in (0, 1)  # with one pair a bar may be missed by chance
    result = read_benchmark(out, BenchResult)
    assert json.loads(capsys.readouterr().out)["title"] == result.title
    assert result.measurements
    assert name in ("triton_kernels", "compiled", "camvid", "nuclei", "detection") or all(
        line.bar is not None for line in result.measurements if "products" not in line.name
    )
