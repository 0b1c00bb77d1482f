"""Other people's matchers and front-ends, with their real weights: for comparison only, never imported by inference.

`../shared/tools/get_peers.sh DIR` brings the weights; the environment variable LINGLUE_PEERS names that folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch

from linglue.errors import LinGlueError

ENVIRONMENT = "LINGLUE_PEERS"
PEER_FRONT_ENDS = {"xfeat": "linglue.evaluation.peers.xfeat:XFeat"}  # front-ends that only evaluation knows
FRONT_END_FILES = {
    "superpoint": "superpoint_v1.pth",
    "aliked": "aliked-n16.pth",
    "disk": "depth-save.pth",
    "xfeat": "xfeat.pt",
}


class NoWeights(LinGlueError):
    """A peer whose weights are not at hand; tables show it as "no weights"."""


def find_peer_file(name: str, purpose: str) -> Path:
    """The weights file of a peer.

    Args:
        name: of the file.
        purpose: what needs it, for the message.

    Raises:
        NoWeights: it is neither in the folder LINGLUE_PEERS nor in torch's cache.
    """
    folders = [Path(torch.hub.get_dir()) / "checkpoints"]
    if ENVIRONMENT in os.environ:
        peers = Path(os.environ[ENVIRONMENT])
        folders = [peers / "torch_home" / "hub" / "checkpoints", peers / "superglue", *folders]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise NoWeights(
            f"{purpose} has no weights: {name} is not in {' or '.join(map(str, folders))}; expected the folder of "
            f"get_peers.sh in {ENVIRONMENT}"
        )
    return found
