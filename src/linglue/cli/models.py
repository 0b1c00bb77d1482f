"""List what can be loaded: front-ends, networks, licences."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from linglue.cli import common
from linglue.features import FRONT_ENDS
from linglue.matcher import presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    models = presets()
    if options.json:
        front_ends = [asdict(front_end) for front_end in FRONT_ENDS.values()]
        print(json.dumps({"models": models, "front_ends": front_ends}))
        return
    networks = {str(model["name"]): model for model in models}
    for name, front_end in FRONT_ENDS.items():
        print(name)
        print(f"  features  {front_end.dim} dimensions; {front_end.licence}")
        if front_end.needs_weights:
            print(f"  needs     --extractor-weights: {front_end.weights_source}")
        if name in networks:
            model = networks[name]
            sizes = f"{model['dim']} → {model['network_dim']} dimensions"
            print(f"  network   {model['network']}, {sizes}; {model['network_licence']}")
            print(f"  weights   {model['training']}")
        else:
            print("  network   none in the package yet; `match` takes your own with --weights")
