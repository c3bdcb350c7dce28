"""Converts spans, findings and names to objects of the protocol.

Spans count code points. The protocol counts units that client and server agree on; documents of
pygls convert them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path

from lsprotocol import types as lsp
from pygls.workspace import TextDocument

from forgedsl.diagnostics import Diagnostic, Edit, Severity
from forgedsl.explain.codes import pages
from forgedsl.ide.colours import MODIFIERS, TYPES, Token
from forgedsl.ide.complete import Item
from forgedsl.ide.outline import Symbol
from forgedsl.ide.signatures import Call
from forgedsl.source import Span

LEVELS = {
    Severity.ERROR: lsp.DiagnosticSeverity.Error,
    Severity.WARNING: lsp.DiagnosticSeverity.Warning,
    Severity.INFO: lsp.DiagnosticSeverity.Information,
}
LEGEND = lsp.SemanticTokensLegend(token_types=list(TYPES), token_modifiers=list(MODIFIERS))
_Item, _Symbol = lsp.CompletionItemKind, lsp.SymbolKind
ITEM_KINDS = {
    "setting": _Item.Property, "block": _Item.Module, "value": _Item.EnumMember,
    "unit": _Item.Unit, "keyword": _Item.Keyword, "import": _Item.Module, "module": _Item.Module,
    "builtin": _Item.Function, "loss": _Item.Function, "advantage": _Item.Function,
    "filter": _Item.Function, "fn": _Item.Function, "reward": _Item.Function,
    "rubric": _Item.Function, "constructor": _Item.Constructor, "param": _Item.Constant,
    "column": _Item.Field, "field": _Item.Variable, "local": _Item.Variable,
    "stream": _Item.Variable, "variable": _Item.Variable, "method": _Item.Method,
    "argument": _Item.Property, "type": _Item.TypeParameter, "axis": _Item.TypeParameter,
    "file": _Item.File, "folder": _Item.Folder, "code": _Item.Event, "attribute": _Item.Field,
    "python": _Item.Function,
}  # fmt: skip
SYMBOL_KINDS = {
    "import": _Symbol.Module, "param": _Symbol.Constant, "loss": _Symbol.Function,
    "advantage": _Symbol.Function, "filter": _Symbol.Function, "fn": _Symbol.Function,
    "reward": _Symbol.Function, "rubric": _Symbol.Function, "flow": _Symbol.Event,
    "setting": _Symbol.Property, "block": _Symbol.Namespace, "report": _Symbol.Field,
    "profile": _Symbol.Namespace, "sync": _Symbol.Event,
}  # fmt: skip


def place(document: TextDocument, offset: int) -> lsp.Position:
    """Return the position of an offset. Handles the end of the text, which pygls does not if the
    text is empty or its last line has no newline."""
    text = document.source
    if offset >= len(text):
        line = text.count("\n")
        start = text.rfind("\n") + 1
        character = document.position_codec.client_num_units(text[start:])
        return lsp.Position(line=line, character=character)
    return document.client_position_at_offset(min(offset, len(text)))


def span_range(document: TextDocument, span: Span) -> lsp.Range:
    """Convert a span of the document to a range."""
    return lsp.Range(start=place(document, span.start), end=place(document, span.end))


def edit(document: TextDocument, change: Edit) -> lsp.TextEdit:
    """Convert an edit of the document."""
    return lsp.TextEdit(range=span_range(document, change.span), new_text=change.text)


def new_file(path: Path, text: str) -> lsp.WorkspaceEdit:
    """Return the edit that makes a file with a text; one that exists by now is left alone."""
    uri = path.resolve().as_uri()
    start = lsp.Position(line=0, character=0)
    made = lsp.CreateFile(uri=uri, options=lsp.CreateFileOptions(overwrite=False))
    written = lsp.TextDocumentEdit(
        text_document=lsp.OptionalVersionedTextDocumentIdentifier(uri=uri),
        edits=[lsp.TextEdit(range=lsp.Range(start=start, end=start), new_text=text)],
    )
    return lsp.WorkspaceEdit(document_changes=[made, written])


def diagnostic(
    finding: Diagnostic, document: TextDocument, related: Iterable[lsp.DiagnosticRelatedInformation]
) -> lsp.Diagnostic:
    """Convert a finding, with notes and help below the message."""
    lines = [finding.message]
    lines += [f"note: {note}" for note in finding.notes]
    lines += [f"help: {finding.help}"] if finding.help else []
    if finding.fix is not None:
        unsafe = "" if finding.fix.safe else " (not a safe one)"
        lines.append(f"fix{unsafe}: {finding.fix.message}")
    if finding.profiles:
        lines.append(f"under profile {', '.join(finding.profiles)}")
    span = finding.span
    end = max(span.end, span.start + 1)
    return lsp.Diagnostic(
        range=span_range(document, Span(span.file, span.start, end)),
        message="\n".join(lines),
        severity=LEVELS[finding.severity],
        code=finding.code,
        source="forgec",
        related_information=list(related),
        data={"name": finding.name},
    )


def code_page(code: str) -> str:
    """Return the page of a code as Markdown; "" if there is none."""
    from forgedsl.explain.codes import markdown_page

    page = pages().get(code)
    return "" if page is None else markdown_page(page)


def items(document: TextDocument, found: Iterable[Item]) -> list[lsp.CompletionItem]:
    """Convert completions, in their order. Many have the same span; each span is converted once,
    because that reads the text."""
    spans = cache(partial(span_range, document))
    return [_item(each, spans(each.span), rank) for rank, each in enumerate(found)]


def _item(found: Item, place: lsp.Range, rank: int) -> lsp.CompletionItem:
    """Convert a completion; `rank` is its position in the list."""
    name = found.name
    return lsp.CompletionItem(
        label=name.name,
        kind=ITEM_KINDS.get(name.kind, _Item.Class),
        detail=name.detail or name.kind,
        documentation=_markdown(name.doc),
        sort_text=f"{rank:04d}",
        text_edit=lsp.TextEdit(range=place, new_text=found.insert),
    )


def signature(found: Call, *, by_offset: bool) -> lsp.SignatureHelp:
    """Convert the signature of a call. `by_offset`: parameters are offsets in the label, else their
    texts. If the cursor is in none of them, the active one is behind the last."""
    parameters = [
        lsp.ParameterInformation(
            label=each.place if by_offset else each.text,
            documentation=_markdown(each.doc),
        )
        for each in found.parameters
    ]
    shown = lsp.SignatureInformation(
        label=found.label, documentation=_markdown(found.doc), parameters=parameters
    )
    active = len(parameters) if found.active is None else found.active
    return lsp.SignatureHelp(signatures=[shown], active_signature=0, active_parameter=active)


def _markdown(text: str) -> lsp.MarkupContent | None:
    return lsp.MarkupContent(kind=lsp.MarkupKind.Markdown, value=text) if text else None


def symbol(document: TextDocument, found: Symbol) -> lsp.DocumentSymbol:
    """Convert a symbol with its children."""
    return lsp.DocumentSymbol(
        name=found.name,
        kind=SYMBOL_KINDS.get(found.kind, _Symbol.Class),
        detail=found.detail or found.kind,
        range=span_range(document, found.span.to(found.name_span)),
        selection_range=span_range(document, found.name_span),
        children=[symbol(document, child) for child in found.children],
    )


def token_data(document: TextDocument, tokens: Iterable[Token]) -> list[int]:
    """Encode semantic tokens as differences of lines and columns."""
    found: list[int] = []
    line = column = 0
    for token in tokens:
        start, end = place(document, token.span.start), place(document, token.span.end)
        bits = sum(1 << MODIFIERS.index(name) for name in token.modifiers)
        ahead = start.line - line
        behind = start.character - (0 if ahead else column)
        found += [ahead, behind, end.character - start.character, TYPES.index(token.type), bits]
        line, column = start.line, start.character
    return found
