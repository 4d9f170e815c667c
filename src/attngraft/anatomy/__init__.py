"""The anatomy of an attention block: the vocabulary that hosts and mechanisms share, and all that they share.

Every host's attention is one sentence,

    project (x -> q, k, v, bias, mask) -> MIX (scores -> weights -> heads) -> merge (heads -> tokens) -> drop

and every MLP is `front -> hidden -> mid -> out -> end`. A host adapter reads its own modules as these sentences; a graft
names the stage at which it stands. Neither knows the other: what a graft may know of a site is its `Geometry`.
"""

from attngraft.anatomy.geometry import (
    CLASS,
    AttentionGeometry,
    Geometry,
    HeadRows,
    MlpGeometry,
    Projection,
    prefix_names,
)
from attngraft.anatomy.graft import CIRCUMSTANCES, Circumstance, Graft, GraftType, LinearLayer, NoOptions, Unused
from attngraft.anatomy.mixing import MixContext, Mixed, Projected
from attngraft.anatomy.places import offer_places
from attngraft.anatomy.sentence import AttentionSite, GraftedModule, MlpEnds, MlpSite, is_graft, plain_class
from attngraft.anatomy.space import SpaceSite, load_parked_state, parked, parked_state, unparked
from attngraft.anatomy.stages import STAGES, Stage
from attngraft.anatomy.tap import Listener, TapPoint

__all__ = [
    "CIRCUMSTANCES",
    "CLASS",
    "STAGES",
    "AttentionGeometry",
    "AttentionSite",
    "Circumstance",
    "Geometry",
    "Graft",
    "GraftType",
    "GraftedModule",
    "HeadRows",
    "LinearLayer",
    "Listener",
    "MixContext",
    "Mixed",
    "MlpEnds",
    "MlpGeometry",
    "MlpSite",
    "NoOptions",
    "Projected",
    "Projection",
    "SpaceSite",
    "Stage",
    "TapPoint",
    "Unused",
    "is_graft",
    "load_parked_state",
    "offer_places",
    "parked",
    "parked_state",
    "plain_class",
    "prefix_names",
    "unparked",
]
