"""Dense points by COLMAP's own PatchMatch, for those whose COLMAP was built with CUDA."""

from __future__ import annotations

from pathlib import Path

from linglue.core.atomic import atomic_path
from linglue.errors import LinGlueError
from linglue.geometry.colmap import quiet_pycolmap
from linglue.io.ply import Cloud, read_ply

PURPOSE = "linglue dense"


def check_cuda() -> None:
    """Refuse a COLMAP without CUDA, of which PatchMatch is a part."""
    pycolmap = quiet_pycolmap(PURPOSE)
    if not pycolmap.has_cuda:
        raise LinGlueError(
            f"--stereo is colmap, but pycolmap {pycolmap.__version__} was built without CUDA; expected --stereo sweep"
        )


def patch_match(folder: Path, target: Path, longer_side: int) -> Cloud:
    """Write the dense points that COLMAP finds; its depth maps stay, so that a killed run resumes.

    Args:
        folder: with undistorted images/ and their model in sparse/0/.
        target: the .ply file.
        longer_side: pixels of the images that are compared.
    """
    check_cuda()
    pycolmap = quiet_pycolmap(PURPOSE)
    workspace = folder / "colmap"
    if not (workspace / "stereo").is_dir():  # pinhole images stay as they are; this adds what COLMAP asks for
        pycolmap.undistort_images(workspace, folder / "sparse" / "0", folder / "images")
    options = pycolmap.PatchMatchOptions()
    options.max_image_size = longer_side
    pycolmap.patch_match_stereo(workspace, options=options)
    fusion = pycolmap.StereoFusionOptions()
    fusion.max_image_size = longer_side
    with atomic_path(target) as partial:
        pycolmap.stereo_fusion(partial, workspace, options=fusion, output_type="PLY")
        partial.with_name(f"{partial.name}.vis").unlink(missing_ok=True)
    return read_ply(target)
