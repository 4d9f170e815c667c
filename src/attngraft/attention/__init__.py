"""The attention interface, the only code that hosts and mechanisms share.

Every host's attention follows one template,

    project (x -> q, k, v, bias, mask) -> MIX (scores -> weights -> heads) -> merge (heads -> tokens) -> drop

and every MLP is `front -> hidden -> mid -> out -> end`. A host adapter maps the host's modules onto the template; a graft
names the hook point that it changes. Neither imports the other: a graft only reads the `Geometry` of a site.
"""

from attngraft.attention.geometry import (
    CLASS,
    AttentionGeometry,
    Geometry,
    HeadRows,
    MlpGeometry,
    Projection,
    prefix_names,
)
from attngraft.attention.graft import CIRCUMSTANCES, Circumstance, Graft, GraftType, LinearLayer, NoOptions, Unused
from attngraft.attention.hook_points import HOOK_POINTS, HookPoint
from attngraft.attention.mixing import MixContext, Mixed, Projected
from attngraft.attention.recorder import Recordable, Recorder, record_coordinates
from attngraft.attention.space import (
    SpaceSite,
    all_modules,
    detached_state,
    load_detached_state,
    sites_with_detached,
    with_originals,
)
from attngraft.attention.template import (
    AttentionSite,
    GraftedModule,
    MlpEnds,
    MlpSite,
    attended_keys,
    is_graft,
    plain_class,
    visible_in,
)

__all__ = [
    "CIRCUMSTANCES",
    "CLASS",
    "HOOK_POINTS",
    "AttentionGeometry",
    "AttentionSite",
    "Circumstance",
    "Geometry",
    "Graft",
    "GraftType",
    "GraftedModule",
    "HeadRows",
    "HookPoint",
    "LinearLayer",
    "MixContext",
    "Mixed",
    "MlpEnds",
    "MlpGeometry",
    "MlpSite",
    "NoOptions",
    "Projected",
    "Projection",
    "Recordable",
    "Recorder",
    "SpaceSite",
    "Unused",
    "all_modules",
    "attended_keys",
    "detached_state",
    "is_graft",
    "load_detached_state",
    "plain_class",
    "prefix_names",
    "record_coordinates",
    "sites_with_detached",
    "visible_in",
    "with_originals",
]
