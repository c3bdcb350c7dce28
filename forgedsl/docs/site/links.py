"""Checks the links of a built site: files and places exist, and all that loads is on the site."""

from __future__ import annotations

import posixpath
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src")}
"""what a browser loads by itself"""


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if value is None:
                continue
            if key == "id" or (tag == "a" and key == "name"):
                self.anchors.add(value)
            elif key in ("href", "src"):
                self.links.append((tag, value))


def dead_links(folder: Path) -> list[str]:
    """Return a line for each link that leads nowhere, in the order of the pages."""
    pages: dict[str, _Page] = {}
    for path in sorted(folder.rglob("*.html")):
        page = pages[path.relative_to(folder).as_posix()] = _Page()
        page.feed(path.read_text("utf-8"))
    return [
        f"{name}: {link} ({problem})"
        for name, page in pages.items()
        for tag, link in page.links
        if (problem := _problem(folder, pages, name, tag, link))
    ]


def _problem(folder: Path, pages: dict[str, _Page], name: str, tag: str, link: str) -> str:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        loads = parts.scheme in ("http", "https", "") and tag != "a"
        return "loaded from another host" if loads else ""
    target = name
    if parts.path:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(parts.path)))
        if parts.path.startswith("/"):
            return ""  # only 404.html has such links; the caller checks it
    if (folder / target).is_dir():
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if not (folder / target).is_file():
        return "no such file"
    if tag != "a" or target not in pages or not parts.fragment:
        return ""
    return "" if unquote(parts.fragment) in pages[target].anchors else "no such place"
