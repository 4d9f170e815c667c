"""The metrics of translation equal those of sacrebleu, on all sentences and on resamples."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import ConfigError
from attngraft.results.measured import ClosedForm
from attngraft.results.records import RecordTable
from attngraft.results.statistics import crossed_bootstraps_of
from attngraft.tasks.translation.metrics import Scorer, bleu, chrf, measure

pytest.importorskip("sacrebleu", reason="needs the extra text")
WORDS = [
    "Ein",
    "Mann",
    "mit",
    "einem",
    "Hut",
    "geht",
    "über",
    "die",
    "Straße",
    ",",
    "während",
    "zwei",
    "Hunde",
    "(",
    "braun",
    ")",
    "im",
    "T-Shirt-Laden",
    "warten",
]


def sentences(count: int, *, noise: float, seed: int = 0) -> tuple[list[str], list[str]]:
    """Translations and references, of 1 to 12 words; a part `noise` of the words is replaced."""
    random = np.random.default_rng(seed)
    references = [[*random.choice(WORDS, size=random.integers(1, 13)), "."] for _ in range(count)]
    translations = [[random.choice(WORDS) if random.random() < noise else word for word in each] for each in references]
    return [" ".join(each[: len(each) - (len(each) > 9)]) for each in translations], [" ".join(e) for e in references]


def statistic(name: str, translations: list[str], references: list[str], **options: bool) -> ClosedForm:
    counts = Scorer(**options).counts(translations, references)[name]  # type: ignore[arg-type]
    return ClosedForm(counts.astype(float), {"bleu": bleu, "chrf": chrf}[name])


@pytest.mark.parametrize("lower_case", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.3, 0.9, 1.0])
def test_scores_are_those_of_sacrebleu(noise: float, lower_case: bool) -> None:
    from sacrebleu.metrics import BLEU, CHRF

    translations, references = sentences(40, noise=noise)
    translations[3:5] = ["", "EIN mann."]
    for name, metric in (("bleu", BLEU(lowercase=lower_case)), ("chrf", CHRF(word_order=2, lowercase=lower_case))):
        own = statistic(name, translations, references, lower_case=lower_case)
        assert own.point == pytest.approx(metric.corpus_score(translations, [references]).score, abs=1e-9)
        assert Scorer(lower_case=lower_case).signatures[name] == metric.get_signature().format()
        order = np.random.default_rng(1).integers(40, size=40)
        repeated = [[each[index] for index in order] for each in (translations, references)]
        counts = np.bincount(order, minlength=40)[None].astype(float)
        assert own.value(counts)[0] == pytest.approx(metric.corpus_score(repeated[0], [repeated[1]]).score, abs=1e-9)


@pytest.mark.parametrize("translations", [["", ""], ["x", "y"], ["Ein", "Ein"], ["Ein Mann", "Mann mit einem Hut"]])
def test_short_and_empty_translations(translations: list[str]) -> None:
    from sacrebleu.metrics import BLEU, CHRF

    references = ["Ein Mann mit Hut .", "Mann mit einem Hut"]
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF(word_order=2))):
        expected = metric.corpus_score(translations, [references]).score
        assert statistic(name, translations, references).point == pytest.approx(expected, abs=1e-9)


def test_the_score_is_that_of_the_command_line(tmp_path: Path) -> None:
    translations, references = sentences(30, noise=0.4)
    for name, lines in (("out", translations), ("ref", references)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    words = [sys.executable, "-m", "sacrebleu", tmp_path / "ref", "-i", tmp_path / "out", "-b", "-w", "6", "-m"]
    for metric, name, more in (("bleu", "bleu", []), ("chrf", "chrf", ["--chrf-word-order", "2"])):
        shown = subprocess.run([*words, metric, *more], capture_output=True, text=True, check=True).stdout
        assert statistic(name, translations, references).point == pytest.approx(float(shown), abs=1e-6)


def test_intervals_agree_with_the_paired_bootstrap_of_sacrebleu() -> None:
    from sacrebleu.metrics import BLEU
    from sacrebleu.significance import PairedTest

    (worse, references), (better, _) = sentences(150, noise=0.4), sentences(150, noise=0.4)
    better = [r if index % 10 == 0 else b for index, (b, r) in enumerate(zip(better, references, strict=True))]
    systems = [("worse", worse), ("better", better)]
    results = PairedTest(systems, {"BLEU": BLEU()}, [references], test_type="bs", n_samples=1000)()[1]["BLEU"]
    before, after = (statistic("bleu", each, references) for _, each in systems)
    nothing = statistic("bleu", [""] * 150, references)  # a BLEU of 0 in every resample
    alone, _ = crossed_bootstraps_of([nothing], [[before], [after]])[0]
    assert (alone.high - alone.low) / 2 == pytest.approx(results[0].ci, rel=0.1)  # type: ignore[union-attr]
    interval, _ = crossed_bootstraps_of([before], [[after]])[0]
    assert results[1].p_value < 0.01 and interval.low > 0  # type: ignore[union-attr, operator]
    assert interval.low < results[1].score - results[0].score < interval.high  # type: ignore[union-attr]


def test_tokens_are_weighed_equally() -> None:
    translations, references = sentences(3, noise=0.3)
    columns = {
        "nll": np.array([2.0, 30.0, 4.0]),
        "tokens": np.array([1, 10, 3]),
        "correct": np.array([1, 2, 3]),
        **Scorer().counts(translations, references),
    }
    measured = measure(RecordTable(names=np.array(["a", "b", "c"]), columns=columns), units="digest")
    assert measured.values["perplexity"] == pytest.approx(np.exp(36 / 14))
    assert measured.values["accuracy"] == pytest.approx(6 / 14)
    assert measured.comparable == dict.fromkeys(("perplexity", "accuracy", "loss"), "digest")
    assert next(iter(measured.values)) == "bleu"


def test_without_sacrebleu_the_command_to_install_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(ConfigError, match=r"pip install 'attngraft\[text\]'"):
        Scorer()
