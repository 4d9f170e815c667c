"""Which suites there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from attngraft.errors import UsageError
from attngraft.evaluation.corruptions import CORRUPTIONS
from attngraft.evaluation.suites.changes import (
    CenterHidden,
    Corrupted,
    ManySteps,
    OneStep,
    PatchesDropped,
    SalientDropped,
)
from attngraft.evaluation.suites.condition import Condition, Suite
from attngraft.suggest import did_you_mean
from attngraft.targets.test_sets import TEST_SETS

NOISE_SEEDS = (0, 1, 2, 3, 4)  #: as many as CB's Table 12 has
EPSILONS = (1, 2, 4, 8)  #: of 255
SHARES = (25, 50, 75)  #: percent of the patches
STEPS = 10  #: of PGD


@dataclass(frozen=True, kw_only=True)
class SuiteChoice:
    """A suite that was asked for, and the images for it where they are not the run's."""

    suite: Suite
    data: str | None = None

    @property
    def text(self) -> str:
        """What `parse_suites` reads back."""
        return self.suite.name if self.data is None else f"{self.suite.name}={self.data}"


@cache
def suites() -> Mapping[str, Suite]:
    """All suites, by name."""
    found = (
        Suite(
            name="clean",
            title="Clean images",
            summary="images as they are",
            conditions=(Condition(name="clean", group="clean", label="clean"),),
        ),
        Suite(
            name="occlusion",
            title="Hidden center",
            summary="the central quarter in the mean color (CB, Table 8: 112 x 112 of 224 x 224 pixels)",
            conditions=(
                Condition(
                    name="center",
                    group="center",
                    label="center hidden, half of each side",
                    settings={"side": 0.5},
                    example=CenterHidden(0.5),
                ),
            ),
        ),
        Suite(
            name="patches",
            title="Dropped patches",
            summary="25, 50, 75 % of the patches in the mean color: at random (five noise seeds), or those looked at most",
            conditions=tuple(_patches()),
        ),
        Suite(
            name="fgsm",
            title="FGSM",
            summary="one step of the gradient's sign: 1, 2, 4 and 8 of 255, on pixels before normalization",
            conditions=tuple(
                Condition(
                    name=f"fgsm-{part}",
                    group=f"fgsm-{part}",
                    label=f"FGSM, {part}/255",
                    settings={"attack": "fgsm", "epsilon": part / 255},
                    batch=OneStep(part / 255),
                )
                for part in EPSILONS
            ),
        ),
        Suite(
            name="pgd",
            title="PGD",
            summary=f"{STEPS} such steps from a random start: 1, 2, 4 and 8 of 255",
            conditions=tuple(
                Condition(
                    name=f"pgd-{part}",
                    group=f"pgd-{part}",
                    label=f"PGD, {part}/255, {STEPS} steps",
                    settings={"attack": "pgd", "epsilon": part / 255, "steps": STEPS, "step": 2.5 * part / 255 / STEPS},
                    noise_seed=0,
                    batch=ManySteps(part / 255, STEPS),
                )
                for part in EPSILONS
            ),
        ),
        Suite(
            name="corruptions",
            title="Corruptions",
            summary=f"{', '.join(CORRUPTIONS)}: five severities each, with five noise seeds where they are random",
            conditions=tuple(_corruptions()),
        ),
        Suite(
            name="noise",
            title="Noise and blur of CB's Table 12",
            summary="Gaussian noise of 5 and 10 of 255, shot noise, blur of 1 and 2 pixels; five noise seeds",
            conditions=tuple(_noise()),
        ),
        Suite(
            name="calibration",
            title="Calibration",
            summary="expected calibration error and reliability diagram, from predictions on clean images",
            conditions=(Condition(name="clean", group="clean", label="clean"),),
            kind="calibration",
            home="clean",
        ),
        Suite(
            name="throughput",
            title="Throughput",
            summary="images per second and peak memory of evaluation on this machine",
            kind="throughput",
        ),
        *(
            Suite(
                name=name,
                title=each.title,
                summary=f"{each.summary}; downloaded by you: --data FOLDER",
                conditions=(Condition(name=name, group=name, label=each.title),),
                test_set=name,
            )
            for name, each in TEST_SETS.items()
        ),
        Suite(
            name="robustness",
            title="Robustness",
            summary="stands for occlusion, patches, fgsm and noise",
            stands_for=("occlusion", "patches", "fgsm", "noise"),
        ),
    )
    return {suite.name: suite for suite in found}


def parse_suites(texts: Iterable[str], *, option: str = "--suite") -> tuple[SuiteChoice, ...]:
    """The suites that were asked for, each once, in the order in which they were.

    Args:
        texts: each a name, several with commas, or `name=FOLDER` with the images for it.
        option: what to call the option in messages.

    Raises:
        UsageError: there is no such suite, or one is given two folders.
    """
    chosen: dict[str, SuiteChoice] = {}
    for text in texts:
        parts = [text] if "=" in text else text.split(",")
        for part in parts:
            name, equals, data = part.strip().partition("=")
            if equals and not data:
                raise UsageError(f"{option} {part}: name the folder behind the =, or leave both out")
            for suite in _named(name, option):
                given = SuiteChoice(suite=suite, data=data or None)
                if chosen.setdefault(suite.name, given).data != given.data:
                    raise UsageError(f"{option} {suite.name}: is given with two folders")
    return tuple(chosen.values())


def _named(name: str, option: str) -> Sequence[Suite]:
    known = suites()
    if name not in known:
        raise UsageError(
            f"{option} {name}: there is no suite {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
        )
    suite = known[name]
    return [known[each] for each in suite.stands_for] if suite.stands_for else [suite]


def _patches() -> Iterable[Condition]:
    for share in SHARES:
        for seed in NOISE_SEEDS:
            yield Condition(
                name=f"random-{share}-seed{seed}",
                group=f"random-{share}",
                label=f"{share} % of the patches, at random",
                settings={"share": share / 100, "by": "random"},
                noise_seed=seed,
                example=PatchesDropped(share / 100),
            )
    for share in SHARES:
        yield Condition(
            name=f"salient-{share}",
            group=f"salient-{share}",
            label=f"{share} % of the patches, most looked at",
            settings={"share": share / 100, "by": "salience"},
            batch=SalientDropped(share / 100),
        )


def _corruptions() -> Iterable[Condition]:
    for name, each in CORRUPTIONS.items():
        for severity, level in enumerate(each.levels, start=1):
            yield from _corrupted(name, level, f"{name}-{severity}", _spaced(name), severity)


#: name of the corruption, level, name and label of the condition
_TABLE_12 = (
    ("gaussian_noise", 5 / 255, "gaussian_noise-5", "Gaussian noise, 5/255"),
    ("gaussian_noise", 10 / 255, "gaussian_noise-10", "Gaussian noise, 10/255"),
    ("shot_noise", 60.0, "shot_noise-60", "shot noise, 60 photons"),  # the table does not say; ImageNet-C's severity 1
    ("gaussian_blur", 1.0, "gaussian_blur-1", "Gaussian blur, 1 pixel"),
    ("gaussian_blur", 2.0, "gaussian_blur-2", "Gaussian blur, 2 pixels"),
)


def _noise() -> Iterable[Condition]:
    for name, level, group, label in _TABLE_12:
        yield from _corrupted(name, level, group, label, None)


def _corrupted(name: str, level: float, group: str, label: str, severity: int | None) -> Iterable[Condition]:
    for seed in NOISE_SEEDS if CORRUPTIONS[name].random else (None,):
        yield Condition(
            name=group if seed is None else f"{group}-seed{seed}",
            group=group,
            label=label if severity is None else f"{label}, severity {severity}",
            settings={"corruption": name, "level": level},
            noise_seed=seed,
            example=Corrupted(name, level),
            kind=name if severity is not None else "",
            severity=severity,
        )


def _spaced(name: str) -> str:
    return "JPEG" if name == "jpeg" else name.replace("_", " ")
