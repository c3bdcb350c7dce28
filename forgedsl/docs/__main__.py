"""`python -m forgedsl.docs [DIR]`: write the generated references, by default to docs/reference."""

from __future__ import annotations

import sys
from pathlib import Path

from forgedsl.docs import REFERENCES, reference


def main() -> None:
    """Write every page of the reference."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/reference")
    folder.mkdir(parents=True, exist_ok=True)
    for name in REFERENCES:
        path = folder / f"{name}.md"
        path.write_text(reference(name), encoding="utf-8", newline="\n")
        print(path)


if __name__ == "__main__":
    main()
