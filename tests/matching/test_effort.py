"""How much effort a pair gets: easy and unrelated ones little, all others everything."""

import pytest
import torch

from linglue.matching.candidates import Candidates
from linglue.matching.effort import (
    FEWEST,
    HARDLY,
    LOOKS,
    NEARLY,
    SHARE,
    UNRELATED,
    is_promising,
    is_sure,
    is_unrelated,
    look_until_settled,
)
from linglue.matching.voting import Scored


class Look(Scored):
    """A look that found matches of given probabilities, in images of given numbers of keypoints."""

    def __init__(self, probabilities: torch.Tensor, counts: tuple[int, int] = (1000, 1000)):
        empty = torch.zeros(0)
        candidates = Candidates(empty.view(0, 2).long(), empty, (empty, empty), empty.bool(), counts)
        super().__init__([empty], candidates)
        vars(self).update(probabilities=probabilities, scores=probabilities)


SURE, DOUBTFUL = Look(torch.full((300,), 0.95)), Look(torch.full((300,), 0.6))
UNLIKE = Look(torch.full((300,), 0.9 * UNRELATED * 1000 / 300))
ALMOST = Look(torch.cat([torch.full((round(NEARLY * FEWEST),), 0.9), torch.full((200,), 0.6)]))
SPARSE = Look(torch.full((300,), 0.9 * HARDLY * UNRELATED * 1000 / 300))


def test_many_sure_matches_are_needed():
    assert is_sure(SURE) and not is_sure(DOUBTFUL) and not is_sure(UNLIKE)
    for keypoints in (200, 5000):  # of the image that has fewer
        enough = max(FEWEST, round(SHARE * keypoints))
        for count in (enough, enough - 1):
            look = Look(torch.full((count,), 0.9), (keypoints, 9000))
            assert is_sure(look) == (count == enough)


def test_doubt_is_no_reason_to_call_images_unrelated():
    assert is_unrelated(UNLIKE) and not is_unrelated(DOUBTFUL) and not is_unrelated(Look(1.2 * UNLIKE.scores))
    assert is_unrelated(Look(1.2 * UNLIKE.scores, (1300, 5000)))  # the more keypoints, the more there should be
    assert is_unrelated(Look(torch.zeros(0), (0, 9)))


@pytest.mark.parametrize(
    ("looks", "taken", "settles"),
    [
        ([UNLIKE, UNLIKE, SURE], LOOKS, True),  # nor is it enough to call images unrelated
        ([UNLIKE, DOUBTFUL, SURE], 3, True),
        ([DOUBTFUL, UNLIKE, SURE], 2, True),
        ([SURE, SURE, SURE], LOOKS, True),  # the first look alone is never sure
        ([DOUBTFUL, DOUBTFUL, SURE], 3, True),
        ([SURE, DOUBTFUL, DOUBTFUL], 3, False),
        ([SURE], 1, False),
    ],
)
def test_no_look_is_taken_after_the_one_that_settles_it(looks, taken, settles):
    left = iter(looks)
    found, settled = look_until_settled(left)
    assert (len(looks) - len(list(left)), settled) == (taken, settles) and found is looks[taken - 1]


def test_the_second_look_of_a_first_pass_is_for_pairs_that_it_may_settle():
    assert all(is_promising(look) for look in (SURE, ALMOST, SPARSE, UNLIKE)) and not is_promising(DOUBTFUL)
    assert not is_sure(ALMOST) and not is_unrelated(SPARSE)
    assert look_until_settled(iter([DOUBTFUL, SURE]), patient=False) == (DOUBTFUL, False)
    for promising, settling in ((ALMOST, SURE), (SPARSE, UNLIKE), (SURE, SURE), (UNLIKE, SURE)):
        assert look_until_settled(iter([promising, settling]), patient=False) == (settling, True)
    assert look_until_settled(iter([ALMOST, DOUBTFUL]), patient=False) == (DOUBTFUL, False)
