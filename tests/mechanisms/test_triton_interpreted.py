"""One call of each op's kernels in Triton's interpreter; the slow tests of each op's own file cover the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mechanisms.triton_runs import installed, outside, run_inside

FOLDER = Path(__file__).parent
#: in one process, because starting one takes as long as all these calls
CALLS = (
    "test_bisa_triton.py::test_outputs_and_gradients[across tiles, odd widths, a learned bias of all entries]",
    "test_bisa_triton.py::test_the_hypernetwork_as_a_custom_op",
    "test_bixt_triton.py::test_outputs_and_gradients[across tiles and parts, odd widths]",
    "test_context_broadcast_ops.py::TestScaledContextBroadcast::test_backends_agree_with_the_reference",
    "test_local_triton.py::test_outputs_and_gradients[both ghosts]",
)


@pytest.mark.slow
@outside
@installed
def test_a_call_of_every_kernel() -> None:
    run_inside(*(FOLDER / call for call in CALLS))
