"""Import documented modules under the paths that they had in earlier versions, with a DeprecationWarning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

#: old path -> new path, both below `attngraft`
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
    "anatomy.sentence": "attention.template",
    "anatomy.space": "attention.space",
    "anatomy.stages": "attention.hook_points",
    "anatomy.tap": "attention.recorder",
    "bench.paired": "timing.paired",
    "evaluation.boundaries": "tasks.images.boundaries",
    "export.folder": "saved.folder",
    "export.manifest": "saved.manifest",
    "finding": "results.analysis",
    "sections": "results.sections",
    "tasks.collecting": "tasks.task",
    "tasks.probe": "tasks.task",
    "tasks.teaching": "tasks.task",
    "study.epochs": "results.epochs",
    "study.result": "results.study",
    "study.statistics": "results.statistics",
    "study.storage": "results.storage",
    "training.config": "yaml_config",
}


class MovedModules(MetaPathFinder, Loader):
    """Find a moved module by its old path; the module at the new path supplies every name."""

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
        module.__dict__["__getattr__"] = lambda name: getattr(real, name)


def install() -> None:
    """Add the finder once, after all others."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
