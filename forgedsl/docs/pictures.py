"""Drawings for pages whose reader may choose the colours: one light, one dark.

An SVG of `forgedsl.drawing` follows the reader's system.
"""

from __future__ import annotations

from forgedsl.drawing.render_svg import DARK

_MEDIA = f"  @media (prefers-color-scheme: dark) {{{DARK}  }}\n"


def both(svg: str) -> dict[str, str]:
    """Return the drawing in light and in dark colours."""
    assert _MEDIA in svg
    return {"light": svg.replace(_MEDIA, ""), "dark": svg.replace(_MEDIA, DARK)}
