"""`python -m forgedsl.docs`: write what is generated from the compiler's own tables.

docs/reference/*.md, grammar/forge.tmLanguage.json      in the checkout it is called in
"""

from __future__ import annotations

from pathlib import Path

from forgedsl.cli.reference import REFERENCES, reference
from forgedsl.docs import textmate

HIGHLIGHTING = Path("grammar/forge.tmLanguage.json")


def main() -> None:
    """Write every generated file."""
    texts = {Path("docs/reference") / f"{name}.md": reference(name) for name in REFERENCES}
    texts[HIGHLIGHTING] = textmate.page()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)


if __name__ == "__main__":
    main()
