"""Too little memory: one line that says what to lower, whoever noticed it, also in a worker process."""

import cv2
import numpy as np
import pytest
import torch

from linglue.core.pool import Pool
from linglue.errors import LinGlueError, is_out_of_memory

MUCH = 2**46  # bytes, more than any machine lets a process have


def of_torch(*_):
    torch.empty(MUCH, dtype=torch.uint8)


def of_numpy(*_):
    np.ones(MUCH, np.uint8)


def of_opencv(*_):
    cv2.resize(np.zeros((2, 2, 4), np.float64), (2**20, 2**20))


def of_python(*_):
    bytearray(MUCH)


EVERY = [of_torch, of_numpy, of_opencv, of_python]


@pytest.mark.parametrize("exhaust", EVERY)
def test_one_line_says_what_to_lower(run, tmp_path, monkeypatch, exhaust):
    monkeypatch.setattr("linglue.cli.demo.run", exhaust)
    outcome = run("demo", "-o", tmp_path / "new")
    line = "linglue demo: out of memory, expected lower values of --max-keypoints\n"
    assert (outcome.code, outcome.err) == (1, line)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("exhaust", [of_torch, of_opencv])
def test_in_a_worker(exhaust):
    with pytest.raises((RuntimeError, cv2.error)) as caught:
        list(Pool(2).run(exhaust_in(exhaust), [1, 2]))
    assert is_out_of_memory(caught.value)


class exhaust_in:
    """Workers get it by pickle."""

    def __init__(self, exhaust):
        self.exhaust = exhaust

    def __call__(self):
        return self.exhaust


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), LinGlueError("a.png: no such image"), KeyError("a")])
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)
