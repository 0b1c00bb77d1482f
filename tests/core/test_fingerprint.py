"""What makes a result another one."""

import numpy as np
import torch

from linglue.core import fingerprint as module
from linglue.core.fingerprint import arrays_sha256, features_fingerprint, fingerprint, weights_sha256


class FrontEnd:
    """Holds a network as front-ends do, wherever its weights came from."""

    kind = "test"

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.net = torch.nn.Linear(2, 3)


def test_the_order_of_settings_does_not_matter_their_values_and_our_format_do(monkeypatch):
    first = fingerprint(a=1, b=[2, 3])
    assert first == fingerprint(b=[2, 3], a=1)
    assert len({first, fingerprint(a=1, b=[3, 2]), fingerprint(a=1), fingerprint(a="1", b=[2, 3])}) == 4
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    assert fingerprint(a=1, b=[2, 3]) != first


def test_features_depend_on_front_end_image_and_mask():
    settings = {"features": "sift", "weights_sha256": None}
    made = {
        features_fingerprint(settings, "image"),
        features_fingerprint(settings, "image", "mask"),
        features_fingerprint(settings, "other"),
        features_fingerprint({**settings, "weights_sha256": "x"}, "image"),
    }
    assert len(made) == 4


def test_weights_count_wherever_they_came_from():
    assert weights_sha256(FrontEnd(0)) == weights_sha256(FrontEnd(0)) != weights_sha256(FrontEnd(1))
    assert weights_sha256(FrontEnd(0).net) != weights_sha256(FrontEnd(1).net)
    assert weights_sha256(object()) is None


def test_arrays_by_name_type_shape_and_content():
    zeros = np.zeros((2, 3))
    assert arrays_sha256({"a": zeros, "b": None}) == arrays_sha256({"a": zeros})
    others = ({"b": zeros}, {"a": zeros.T}, {"a": zeros.astype(np.float32)}, {"a": zeros + 1})
    assert all(arrays_sha256(other) != arrays_sha256({"a": zeros}) for other in others)
