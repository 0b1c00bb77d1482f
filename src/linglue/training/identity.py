"""The identity start: a network that matches as well as the raw descriptors before it has learned anything.

python -m linglue.training.identity IMAGES -o weights.safetensors [--features sift] [--preset geo]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from linglue.core.progress import progress
from linglue.errors import LinGlueError
from linglue.features import make_extractor
from linglue.features.base import Extractor
from linglue.network.linglue import LinGlue
from linglue.network.weights import LinGlueConfig

KEYPOINTS_PER_IMAGE = 512


def principal_directions(descriptors: Tensor, count: int) -> Tensor:
    """(D, count) orthonormal columns that keep the most of the descriptors (N, D), zero columns if count > D.

    Not centred: a projection without offset keeps inner products, and those are what unit descriptors are compared by.

    Args:
        descriptors: (N, D).
        count: number of directions.
    """
    _, vectors = torch.linalg.eigh(descriptors.double().T @ descriptors.double())  # ascending
    basis = vectors.flip(1)[:, :count].float()  # (D, ≤ count)
    return torch.nn.functional.pad(basis, (0, count - basis.shape[1]))


def identity_network(config: LinGlueConfig, descriptors: Tensor, seed: int = 0) -> LinGlue:
    """A network for `config` that starts as the projection onto the principal directions of descriptors (N, D).

    Args:
        config: the network's.
        descriptors: (N, D) of the front-end, some thousands.
        seed: of everything that does not matter at the start.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LinGlue(config)
    network.initialise_identity(principal_directions(descriptors, config.dim))
    return network


def gather_descriptors(images: Sequence[Path], extractor: Extractor, resize: int = 1024) -> Tensor:
    """(N, D) descriptors of the strongest keypoints of every image.

    Args:
        images: files.
        extractor: the front-end.
        resize: longer side at which it sees them.
    """
    parts = [
        torch.from_numpy(extractor.extract(path, KEYPOINTS_PER_IMAGE, resize).descriptors)
        for path in progress(images, desc="descriptors", unit="image")
    ]
    return torch.cat(parts)


def main() -> None:
    """`python -m linglue.training.identity`: write the identity start as weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, help="folder of images")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--features", default="sift")
    parser.add_argument("--extractor-weights", type=Path)
    parser.add_argument("--preset", default="geo")
    arguments = parser.parse_args()
    images = sorted(p for p in arguments.images.iterdir() if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    if not images:
        raise LinGlueError(f"{arguments.images}: holds no .jpg or .png images")
    extractor = make_extractor(arguments.features, arguments.extractor_weights)
    descriptors = gather_descriptors(images, extractor)
    config = LinGlueConfig.preset(arguments.preset, extractor.dim)
    network = identity_network(config, descriptors)
    kept = (descriptors @ principal_directions(descriptors, config.dim)).square().sum() / descriptors.square().sum()
    training = f"identity start: PCA of {len(descriptors)} descriptors from {len(images)} images, not trained"
    network.save(arguments.output, extractor.kind, arguments.preset, "Apache-2.0", training)
    print(f"{arguments.output}: {config.input_dim} → {config.dim} keeps {kept:.1%} of the descriptors' energy")


if __name__ == "__main__":
    main()
