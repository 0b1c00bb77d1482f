"""Official layouts of pose data sets, in miniature."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from linglue.errors import LinGlueError
from linglue.evaluation import pose_scenes
from linglue.evaluation.known_poses import load_known_scene
from linglue.evaluation.pose_scenes import load_scene
from linglue.evaluation.tasks import reconstruction

K0 = np.array([[500.0, 0, 31.5], [0, 510, 23.5], [0, 0, 1]])
K1 = np.array([[400.0, 0, 30], [0, 400, 20], [0, 0, 1]])
ROTATION = Rotation.from_euler("y", 10, degrees=True).as_matrix()
TRANSLATION = np.array([-1.0, 0.2, 0.1])


def write_images(folder: Path, names: tuple[str, ...], size: tuple[int, int] = (64, 48)) -> None:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / name), rng.integers(0, 255, (size[1], size[0], 3)).astype(np.uint8))


def numbers(*arrays: np.ndarray) -> str:
    return " ".join(repr(float(value)) for array in arrays for value in array.ravel())


@pytest.fixture
def megadepth(tmp_path: Path) -> Path:
    """MegaDepth-1500 as glue-factory has it: images/SCENE/images/NAME and one list; R and then t."""
    folder = tmp_path / "megadepth1500"
    names = ("0015/images/a.jpg", "0015/images/b.jpg", "0022/images/c.jpg", "0022/images/d.jpg")
    write_images(folder / "images", names)
    calibration = numbers(K0, K1, ROTATION, TRANSLATION)
    lines = [f"{names[0]} {names[1]} {calibration}", f"{names[2]} {names[3]} {calibration}"]
    (folder / "pairs_calibrated.txt").write_text("\n".join(lines) + "\n")
    return folder


def check(pair: pose_scenes.PosePair) -> None:
    np.testing.assert_allclose(pair.one_from_zero.rotation, ROTATION, atol=1e-12)
    np.testing.assert_allclose(pair.one_from_zero.translation, TRANSLATION, atol=1e-12)
    np.testing.assert_array_equal(pair.view0.camera.matrix, K0)
    np.testing.assert_array_equal(pair.view1.camera.matrix, K1)
    assert pair.view0.camera.size == (64, 48)


def test_megadepth_1500(megadepth: Path) -> None:
    pairs = load_scene(megadepth)
    assert [p.pair.group for p in pairs] == ["megadepth1500/images/0015/images", "megadepth1500/images/0022/images"]
    assert {p.scene for p in pairs} == {"megadepth1500"}  # one row in tables
    for pair in pairs:
        check(pair)


def test_scannet_1500(tmp_path: Path) -> None:
    """SuperGlue's list: rotations of the images, and a 4x4 matrix."""
    folder = tmp_path / "scannet1500"
    names = ("scene0711_00/frame-001680.jpg", "scene0711_00/frame-001995.jpg")
    write_images(folder, names)
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = ROTATION, TRANSLATION
    path = folder / "scannet_test_pairs_with_gt.txt"
    path.write_text(f"{' '.join(names)} 0 0 {numbers(K0, K1, matrix)}\n")
    (pair,) = load_scene(folder)
    check(pair)
    assert pair.pair.group == "scannet1500/scene0711_00"
    path.write_text(f"{' '.join(names)} 0 1 {numbers(K0, K1, matrix)}\n")
    with pytest.raises(LinGlueError, match=r"txt:1: images are rotated by .* expected upright"):
        load_scene(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0015/images/a.jpg 0015/images/b.jpg 1 2 3", ":1: holds 5 columns, expected 32, 36, 38"),
        (f"0015/images/a.jpg 0015/images/x.jpg {'1 ' * 30}", "x.jpg is neither in"),
        (f"0015/images/a.jpg 0015/images/b.jpg {'z ' * 30}", "expected numbers after the names"),
        (f"0015/images/a.jpg 0022/images/c.jpg {'1 ' * 30}", "the images are in two folders"),
        ("", "holds no pair"),
    ],
)
def test_a_spoilt_list_is_one_clear_line(megadepth: Path, line: str, message: str) -> None:
    (megadepth / "pairs_calibrated.txt").write_text(line)
    with pytest.raises(LinGlueError, match=message) as error:
        load_scene(megadepth)
    assert "\n" not in str(error.value)


@pytest.fixture
def eth3d(tmp_path: Path) -> Path:
    """Three views of ETH3D's undistorted layout; the first two share two points, the third sees one."""
    pytest.importorskip("pycolmap")
    folder = tmp_path / "courtyard"
    names = [f"dslr_images_undistorted/DSC_{number}.JPG" for number in range(3)]
    write_images(folder / "images", tuple(names))
    model = folder / "dslr_calibration_undistorted"
    model.mkdir()
    (folder / "dslr_calibration_jpg").mkdir()
    (folder / "dslr_calibration_jpg" / "images.txt").write_text("")
    (model / "cameras.txt").write_text("# CAMERA_ID MODEL WIDTH HEIGHT PARAMS\n7 PINHOLE 64 48 500 510 32 24\n")
    images = [
        f"{i + 1} 1 0 0 0 {-i} 0 0 7 {name}\n" + " ".join(f"10 10 {p}" for p in points)
        for i, (name, points) in enumerate(zip(names, ((1, 2), (1, 2), (1,)), strict=True))
    ]
    (model / "images.txt").write_text("\n".join(images) + "\n")
    tracks = ("1 0 0 5 1 1 1 0.5 1 0 2 0 3 0", "2 1 0 5 1 1 1 0.5 1 1 2 1")
    (model / "points3D.txt").write_text("\n".join(tracks) + "\n")
    return folder


def test_eth3d_pairs_share_points(eth3d: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pose_scenes, "MIN_SHARED", 2)
    (pair,) = load_scene(eth3d)
    assert (pair.pair.image0.name, pair.pair.image1.name) == ("DSC_0.JPG", "DSC_1.JPG")
    assert pair.pair.image0.is_file() and pair.pair.group == "courtyard"
    np.testing.assert_allclose(pair.one_from_zero.translation, [-1, 0, 0])
    assert pair.view0.camera.matrix[0, 2] == 31.5  # COLMAP's origin is the corner of a pixel
    monkeypatch.setattr(pose_scenes, "MIN_SHARED", 500)
    with pytest.raises(LinGlueError, match="no two images share 500 points"):
        load_scene(eth3d)


def test_eth3d_is_known_to_localization_and_reconstruction(eth3d: Path) -> None:
    for load in (load_known_scene, reconstruction.load_scene):
        scene = load(eth3d)
        assert list(scene.views) == ["DSC_0.JPG", "DSC_1.JPG", "DSC_2.JPG"]
        assert all((scene.images / name).is_file() for name in scene.views)


def test_a_medium_scene_of_the_eth_benchmark_is_a_folder_of_images(tmp_path: Path) -> None:
    """Images and a database of COLMAP; its poses are not known."""
    folder = tmp_path / "Madrid_Metropolis"
    write_images(folder / "images", ("1.jpg", "2.jpg"))
    (folder / "database.db").write_bytes(b"")
    scene = reconstruction.load_scene(folder)
    assert scene.images == folder / "images" and not scene.views
