"""The catalog of suites for images."""

from collections.abc import Iterable, Mapping
from functools import cache

from attngraft.tasks.images.suites.changes import (
    CenterHidden,
    Corrupted,
    ManySteps,
    OneStep,
    PatchesDropped,
    SalientDropped,
)
from attngraft.tasks.images.suites.corruptions import CORRUPTIONS
from attngraft.tasks.images.suites.test_sets import TEST_SETS, check_test_set, how_to_get
from attngraft.tasks.suites import Condition, Suite

NOISE_SEEDS = (0, 1, 2, 3, 4)  #: five seeds, as in CB's Table 12
EPSILONS = (1, 2, 4, 8)  #: largest change of a pixel in attacks, out of 255
SHARES = (25, 50, 75)  #: percentages of dropped patches
STEPS = 10  #: number of PGD steps


@cache
def suites() -> Mapping[str, Suite]:
    """Return the suites for images by name."""
    clean = (Condition(name="clean", group="clean", label="clean"),)
    center = Condition(
        name="center",
        group="center",
        label="center hidden, half of each side",
        settings={"side": 0.5},
        example=CenterHidden(0.5),
    )
    suites = [
        Suite(name="clean", title="Clean images", summary="unchanged images", conditions=clean),
        Suite(
            name="occlusion",
            title="Hidden center",
            summary="the central quarter in the mean color (CB, Table 8: 112 x 112 of 224 x 224 pixels)",
            conditions=(center,),
        ),
        Suite(
            name="patches",
            title="Dropped patches",
            summary="25, 50, 75 % of the patches in the mean color: at random (five noise seeds), or the most attended",
            conditions=tuple(_patches()),
        ),
        Suite(
            name="fgsm",
            title="FGSM",
            summary="one step of the gradient's sign: 1, 2, 4 and 8 of 255, on pixels before normalization",
            conditions=tuple(_fgsm()),
        ),
        Suite(
            name="pgd",
            title="PGD",
            summary=f"{STEPS} such steps from a random start: 1, 2, 4 and 8 of 255",
            conditions=tuple(_pgd()),
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
            conditions=clean,
            kind="calibration",
            home="clean",
        ),
        Suite(
            name="throughput",
            title="Throughput",
            summary="images per second and peak memory of evaluation on this machine",
            kind="throughput",
        ),
    ]
    for name, each in TEST_SETS.items():
        summary = f"{each.summary}; downloaded by you: --data FOLDER"
        unchanged = Condition(name=name, group=name, label=each.title)
        suites.append(
            Suite(
                name=name,
                title=each.title,
                summary=summary,
                conditions=(unchanged,),
                test_set=name,
                download=how_to_get(name),
                check=check_test_set,
            )
        )
    members = ("occlusion", "patches", "fgsm", "noise")
    suites.append(
        Suite(
            name="robustness",
            title="Robustness",
            summary="alias for occlusion, patches, fgsm and noise",
            stands_for=members,
        )
    )
    return {suite.name: suite for suite in suites}


def _fgsm() -> Iterable[Condition]:
    for part in EPSILONS:
        name, settings = f"fgsm-{part}", {"attack": "fgsm", "epsilon": part / 255}
        yield Condition(name=name, group=name, label=f"FGSM, {part}/255", settings=settings, batch=OneStep(part / 255))


def _pgd() -> Iterable[Condition]:
    for part in EPSILONS:
        yield Condition(
            name=f"pgd-{part}",
            group=f"pgd-{part}",
            label=f"PGD, {part}/255, {STEPS} steps",
            settings={"attack": "pgd", "epsilon": part / 255, "steps": STEPS, "step": 2.5 * part / 255 / STEPS},
            noise_seed=0,
            batch=ManySteps(part / 255, STEPS),
        )


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
            label = "JPEG" if name == "jpeg" else name.replace("_", " ")
            yield from _corrupted(name, level, f"{name}-{severity}", label, severity)


#: name of the corruption, level, name and label of the condition
_TABLE_12 = (
    ("gaussian_noise", 5 / 255, "gaussian_noise-5", "Gaussian noise, 5/255"),
    ("gaussian_noise", 10 / 255, "gaussian_noise-10", "Gaussian noise, 10/255"),
    ("shot_noise", 60.0, "shot_noise-60", "shot noise, 60 photons"),  # not stated in the table; ImageNet-C's severity 1
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
