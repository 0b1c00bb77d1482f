"""List what can be loaded: front-ends, networks, licences; fetch the weights of a front-end."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from linglue.cli import common
from linglue.errors import LinGlueError
from linglue.features import FRONT_ENDS
from linglue.features.download import fetch_weights
from linglue.features.weights import cache_folder
from linglue.network.weights import presets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `linglue models`."""
    fetchable = ", ".join(name for name, facts in FRONT_ENDS.items() if facts.download)
    parser.add_argument("--fetch", metavar="NAME", help=f"download the weights of a front-end: {fetchable}")
    parser.add_argument("--accept-licence", action="store_true", help="accept the terms of the weights that have some")
    common.add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Do what `linglue models` was asked for, and report it."""
    if options.fetch is not None:
        _fetch(options)
    elif options.json:
        front_ends = [{**asdict(facts), "weights": _weights(name)} for name, facts in FRONT_ENDS.items()]
        print(json.dumps({"models": presets(), "front_ends": front_ends}))
    else:
        _list()


def _fetch(options: argparse.Namespace) -> None:
    if options.fetch not in FRONT_ENDS:
        raise LinGlueError(f"--fetch is {options.fetch!r}, expected {', '.join(FRONT_ENDS)}")
    facts = FRONT_ENDS[options.fetch]
    report = common.Report(options.json)
    if facts.download is not None and facts.download.terms:
        report.line(facts.download.terms)
    path = fetch_weights(facts, options.accept_licence)
    report.line(f"{facts.name}: {path} ({facts.licence})", name=facts.name, weights=str(path), licence=facts.licence)
    report.finish()


def _list() -> None:
    networks = {str(model["name"]): model for model in presets()}
    for name, facts in FRONT_ENDS.items():
        print(name)
        print(f"  features  {facts.dim} dimensions; {facts.licence}")
        if facts.needs_weights and (found := _weights(name)):
            print(f"  found     {found}")
        elif facts.needs_weights:
            print(f"  needs     {facts.weights_source}: `linglue models --fetch {name}`, or --extractor-weights FILE")
        if name in networks:
            model = networks[name]
            sizes = f"{model['dim']} → {model['network_dim']} dimensions"
            print(f"  network   {model['network']}, {sizes}; {model['network_licence']}")
            print(f"  weights   {model['training']}")
        else:
            print("  network   none in the package yet; `match` takes your own with --weights")


def _weights(name: str) -> str | None:
    """Where torch's cache has the weights of a front-end, if it does."""
    download = FRONT_ENDS[name].download
    path = None if download is None else cache_folder() / download.file
    return str(path) if path is not None and path.is_file() else None
