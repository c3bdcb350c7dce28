"""How long the language server takes: keystroke -> findings, and completion.

    python benchmarks/lsp.py [FILE] [--strokes N]

A real `forgec lsp` is driven over stdin and stdout. A line of FILE (grpo_math.forge) is typed
character by character, one after the other; after each the time of a completion at the cursor is
taken, then that to the findings of the text, without the pause that the server makes. The result
is the median and the 95th percentile of wall time, and the processor time of the server by stroke,
which says more on a machine on which others work too. Half of the strokes leave a text with a
mistake; the two kinds are told apart.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from lsprotocol import types as lsp

from forgedsl.lsp.server import PAUSE

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "pipelines/grpo_math.forge")
    parser.add_argument("--strokes", type=int, default=200)
    options = parser.parse_args()
    asyncio.run(measure(options.file.resolve(), options.strokes))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def typed(text: str, strokes: int) -> list[tuple[str, int]]:
    """Texts with the place of the cursor: lines that are typed again, letter by letter."""
    found: list[tuple[str, int]] = []
    lines = [n for n, line in enumerate(text.split("\n")) if line.startswith("  ")]
    for number in lines[:: max(1, len(lines) // 12)]:
        start = sum(len(line) + 1 for line in text.split("\n")[:number])
        line = text.split("\n")[number]
        for end in range(2, len(line) + 1):
            found.append((text[: start + end] + text[start + len(line) :], start + end))
    return found[:: max(1, len(found) // strokes)][:strokes]


async def measure(path: Path, strokes: int) -> None:
    """Print the times."""
    sys.path.insert(0, str(ROOT / "compiler_tests" / "ide"))
    from session import Editor

    times: dict[str, list[float]] = {"findings, whole text": [], "findings, with a mistake": []}
    times["completion"] = []
    async with Editor(path.parent) as editor:
        uri = editor.open(path)
        text = editor.texts[uri]
        await editor.findings(uri)
        pid = editor.client._server.pid
        before = cpu_seconds(pid)
        states = typed(text, strokes)
        for state, cursor in states:
            line = state.count("\n", 0, cursor)
            column = cursor - (state.rfind("\n", 0, cursor) + 1)
            params = lsp.CompletionParams(
                text_document=lsp.TextDocumentIdentifier(uri=uri),
                position=lsp.Position(line=line, character=column),
            )
            changed = time.perf_counter()
            editor.change(uri, state)
            await editor.client.text_document_completion_async(params)
            times["completion"].append(1e3 * (time.perf_counter() - changed))
            found = await editor.findings(uri)
            took = 1e3 * (time.perf_counter() - changed - PAUSE)
            broken = any((d.code or "").startswith("S") for d in found)
            kind = "findings, with a mistake" if broken else "findings, whole text"
            times[kind].append(took)
        used = 1e3 * (cpu_seconds(pid) - before) / len(states)
    print(
        f"{path.name}, {len(states)} strokes, processor time of the server {used:.0f} ms a stroke"
    )
    for what, found in times.items():
        if found:
            low, high = statistics.median(found), sorted(found)[int(0.95 * (len(found) - 1))]
            print(f"  {what:26} {len(found):4} x  median {low:6.1f} ms  95th {high:6.1f} ms")


if __name__ == "__main__":
    main()
