"""Several things at a time: the same results as one after the other, by all threads of a team and by nothing else."""

import threading

import pytest
import torch

from linglue.matching.match import MatchingConfig, match_descriptors
from linglue.matching.nearest import BLOCK_ROWS, nearest_k
from linglue.matching.together import hands, team, together

from .test_plain_voting import make_pair, networks

CPU = torch.device("cpu")


@pytest.fixture(params=[2, 3])
def threads(request):
    """Torch with several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@torch.no_grad()
def test_a_team_works_on_parts_at_the_same_time(threads):
    meeting = threading.Barrier(threads, timeout=20)  # breaks unless all threads come

    def meet(part: int) -> tuple[int, int, bool, bool]:
        meeting.wait()
        return 2 * part, torch.get_num_threads(), torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    with team(CPU):
        assert together(meet, range(threads)) == [(2 * part, 1, False, False) for part in range(threads)]
        assert torch.get_num_threads() == 1
        with torch.inference_mode():
            assert together(meet, range(threads)) == [(2 * part, 1, False, True) for part in range(threads)]
    assert torch.get_num_threads() == threads


@torch.no_grad()
def test_without_a_team_and_inside_of_parts_there_is_one_thread(threads):
    def names(_: int) -> set[str]:
        return set(together(lambda _: threading.current_thread().name, range(9)))

    assert names(0) == {threading.current_thread().name}
    with team(CPU):
        assert all(len(found) == 1 for found in together(names, range(threads)))
        assert together(names, []) == []


def test_no_team_with_gradients_and_on_gpus(threads):
    with team(CPU):
        assert hands() == 1 and torch.get_num_threads() == threads
    with torch.no_grad(), team(torch.device("cuda")):
        assert hands() == 1
    with torch.no_grad(), team(CPU), team(CPU):
        assert hands() == threads


@torch.no_grad()
@pytest.mark.parametrize("culprit", [0, 1])
def test_errors_of_parts_arrive(threads, culprit):
    met = threading.Barrier(2, timeout=20)

    def work(part: int) -> None:
        met.wait()
        if part == culprit:
            raise ValueError("part")

    with team(CPU), pytest.raises(ValueError, match="part"):
        together(work, range(2))
    assert torch.get_num_threads() == threads and hands() == 1


@torch.inference_mode()
def test_nearest_neighbours_are_those_of_one_thread(threads):
    generator = torch.Generator().manual_seed(0)
    x0, x1 = (torch.randn(3 * BLOCK_ROWS + 100 * k, 16, generator=generator) for k in (0, 1))
    found = nearest_k(x0, x1, 3)
    torch.set_num_threads(1)
    for several, one in zip(found, nearest_k(x0, x1, 3), strict=True):
        assert torch.equal(several.index, one.index) and torch.equal(several.distance, one.distance)


@torch.inference_mode()
def test_matches_are_those_of_one_thread(threads):
    (view0, view1, x0, x1, *_), (network, _) = make_pair(700), networks()
    pairs, scores = match_descriptors(view0, view1, x0, x1, MatchingConfig(), voting=network)
    torch.set_num_threads(1)
    expected, others = match_descriptors(view0, view1, x0, x1, MatchingConfig(), voting=network)
    assert torch.equal(pairs, expected) and torch.equal(scores, others) and len(pairs) > 100
