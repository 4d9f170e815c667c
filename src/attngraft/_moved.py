"""Deprecated names: modules that moved, and attributes that were renamed."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: old path -> new path, both relative to `attngraft`
MOVED = {
    "analysis.album": "targets.images",
    "analysis.measures": "recording.measures",
    "analysis.on_map": "recording.attention_maps",
    "analysis.record": "recording.record",
    "analysis.recording": "recording.recording",
    "analysis.reductions": "recording.reductions",
    "analysis.subjects": "targets.handle",
    "anatomy": "attention",
    "anatomy.geometry": "attention.geometry",
    "anatomy.graft": "attention.graft",
    "anatomy.mixing": "attention.mixing",
    "anatomy.places": "attention.recorder",
    "anatomy.sentence": "attention.template",
    "anatomy.space": "attention.space",
    "anatomy.stages": "attention.hook_points",
    "anatomy.tap": "attention.recorder",
    "bench.paired": "timing.paired",
    "evaluation.attacks": "tasks.images.suites.attacks",
    "evaluation.boundaries": "tasks.images.boundaries",
    "evaluation.corruptions": "tasks.images.suites.corruptions",
    "evaluation.missing": "tasks.images.suites.missing",
    "export.folder": "saved.folder",
    "export.manifest": "saved.manifest",
    "finding": "results.analysis",
    "grafting.unused": "grafting.apply",
    "models.official": "models.weights",
    "sections": "results.sections",
    "study.epochs": "results.statistics",
    "study.result": "results.study",
    "study.statistics": "results.statistics",
    "study.storage": "results.storage",
    "study.conduct": "study.runner",
    "tasks.collecting": "tasks.task",
    "tasks.probe": "tasks.task",
    "tasks.teaching": "tasks.task",
    "training.config": "yaml_config",
    "training.groups": "training.optimizer",
}
#: old name -> new name, in modules imported under their old paths
RENAMED = {
    "Listener": "Recorder",
    "Pixels": "PixelAccess",
    "Probe": "SuiteSupport",
    "STAGES": "HOOK_POINTS",
    "Stage": "HookPoint",
    "TapPoint": "Recordable",
    "Teaching": "Distillation",
    "load_parked_state": "load_detached_state",
    "offer_places": "record_coordinates",
    "parked": "sites_with_detached",
    "parked_state": "detached_state",
    "unparked": "with_originals",
}


def renamed(old: str, new: str) -> property:
    """Return a deprecated property `old` that reads the attribute `new`."""

    def get(self: Any) -> Any:
        warnings.warn(f"{type(self).__name__}.{old} is deprecated; read {new}", DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(get)


class MovedModules(MetaPathFinder, Loader):
    """Import finder for the old paths of moved modules; importing one raises a DeprecationWarning.

    The imported module has the contents of the module at the new path, and also accepts renamed attributes.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        if package != "attngraft" or old not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=any(other.startswith(f"{old}.") for other in MOVED))

    def exec_module(self, module: ModuleType) -> None:
        new = f"attngraft.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} has moved to {new}", DeprecationWarning, stacklevel=2)
        real = importlib.import_module(new)
        module.__dict__.update({name: value for name, value in vars(real).items() if not name.startswith("__")})

        def renamed_name(name: str) -> Any:
            return getattr(real, RENAMED.get(name, name))

        module.__dict__["__getattr__"] = renamed_name


def install() -> None:
    """Append the finder to `sys.meta_path`, once."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
