"""A drawing with coordinates, from which SVG and HTML are rendered.

    Picture | meshes | timeline -> Scene -> SVG

Shapes are boxes with lines of text, clusters are frames around shapes, wires are paths with an
arrow head, and labels are separate texts. `details` is shown on hovering; `origin` is the
declaration. Text is monospace, so that its width is known without a font.
"""

from __future__ import annotations

from forgedsl.records import dataclass

CHAR, SMALL, LINE, PAD = 7.3, 6.4, 17.0, 10.0
"""width of a character, of a small one, height of a line, padding of a box"""

Details = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rect:
    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.x + self.width

    @property
    def bottom(self) -> float:
        return self.y + self.height

    def overlaps(self, other: Rect) -> bool:
        """True if the two share more than a border."""
        return (
            self.x < other.right
            and other.x < self.right
            and self.y < other.bottom
            and other.y < self.bottom
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A box; the first line is its name. `colour` is an index into the palette; None is neutral."""

    id: str
    rect: Rect
    lines: tuple[str, ...]
    colour: int | None = None
    details: Details = ()
    origin: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A frame with a title in its upper left corner."""

    id: str
    rect: Rect
    title: str
    colour: int | None = None
    details: Details = ()
    origin: str = ""

    @property
    def title_rect(self) -> Rect:
        width = SMALL * len(self.title)
        return Rect(x=self.rect.x + 10, y=self.rect.y + 5, width=width, height=14)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """`path` in SVG's notation; `source` and `target` are ids of shapes."""

    path: str
    source: str
    target: str
    weights: bool = False
    plain: bool = False
    """a line without an arrow head"""
    details: Details = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A text; `rect` is its bounding box."""

    text: str
    rect: Rect
    weights: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    title: str
    width: float
    height: float
    shapes: tuple[Shape, ...]
    clusters: tuple[Cluster, ...] = ()
    wires: tuple[Wire, ...] = ()
    labels: tuple[Label, ...] = ()


def text_width(text: str) -> float:
    """Width of a label."""
    return SMALL * len(text)


def box_size(lines: tuple[str, ...], ports: int = 1) -> tuple[float, float]:
    """Return width and height of a box with these lines and a number of wires on a side."""
    width = 2 * PAD + CHAR * max(map(len, lines))
    return width, max(2 * PAD + LINE * len(lines) - 4, PORT * ports + 8)


PORT = 17.0
"""distance of two wires on the side of a box: a label fits between them"""
