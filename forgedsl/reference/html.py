"""Markdown -> one self-contained HTML page: no script, no network."""

import re

STYLE = """
:root { color-scheme: light dark; --line: #8884; --code: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1, h2, h3 { line-height: 1.25; margin-top: 2em } h1 { margin-top: 0 }
h2 { border-bottom: 1px solid var(--line); padding-bottom: .2em }
code, pre { font: 14px/1.45 ui-monospace, monospace; background: var(--code); border-radius: 4px }
code { padding: .1em .3em } pre { padding: .8em 1em; overflow-x: auto } pre code { background: none;
  padding: 0 }
table { border-collapse: collapse; display: block; overflow-x: auto }
th, td { border-bottom: 1px solid var(--line); padding: .3em .8em .3em 0; text-align: left;
  vertical-align: top }
svg { max-width: 100%; height: auto; background: #fff }
"""


def page(markdown: str, *, drawing: str = "") -> str:
    """The page of a Markdown text; `drawing` (an SVG) replaces its Mermaid block."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark").enable("table").render(markdown)
    if drawing:
        body = re.sub(
            r'<pre><code class="language-mermaid">.*?</code></pre>',
            lambda _: drawing, body, count=1, flags=re.S,
        )  # fmt: skip
    body = re.sub(r"<(h[1-3])>(.*?)</\1>", _anchored, body)
    title = re.sub(r"<[^>]+>", "", body.partition("</h1>")[0]).strip() or "ForgeDSL"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}</body>\n</html>\n"
    )


def _anchored(match: re.Match[str]) -> str:
    """A heading with the anchor that links between headings expect."""
    text = re.sub(r"<[^>]+>", "", match[2]).lower()
    anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
    return f'<{match[1]} id="{anchor}">{match[2]}</{match[1]}>'
