"""What mkdocs does not do by itself: README and its like as pages, an API page per module, links within the repository.

Called by mkdocs and by griffe, its reader of docstrings (`hooks` and `extensions` in mkdocs.yml).
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "linglue"

# Files outside docs/ that are pages, too: where they are in the repository → where they are on the site.
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"} | {
    path.relative_to(ROOT).as_posix(): f"weights/{path.name}" for path in sorted(PACKAGE.glob("weights/*.md"))
}
LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#:]+)(?P<anchor>#[^)]*)?\)")


def modules() -> list[str]:
    """Dotted names of all public modules, in the order of their paths."""
    paths = sorted(path.relative_to(PACKAGE.parent) for path in PACKAGE.rglob("*.py") if path.name != "__main__.py")
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not any(part.startswith("_") for part in name.split("."))]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Append the API to the navigation: users' modules first, then one section per room."""
    rooms: dict[str, list[dict[str, str]]] = {}
    top: list[dict[str, str] | dict[str, list[dict[str, str]]]] = []
    for name in modules():
        _, *parts = name.split(".")
        if parts and (len(parts) > 1 or (PACKAGE / parts[0]).is_dir()):
            rooms.setdefault(parts[0], []).append({".".join(parts): f"api/{name}.md"})
        else:
            top.append({name: f"api/{name}.md"})
    config.nav = [*(config.nav or []), {"API": [*top, *({room: pages} for room, pages in rooms.items())]}]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for name in modules():
        files.append(File.generated(config, f"api/{name}.md", content=f"# {name}\n\n::: {name}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links work in the repository; here they are made to work on the site, or to be plain text."""
    places = {page: source for source, page in PAGES.items()}
    here = PurePosixPath(places.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def on_site(link: re.Match[str]) -> str:
        target = normpath(str(here / link["target"]))
        place = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if place is None:
            return link["text"]
        target = relpath(place, PurePosixPath(page.file.src_uri).parent)
        return f"{link['image']}[{link['text']}]({target}{link['anchor'] or ''})"

    return LINK.sub(on_site, markdown)


class ExampleSections(griffe.Extension):
    """`Example:` in a docstring is a section of its own; griffe knows the plural only."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^( *)Example:$", r"\1Examples:", obj.docstring.value)
