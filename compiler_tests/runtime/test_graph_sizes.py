"""Which steps of an engine are recorded as CUDA graphs."""

import pytest

from forgedsl_runtime.services.vllm.upstream.start import graph_sizes


def test_few_sizes_reach_from_one_request_to_twice_as_many_as_run() -> None:
    assert graph_sizes(16) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


@pytest.mark.parametrize("running", [1, 7, 100, 256, 300, 1024])
def test_every_step_that_only_decodes_has_one_no_more_than_half_too_large(running: int) -> None:
    sizes = graph_sizes(running)
    taken = [min(n for n in sizes if n >= count) for count in range(1, running + 1)]
    assert max(graph / count for count, graph in enumerate(taken, 1)) <= 1.5
    assert running in sizes
