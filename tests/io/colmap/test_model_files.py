"""Binary model files that would make COLMAP's reader run away."""

import struct
from pathlib import Path

import pytest

from linglue.errors import LinGlueError
from linglue.io.colmap.model_files import check_model_files
from linglue.sfm.sparse_model import read_model, write_model

pycolmap = pytest.importorskip("pycolmap")


@pytest.fixture
def model(tmp_path) -> Path:
    pycolmap.set_random_seed(0)
    options = pycolmap.SyntheticDatasetOptions(num_rigs=1, num_frames_per_rig=3, num_points3D=20)
    write_model(pycolmap.synthesize_dataset(options), tmp_path)
    return tmp_path


def test_sound_models_pass(model):
    check_model_files(model)
    assert len(read_model(model).points3D) == 20


@pytest.mark.parametrize("name", ["cameras.bin", "images.bin", "points3D.bin", "frames.bin", "rigs.bin"])
@pytest.mark.parametrize("damage", ["empty", "junk", "count", "cut"])
def test_damaged_files_are_named(model, name, damage):
    path = model / name
    content = path.read_bytes()
    damaged = {
        "empty": b"",
        "junk": b"\xff" * 300,
        "count": struct.pack("<Q", 10**12) + content[8:],
        "cut": content[:-5],
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(LinGlueError, match=f"{name}|holds no COLMAP model"):
        read_model(model)


def test_a_count_inside_is_checked(model):
    path = model / "points3D.bin"
    content = bytearray(path.read_bytes())
    content[8 + 43 : 8 + 51] = struct.pack("<Q", 2**60)  # the track of the first point
    path.write_bytes(content)
    with pytest.raises(LinGlueError, match=r"points3D\.bin: damaged"):
        check_model_files(model)
