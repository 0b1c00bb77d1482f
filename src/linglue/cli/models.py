"""List what can be loaded: front-ends, networks, licences."""

from __future__ import annotations

import argparse
import json

from linglue.cli import common
from linglue.matcher import presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    found = presets()
    if options.json:
        print(json.dumps({"models": found}))
        return
    for model in found:
        print(f"{model['name']}")
        print(
            f"  network   {model['network']}, {model['dim']} → {model['network_dim']} dimensions;"
            f" {model['network_licence']}"
        )
        print(f"  weights   {model['training']}")
        print(f"  features  {model['features_licence']}")
        if model["needs_extractor_weights"]:
            print(f"  needs     --extractor-weights: {model['weights_source']}")
