"""Other hosts in a study: how they are given, what is refused, and what runs, costs, results and reports make of them."""

from __future__ import annotations

import csv
import io
import json
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, TrainingError, UsageError
from attngraft.report.page import report_html
from attngraft.results.storage import csv_text
from attngraft.results.wording import headline, study_model
from attngraft.study import compare, load_result, prepare, read_study_file, report_only, study_from_dict
from attngraft.study.checks import check_variants
from attngraft.study.cost import COST_FILE, load_costs, measure_costs, save_costs
from attngraft.study.plan import resolve_runs
from attngraft.study.throughput import measure_throughput
from attngraft.study.variants import entry_against, read_variants
from attngraft.training.profiler import BenchmarkBatch
from attngraft.training.recipe import recipe_to_dict
from attngraft.training.run_folder import RunFolder, read_run
from attngraft.yaml_config import dump_yaml

from ..report.studies import table_text
from .fakes import HOST, FakeTrainer, study, tools

DEIT = {"name": "deit_tiny_patch16_224", "args": {"img_size": 16, "patch_size": 8, "depth": 1}}
MIXER = {"name": "small_mixer", "args": {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_blocks": 1}}
GRAFTS: list[Any] = ["cb_s", {"host": DEIT}, {"name": "DeiT, horizontal", "host": DEIT, "spec": "horizontal"}]
NAMES = ["baseline", "cb_s", "deit_tiny_patch16_224", "DeiT, horizontal"]


# --- how they are given -------------------------------------------------------------------------------------------


def test_other_hosts_stand_among_the_grafts() -> None:
    variants = read_variants(GRAFTS)
    assert [variant.name for variant in variants] == NAMES
    assert [variant.spec for variant in variants] == ["none", "cb_s", "none", "horizontal"]
    assert [variant.is_baseline for variant in variants] == [True, False, False, False]
    assert [variant.key for variant in variants[:2]] == ["none", "cb_s"]
    assert variants[2].key == "deit_tiny_patch16_224: {depth: 1, img_size: 16, patch_size: 8}"
    assert variants[3].key == f"{variants[2].key} + horizontal"
    assert read_variants([{"host": "resnet10t", "spec": "cb_s"}])[1].name == "resnet10t + cb_s"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("resnet10t", {"host": {"name": "resnet10t"}}),
        ("hf-hub:me/mine", {"host": {"name": "hf-hub:me/mine"}}),
        ("resnet10t:", {"host": {"name": "resnet10t", "args": {}}}),
        ("vit: {depth: 2, mlp_ratio: 1e0}", {"host": {"name": "vit", "args": {"depth": 2, "mlp_ratio": 1.0}}}),
        ("{name: a, host: vit, spec: cb}", {"name": "a", "host": "vit", "spec": "cb"}),
    ],
)
def test_what_against_takes(text: str, entry: dict[str, Any]) -> None:
    assert entry_against(text) == entry
    read_variants([entry])


@pytest.mark.parametrize("text", ["", "3", "[vit]", "vit: 3", "{a: {}, b: {}}", "vit: {"])
def test_what_against_refuses(text: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=f"--against {text.replace('{', '[{]').replace('[v', '.v')}"):
        entry_against(text)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"host": DEIT}, {"name": "again", "host": {**DEIT, "args": dict(reversed(DEIT["args"].items()))}}], "twice"),  # type: ignore[attr-defined]
        ([{"host": DEIT}, {"host": DEIT["name"]}], r"are called 'deit_tiny_patch16_224'.*host: \{name"),
        ([{"host": {"args": {"depth": 1}}}], r"grafts\[0\]\.host: name the host"),
        ([{"host": ""}], r"grafts\[0\]\.host: name the host"),
        ([{"host": {"name": "vit", "arg": {}}}], r"grafts\[0\]\.host\.arg: unknown field.*args"),
        ([{"host": 3}], r"grafts\[0\]\.host: expected a section"),
        ([{"name": "a"}], r"grafts\[0\]: no graft"),
    ],
)
def test_entries_that_are_refused(entries: list[Any], message: str) -> None:
    with pytest.raises((UsageError, ConfigError), match=message):
        read_variants(entries)


def test_against_is_no_field_of_a_study_file(tmp_path: Path) -> None:
    file = tmp_path / "study.yaml"
    file.write_text(dump_yaml({"against": ["resnet10t"], "out": "x"}))
    with pytest.raises(
        ConfigError, match=r"study\.yaml\.against: unknown field; list other hosts under `grafts`, each as \{name: "
    ):
        read_study_file(file)


def test_a_recipe_of_another_host_differs_in_the_host_alone(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=GRAFTS, set=["host.args.depth=3", "optimizer.lr=1e-4", "train.drop_path=0.1"])
    plain, other = (recipe_to_dict(config.recipe_of(config.variants[place], 1)) for place in (0, 2))
    assert plain.pop("host")["args"]["depth"] == 3  # --set speaks of the study's host
    assert other.pop("host") == {**DEIT, "pretrained": False, "weights": None}
    assert plain == other
    assert config.recipe_of(config.variants[3], 0).graft == "horizontal"


def test_studies_without_other_hosts_are_written_as_before(tmp_path: Path) -> None:
    assert study(tmp_path).to_dict()["grafts"] == [
        {"name": "baseline", "spec": "none"},
        {"name": "cb_s", "spec": "cb_s"},
        {"name": "horizontal", "spec": "horizontal"},
    ]


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=[*GRAFTS, {"host": {"name": "resnet10t", "pretrained": False}}])
    file = tmp_path / "study.yaml"
    file.write_text(dump_yaml(config.to_dict()))
    assert study_from_dict(read_study_file(file)) == config


# --- weights ------------------------------------------------------------------------------------------------------


def test_pretrained_is_shared_and_a_file_of_weights_is_not(tmp_path: Path) -> None:
    def host_of(own: Mapping[str, Any], **changes: Any) -> Mapping[str, Any]:
        config = study(tmp_path, host={**HOST, **changes}, grafts=[{"host": {**DEIT, **own}}])
        return recipe_to_dict(config.recipe_of(config.variants[1], 0))["host"]

    assert host_of({}, pretrained=True)["pretrained"] is True
    assert host_of({"pretrained": False}, pretrained=True)["pretrained"] is False
    assert host_of({"weights": "b.pth"}, pretrained=True) == {**DEIT, "pretrained": False, "weights": "b.pth"}
    with pytest.raises(ConfigError, match=r"deit_tiny_patch16_224: the study's host starts from a\.pth.*`weights:`"):
        host_of({}, weights="a.pth")
    assert host_of({"pretrained": False}, weights="a.pth")["weights"] is None
    assert host_of({"weights": "b.pth"}, weights="a.pth")["weights"] == "b.pth"


def test_weights_of_another_host_are_fitted_before_anything_trains(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=[{"name": "other", "host": {**DEIT, "weights": str(tmp_path / "none.pth")}}])
    with pytest.raises(UsageError, match=r"the variant other: .*none\.pth.*weights: FILE\}, or pretrained: false"):
        check_variants(resolve_runs(config))


# --- what is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "message"),
    [
        (
            "deit_tony_patch16_224",
            "the variant other: there is no model 'deit_tony_patch16_224'.*deit_tiny_patch16_224",
        ),
        ({**DEIT, "args": {"depth": -1, "dept": 3}}, "the variant other: timm cannot create deit_tiny.*dept"),
        (
            "deit_tiny_patch16_224",
            r"other takes inputs of 3x224x224.* inputs of 3x16x16.*\{img_size: 16\}.*\[3, 16, 16\]",
        ),
        ({**DEIT, "args": {**DEIT["args"], "in_chans": 1}}, r"of 1x16x16, .* of 3x16x16.*\{in_chans: 3\}"),  # type: ignore[dict-item]
        (HOST, "baseline and other have the same model"),
    ],
)
def test_hosts_that_cannot_take_part(tmp_path: Path, host: Any, message: str) -> None:
    trainer = FakeTrainer()
    with pytest.raises(UsageError, match=message):
        compare(study(tmp_path, grafts=[{"name": "other", "host": host}]), tools=tools(trainer))
    assert trainer.calls == []
    assert not (tmp_path / "runs").exists()


def test_a_graft_is_planned_on_its_own_host(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=["horizontal", {"name": "mixed", "host": MIXER, "spec": "horizontal"}])
    with pytest.raises(UsageError, match=r"the variant mixed does not fit its host: .*attention"):
        check_variants(resolve_runs(config))
    check_variants(
        resolve_runs(study(tmp_path, grafts=["horizontal", {"name": "mixed", "host": MIXER, "spec": "cb_s"}]))
    )


def test_a_second_head_is_asked_of_every_host(tmp_path: Path) -> None:
    two = {"name": "deit_tiny_distilled_patch16_224", "args": DEIT["args"]}
    token = ["distill={teacher: {name: resnet10t}, kind: token}"]
    config = study(tmp_path, host=two, grafts=[{"name": "one head", "host": DEIT}], set=token)
    with pytest.raises(UsageError, match=r"the variant one head: distill\.kind: token .*deit_tiny_patch16_224 has one"):
        check_variants(resolve_runs(config))


# --- the course of a study ----------------------------------------------------------------------------------------


def test_other_hosts_are_run_compared_and_reported(tmp_path: Path) -> None:
    trainer, config = FakeTrainer({"horizontal": 0.3}), study(tmp_path, grafts=GRAFTS)
    result = compare(config, tools=tools(trainer))
    assert trainer.calls == [(spec, seed) for seed in (0, 1) for spec in ("none", "cb_s", "none", "horizontal")]
    assert len(list((tmp_path / "runs").glob("*/seed0"))) == 4
    assert [variant.host for variant in result.variants] == [None, None, DEIT, DEIT]
    assert result.host["name"] == HOST["name"]
    assert result.title == f"{study_model(result)} on digits: 1 graft, 2 other hosts"
    assert len({variant.cost.train_time_ratio.point for variant in result.variants}) == 4  # type: ignore[union-attr]
    assert result.variants[0].difference is None
    assert all(variant.difference for variant in result.variants[1:])
    assert result.variants[3].difference.p_holm is not None  # type: ignore[union-attr]
    assert any("deit_tiny_patch16_224 and DeiT, horizontal are different models" in note for note in result.notes)
    assert load_result(tmp_path) == result


def test_a_study_grows_by_a_host_and_goes_on(tmp_path: Path) -> None:
    compare(study(tmp_path, grafts=["cb_s"]), tools=tools(FakeTrainer()))
    before = {path: path.read_bytes() for path in tmp_path.glob("runs/*/seed*/recipe.yaml")}
    stopped = FakeTrainer(stops=("horizontal", 0))
    with pytest.raises(KeyboardInterrupt):
        compare(study(tmp_path, grafts=GRAFTS), tools=tools(stopped))
    assert stopped.calls == [("none", 0), ("horizontal", 0)]
    assert read_study_file(tmp_path / "study.yaml")["grafts"][2] == {"name": NAMES[2], "spec": "none", "host": DEIT}
    again = study_from_dict(read_study_file(tmp_path / "study.yaml"))
    partial = report_only(again, tools=tools(FakeTrainer()))
    assert [len(variant.runs) for variant in partial.variants] == [2, 2, 1, 0]
    rest = FakeTrainer()
    compare(again, tools=tools(rest))
    assert rest.calls == [("horizontal", 0), ("none", 1), ("horizontal", 1)]
    assert {path: path.read_bytes() for path in before} == before


def test_a_host_that_changed_under_its_name_is_no_run_of_the_study(tmp_path: Path) -> None:
    def against(depth: int, spec: str = "none") -> Any:
        host = {**DEIT, "args": {"img_size": 16, "patch_size": 8, "depth": depth}}
        return study(tmp_path, grafts=[{"name": "other", "host": host, "spec": spec}])

    trainer = FakeTrainer()
    compare(against(1), tools=tools(trainer))
    begun = len(trainer.calls)
    for changed in (against(2), against(1, "cb_s")):
        with pytest.raises(
            TrainingError, match=r"other.seed0: the run .* a different recipe: (host\.args\.depth \(1 -> 2\)|graft)"
        ):
            compare(changed, tools=tools(trainer))
        with pytest.raises(
            TrainingError, match=r"other.seed0: this run trained deit_tiny.*depth: 1.*--report-only --out"
        ):
            report_only(changed, tools=tools(trainer))
    with pytest.raises(TrainingError, match=r"other.seed0: this run trained deit_tiny.*variant other is cb_s; report"):
        report_only(study(tmp_path, grafts=[{"name": "other", "spec": "cb_s"}]), tools=tools(trainer))
    assert len(trainer.calls) == begun
    assert report_only(against(1), tools=tools(trainer)).variants[1].host == DEIT


def test_a_run_of_another_seed_is_not_counted_twice(tmp_path: Path) -> None:
    trainer = FakeTrainer()
    compare(study(tmp_path, seeds=[0, 1]), tools=tools(trainer))
    folder = next(tmp_path.rglob("seed1"))
    shutil.rmtree(folder.with_name("seed0"))
    shutil.copytree(folder, folder.with_name("seed0"))
    with pytest.raises(TrainingError, match=r"seed0: this run has seed 1, .*move it"):
        report_only(study(tmp_path, seeds=[0, 1]), tools=tools(trainer))


def test_a_report_needs_no_recipe(tmp_path: Path) -> None:
    compare(study(tmp_path, grafts=GRAFTS), tools=tools(FakeTrainer()))
    gone = study(tmp_path, grafts=GRAFTS, recipe="gone.yaml", host=None)
    assert len(report_only(gone, tools=tools(FakeTrainer())).variants) == 4


def test_runs_of_other_hosts_can_be_sent_to_other_processes(tmp_path: Path) -> None:
    runs = resolve_runs(study(tmp_path, grafts=GRAFTS)).runs
    assert pickle.loads(pickle.dumps(runs)) == runs


def test_without_a_run_of_the_baseline_the_report_shows_the_studys_host(tmp_path: Path) -> None:
    class NoBaseline(FakeTrainer):
        def __call__(self, recipe: Any, folder: Path, **options: Any) -> Any:
            if (recipe.graft, recipe.host.name) == (None, HOST["name"]):
                raise RuntimeError("out of luck")
            return super().__call__(recipe, folder, **options)

    result = compare(study(tmp_path, grafts=[GRAFTS[1], "cb_s"]), tools=tools(NoBaseline()))
    assert result.host["name"] == HOST["name"]
    assert [variant.difference for variant in result.variants] == [None, None, None]


def test_halving_ranks_other_hosts_with_grafts(tmp_path: Path) -> None:
    trainer = FakeTrainer({"horizontal": 0.3})
    result = compare(study(tmp_path, grafts=GRAFTS, epochs=9, halving="3,1"), tools=tools(trainer))
    assert result.halving is not None
    assert set(result.halving.stopped) == {"cb_s", "deit_tiny_patch16_224"}
    assert result.variants[3].difference is not None
    assert result.variants[2].cost is None
    assert json.loads((tmp_path / "halving.json").read_text())["rungs"] == [1, 3]


@pytest.mark.parametrize("same", [True, False])
def test_a_file_of_weights_that_changed_between_seeds_is_noted(tmp_path: Path, same: bool) -> None:
    class Started(FakeTrainer):
        def during(self, spec: str, seed: int, epoch: int, folder: Path) -> None:
            if spec == "cb_s":
                known = {"from": "w.pth: 90 of 92 tensors", "file": "w.pth", "sha256": "a" if same else f"a{seed}"}
                run = RunFolder(folder)
                run.start.write_text(json.dumps(known))
                recipe = run.read_recipe()
                run.write_recipe(replace(recipe, host=replace(recipe.host, weights="w.pth")))

    config = study(tmp_path, grafts=[{"host": DEIT}, {"name": "started", "host": DEIT, "spec": "cb_s"}])
    notes = compare(config, tools=tools(Started())).notes
    assert "started starts from w.pth: 90 of 92 tensors." in notes
    changed = [note for note in notes if "the same weights" in note]
    assert changed == ([] if same else [note for note in notes if note.startswith("The runs of started do not all")])
    assert len(changed) == (0 if same else 1)


def test_a_host_whose_head_alone_is_trained_is_noted(tmp_path: Path) -> None:
    def notes(*specs: str, parameters: str = "grafts+head") -> str:
        hosts = [{"name": f"other {spec}", "host": DEIT, "spec": spec} for spec in specs]
        out = tmp_path / "-".join([*specs, parameters])
        config = study(out, grafts=hosts, set=[f"train.parameters={parameters}"])
        return "\n".join(compare(config, tools=tools(FakeTrainer())).notes)

    assert "Like the baseline, other none trains the head alone." in notes("none", "cb_s")
    assert "As the baseline" not in notes("cb_s")
    assert "As the baseline" not in notes("none", parameters="all")


def test_inputs_that_differ_are_noted(tmp_path: Path) -> None:
    class Told(FakeTrainer):
        def during(self, spec: str, seed: int, epoch: int, folder: Path) -> None:
            mean = 0.4 if folder.parent.name.startswith("deit_tiny") else 0.5
            facts = read_run(folder).facts | {"input": {"size": [3, 16, 16], "mean": [mean], "eval_crop_pct": 1.0}}
            RunFolder(folder).write_data(model_args={}, facts=facts)

    result = compare(study(tmp_path, grafts=GRAFTS), tools=tools(Told()))
    assert any("differently from the baseline's for deit_tiny_patch16_224 (mean)." in note for note in result.notes)


# --- costs and paces, really measured -----------------------------------------------------------------------------


@pytest.mark.slow
def test_each_host_has_counts_of_its_own(tmp_path: Path) -> None:
    config = study(tmp_path, grafts=["cb_s", {"host": DEIT}, {"host": MIXER}], set=["train.batch_size=8"])
    benchmark = BenchmarkBatch(config.recipe_of(config.baseline, 0))
    assert set(measure_throughput(resolve_runs(config), benchmark).throughputs) == {
        variant.name for variant in config.variants
    }
    costs = measure_costs(resolve_runs(config), benchmark, limit=0.0)
    assert set(costs) == {variant.key for variant in config.variants}
    deit, mixer = (costs[config.variants[place].key] for place in (2, 3))
    assert (costs["none"].parameters_ratio, costs["none"].macs_ratio) == (1, 1)
    assert deit.macs_ratio == pytest.approx(0.5, abs=0.05)  # one block of two
    assert mixer.parameters < deit.parameters / 10
    save_costs(tmp_path, config.recipe_of(config.baseline, 0), costs)
    assert load_costs(tmp_path, config) == costs
    deeper = study(tmp_path, grafts=[{"host": {**DEIT, "args": {**DEIT["args"], "depth": 3}}}])  # type: ignore[dict-item]
    assert load_costs(tmp_path, deeper) is None
    assert set(json.loads((tmp_path / COST_FILE).read_text())["costs"]) == set(costs)


# --- what is drawn ------------------------------------------------------------------------------------------------


def test_tables_and_page_say_which_host(tmp_path: Path) -> None:
    result = compare(study(tmp_path, grafts=GRAFTS), tools=tools(FakeTrainer({"horizontal": 0.3})))
    rows = list(csv.DictReader(io.StringIO(csv_text(result))))
    assert [row["host"] for row in rows][1:3] == ["", "deit_tiny_patch16_224: {depth: 1, img_size: 16, patch_size: 8}"]
    assert [row["baseline"] for row in rows] == ["True", "False", "False", "False"]
    assert "DeiT, horizontal" in table_text(result)
    assert "graft" not in headline(result)
    page = report_html(result)
    assert "<code>deit_tiny_patch16_224: {depth: 1, img_size: 16, patch_size: 8} + horizontal</code>" in page
    assert "Comparison of hosts and attention grafts" in page
    assert "those on one host start from the same weights" in page


@pytest.mark.slow
def test_a_page_says_what_kind_of_comparison_it_is(tmp_path: Path) -> None:
    for grafts, said in (
        (["cb_s"], "Comparison of attention grafts<"),
        ([{"host": DEIT}], "Comparison of hosts<"),
        (["cb_s", {"host": DEIT}], "Comparison of hosts and attention grafts<"),
        ([{"host": DEIT, "spec": "cb_s"}], "Comparison of hosts and attention grafts<"),
    ):
        page = report_html(compare(study(tmp_path / str(len(said)), grafts=grafts), tools=tools(FakeTrainer())))
        assert said in page
        assert ("Added parameters" in page) == ("hosts" not in said)  # another host adds none
        assert ("Parameters, to baseline" in page) == ("hosts" in said)


def test_equal_scores_of_another_host_are_no_merit_of_a_graft(tmp_path: Path) -> None:
    class Alike(FakeTrainer):
        def _scores(self, spec: str, seed: int, *, progress: float) -> Any:
            return super()._scores("none", seed, progress=progress)

    result = compare(study(tmp_path, grafts=[{"host": DEIT}]), tools=tools(Alike()))
    found = result.variants[1].difference
    assert found is not None
    assert (found.mean, found.verdict) == (0, "inside the noise")
    assert "graft" not in found.why
    said = f"No difference could be seen in {found.examples} examples: the variant has exactly the baseline's scores."
    assert headline(result) == said


def test_names_and_arguments_are_text_on_the_page(tmp_path: Path) -> None:
    script = "<script>alert('x')</script>"
    host = {**DEIT, "args": {**DEIT["args"], "pretrained_cfg_overlay": {"license": script}}}  # type: ignore[dict-item]
    config = study(tmp_path, grafts=[{"name": f"{script} $a_1$", "host": host}], title=script)
    page = report_html(compare(config, tools=tools(FakeTrainer())))
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 3


def test_reports_without_other_hosts_say_nothing_of_them(tmp_path: Path) -> None:
    result = compare(study(tmp_path), tools=tools(FakeTrainer()))
    assert "host" not in next(csv.DictReader(io.StringIO(csv_text(result))))
    assert "other host" not in report_html(result)
    assert not any("different model" in note for note in result.notes)


def test_a_plan_names_the_hosts(tmp_path: Path) -> None:
    prepared = prepare(study(tmp_path, grafts=GRAFTS), tools=tools(FakeTrainer()))
    assert [run.label for run in prepared.runs[:4]] == [f"{name}, seed 0" for name in NAMES]
    assert prepared.seconds == 8 * 4
