"""`python -m forgedsl.docs`: write what is generated from the compiler's own tables.

docs/reference/*.md, grammar/forge.tmLanguage.json, two files of grammar/editors

in the checkout that it is called in
"""

from __future__ import annotations

from pathlib import Path

from forgedsl.cli.reference import REFERENCES, reference
from forgedsl.docs import editors, textmate

HIGHLIGHTING = {
    Path("grammar/forge.tmLanguage.json"): textmate.page,
    Path("grammar/editors/vim/syntax/forge.vim"): editors.vim,
    Path("grammar/editors/emacs/forge-mode.el"): editors.emacs,
}


def main() -> None:
    """Write every generated file."""
    texts = {Path("docs/reference") / f"{name}.md": reference(name) for name in REFERENCES}
    texts |= {path: page() for path, page in HIGHLIGHTING.items()}
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        print(path)


if __name__ == "__main__":
    main()
