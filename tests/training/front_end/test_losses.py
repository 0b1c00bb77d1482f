"""Every loss against a plain loop over points or pixels."""

import math

import numpy as np
import torch

from linglue.features.linpoint import SHARPNESS
from linglue.training.front_end.losses import (
    SPREAD,
    agree_loss,
    contrast_loss,
    distil_loss,
    heat_loss,
    heat_target,
    position_loss,
    repeat_loss,
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(random(*shape, seed=seed), dim=1)


def test_heat_target_is_the_largest_gaussian():
    rng = np.random.default_rng(0)
    points, scores = rng.uniform(-2, 33, (20, 2)).astype(np.float32), rng.random(20).astype(np.float32)
    found = heat_target(points, scores, 32)
    for y in range(32):
        for x in range(32):
            best = 0.0
            for (px, py), score in zip(points, scores, strict=True):
                if max(abs(x - round(float(px))), abs(y - round(float(py)))) <= 3:
                    best = max(best, score * math.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * SPREAD**2)))
            assert abs(found[y, x] - best) < 1e-5, (x, y)


def test_heat_loss_is_the_quality_focal_loss_of_covered_pixels():
    logits, target = random(2, 6, 6), random(2, 6, 6, seed=1).sigmoid()
    covered = random(2, 6, 6, seed=2) > 0
    total = 0.0
    for z, t, seen in zip(
        logits.flatten().tolist(), target.flatten().tolist(), covered.flatten().tolist(), strict=True
    ):
        p = 1 / (1 + math.exp(-z))
        total += seen * (t - p) ** 2 * -(t * math.log(p) + (1 - t) * math.log(1 - p))
    assert math.isclose(float(heat_loss(logits, target, covered, 7)), total / 7, rel_tol=1e-4)


def test_position_loss_vanishes_where_the_heat_has_its_mean_and_pulls_it_there():
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    true, image = torch.tensor([[7.3, 8.2]]), torch.zeros(1, dtype=torch.int64)
    right = -((x - 7.3) ** 2 + (y - 8.2) ** 2) / (2 * 0.5**2 * SHARPNESS)
    pixel = torch.tensor([[7, 8]])
    assert position_loss(right[None], image, true, pixel) < 1e-3
    assert position_loss(right[None], image, true, pixel + 1) < 0.05  # begun beside the highest heat
    wrong = (-((x - 8) ** 2 + (y - 8) ** 2) / 2)[None].requires_grad_()
    loss = position_loss(wrong, image, true, pixel)
    loss.backward()
    assert wrong.grad is not None
    assert position_loss((wrong - wrong.grad).detach(), image, true, pixel) < loss
    assert float(position_loss(right[None], image[:0], true[:0], pixel[:0])) == 0


def test_agree_loss_is_a_distance_in_the_coarser_crop():
    """Crop 1 shows everything three times larger and turned: a pixel too far in crop 0 is three in crop 1."""
    turn = torch.tensor([[0.0, -3, 90], [3, 0, 5], [0, 0, 1]])
    zero = torch.tensor([[10.0, 12], [20, 7]])
    lifted = torch.cat([zero, torch.ones(2, 1)], 1) @ turn.T
    one = lifted[:, :2] / lifted[:, 2:]
    many = turn.expand(2, 3, 3)
    assert float(agree_loss((zero, one), many)) < 1e-6
    off = one + torch.tensor([0.0, 6])
    expected = (0 + (2 - 0.25)) / 2  # smooth L1 of 2 pixels of crop 0 along one of two axes
    assert math.isclose(float(agree_loss((zero, off), many)), expected, rel_tol=1e-4)
    back = torch.linalg.inv(turn).expand(2, 3, 3)
    assert math.isclose(float(agree_loss((off, zero), back)), expected, rel_tol=1e-4)
    assert float(agree_loss((zero[:0], one[:0]), many[:0])) == 0


def test_agree_loss_knows_how_perspective_changes_scale():
    tilted = torch.tensor([[1.2, 0.1, 3], [-0.2, 0.9, 8], [2e-3, -1e-3, 1]])

    def mapped(point: list[float]) -> torch.Tensor:
        x = tilted @ torch.tensor([*point, 1.0])
        return x[:2] / x[2]

    at = [40.0, 25.0]
    columns = [(mapped([at[0] + dx, at[1] + dy]) - mapped(at)) / 0.1 for dx, dy in ((0.1, 0), (0, 0.1))]
    larger = max(1.0, float(torch.linalg.det(torch.stack(columns, 1)).abs()) ** 0.5)
    one = mapped(at) + torch.tensor([3.0, 0])
    found = agree_loss((torch.tensor([at]), one[None]), tilted[None])
    assert math.isclose(float(found), (3 / larger - 0.25) / 2, rel_tol=0.02)


def test_repeat_loss_compares_windows_of_two_crops():
    logits = random(1, 64, 64) * 3
    everywhere = torch.ones(1, 64, 64, dtype=torch.bool)
    same = repeat_loss(logits, logits, torch.eye(3)[None], everywhere)
    assert abs(float(same)) < 1e-3
    shift = torch.tensor([[[1.0, 0, 8], [0, 1, 0], [0, 0, 1]]])
    moved = torch.roll(logits, 8, dims=2)  # a pixel of crop 0 lies 8 further right in crop 1
    assert abs(float(repeat_loss(logits, moved, shift, everywhere))) < 1e-3
    assert repeat_loss(logits, moved, torch.eye(3)[None], everywhere) > 0.2


def test_repeat_loss_is_the_mean_of_one_minus_cosine():
    zero, one = random(1, 32, 32), random(1, 32, 32, seed=1)
    found = repeat_loss(zero, one, torch.eye(3)[None], torch.ones(1, 32, 32, dtype=torch.bool))
    values = []
    for y in (0, 8, 16):
        for x in (0, 8, 16):
            a, b = (v[0, y : y + 16, x : x + 16].sigmoid().flatten() for v in (zero, one))
            values.append(1 - float(a @ b / (a.norm() * b.norm())))
    assert math.isclose(float(found), float(np.mean(values)), rel_tol=1e-3)


def test_contrast_loss_is_infonce_without_the_banned():
    zero, one = unit(5, 8), unit(7, 8, seed=1)
    truth = torch.tensor([0, 3, 6, 1, 2])
    banned = torch.zeros(5, 7, dtype=torch.bool)
    banned[0, 4] = banned[2, 0] = True
    total = 0.0
    for i in range(5):
        terms = [math.exp(15 * float(zero[i] @ one[k])) * (not banned[i, k]) for k in range(7)]
        total -= math.log(terms[truth[i]] / sum(terms))
    found = contrast_loss(zero, one, truth, banned, torch.tensor(15.0))
    assert math.isclose(float(found), total / 5, rel_tol=1e-4)


def test_distil_loss_asks_for_the_teachers_descriptor_and_closeness_to_it():
    student, teacher = unit(4, 6), unit(4, 6, seed=1)
    total = 0.0
    for i in range(4):
        terms = [math.exp(10 * float(student[i] @ teacher[k])) for k in range(4)]
        total += 1 - float(student[i] @ teacher[i]) - math.log(terms[i] / sum(terms))
    assert math.isclose(float(distil_loss(student, teacher, torch.tensor(10.0))), total / 4, rel_tol=1e-4)
