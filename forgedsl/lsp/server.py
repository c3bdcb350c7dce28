"""The language server: a message of the protocol -> a feature of forgedsl/ide -> the answer.

Everything runs in one thread, and a second process checks half of the profiles. Requests are
answered at once for the newest text. Findings are sent PAUSE seconds after the last change, for the
changed text and for open texts that import it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsprotocol import types as lsp
from pygls import uris
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

from forgedsl.diagnostics import Diagnostic, Reporter
from forgedsl.format.canonical import canonical
from forgedsl.ide import actions, calls, colours, complete, hints, hover, outline, uses
from forgedsl.ide.lint_worker import LintWorker, has_two_cores
from forgedsl.ide.uses import Place, RenameError
from forgedsl.ide.workspace import Document, Workspace, real_path
from forgedsl.lsp import convert
from forgedsl.version import VERSION

PAUSE = 0.1
TRIGGERS = [".", "=", "(", "[", ":", '"', " ", "/"]
OPENS, CONTINUES = ["(", ","], ["=", ")"]
"""characters after which editors ask for the signature, and ask again while it is shown"""
GRAPH, PLAN, EXPLAIN = "forge.graph", "forge.plan", "forge.explain"


class Server(LanguageServer):
    """A server of pygls with our workspace."""

    def __init__(self) -> None:
        super().__init__("forgec", VERSION)
        self.open = Workspace()
        self.waiting: dict[str, asyncio.TimerHandle] = {}
        self.published: dict[str, set[str]] = {}
        """per document, the URIs for which its findings were sent"""
        self.shown_problems: set[str] = set()
        self.pause = PAUSE

    # ---- texts

    def path(self, uri: str) -> Path:
        """Return the path of a URI. A text that was never saved gets a path of its own."""
        return Path(uris.to_fs_path(uri) or uri.replace(":", "/"))

    def documents(self, uri: str) -> tuple[Document, TextDocument]:
        """Return the document of a text, and pygls' document, which converts positions.

        Raises:
            JsonRpcException: the text is not open, and there is no such file.
        """
        path = self.path(uri)
        if uri not in self.workspace.text_documents and not path.is_file():
            raise _refused(f"{path} is not open, and there is no such file")
        return self.open.document(path), self.workspace.get_text_document(uri)

    def at(self, uri: str, position: lsp.Position) -> tuple[Document, TextDocument, int]:
        """Return both documents, and the offset of a position."""
        known, document = self.documents(uri)
        return known, document, document.offset_at_position(position)

    def changed(self, uri: str) -> None:
        """Take the newest text; findings are sent after the pause."""
        self.open.open(self.path(uri), self.workspace.get_text_document(uri).source)
        self.check_soon(uri)

    def check_soon(self, uri: str) -> None:
        """Schedule sending findings, after a pause without changes."""
        if uri in self.waiting:
            self.waiting.pop(uri).cancel()
        loop = asyncio.get_running_loop()
        self.waiting[uri] = loop.call_later(self.pause, self.check, uri)

    # ---- findings

    def check(self, uri: str) -> None:
        """Send the findings of a text, and of the open ones that import it."""
        self.waiting.pop(uri, None)
        gc.disable()  # it would search for cycles again and again while a program is checked
        try:
            self._check(uri)
        finally:
            gc.enable()

    def _check(self, uri: str) -> None:
        changed = self.path(uri).resolve()
        for other in [uri, *(u for u in self.workspace.text_documents if u != uri)]:
            if other == uri or changed in self._imports(other):
                try:
                    self._send(other)
                except Exception as error:  # a bug of ours: report it and continue
                    self._failed(error)

    def _imports(self, uri: str) -> set[Path]:
        known = self.open.document(self.path(uri))
        paths = (uses.module_path(known, alias) for alias in uses.uses_of(known).imports)
        return {path.resolve() for path in paths if path is not None}

    def _send(self, uri: str) -> None:
        known, document = self.documents(uri)
        grouped: dict[str, list[lsp.Diagnostic]] = {uri: []}
        opened = {self.path(each).resolve(): each for each in self.workspace.text_documents}
        for finding in known.findings:
            name = finding.span.file
            if name == known.name:
                grouped[uri].append(self.diagnostic(finding, document))
            elif real_path(name).resolve() not in opened:  # open texts send their own findings
                other = uris.from_fs_path(str(real_path(name).resolve()))
                if other is not None:
                    place = self.workspace.get_text_document(other)
                    grouped.setdefault(other, []).append(self.diagnostic(finding, place))
        for gone in self.published.get(uri, set()) - set(grouped):
            grouped[gone] = []
        self.published[uri] = {each for each, found in grouped.items() if found or each == uri}
        for each, found in grouped.items():
            version = document.version if each == uri else None
            self.text_document_publish_diagnostics(
                lsp.PublishDiagnosticsParams(uri=each, version=version, diagnostics=found)
            )
        if known.config_problem and known.config_problem not in self.shown_problems:
            self.shown_problems.add(known.config_problem)
            self._show(f"forgec: {known.config_problem}")

    def diagnostic(self, finding: Diagnostic, document: TextDocument) -> lsp.Diagnostic:
        """Convert a finding for sending."""
        related = [
            lsp.DiagnosticRelatedInformation(location=location, message=label.text)
            for label in finding.related
            if (location := self.location(label.span.file, label.span)) is not None
        ]
        return convert.diagnostic(finding, document, related)

    def location(self, name: str, span: Any) -> lsp.Location | None:
        """Convert a span of any text to a location."""
        path = real_path(name)
        if name.startswith("<"):
            return None
        uri = uris.from_fs_path(str(path.resolve()))
        if uri is None:
            return None
        opened = [u for u in self.workspace.text_documents if self.path(u) == path]
        uri = opened[0] if opened else uri
        document = self.workspace.get_text_document(uri)
        return lsp.Location(uri=uri, range=convert.span_range(document, span))

    def places(self, found: list[Place]) -> list[lsp.Location]:
        """Convert places to locations."""
        located = (self.location(str(place.path), place.span) for place in found)
        return [each for each in located if each is not None]

    def _failed(self, error: Exception) -> None:
        text = "".join(traceback.format_exception(error))
        self.window_log_message(lsp.LogMessageParams(type=lsp.MessageType.Error, message=text))
        self._show(f"forgec failed: {error}")

    def _show(self, message: str) -> None:
        kind = lsp.MessageType.Warning
        self.window_show_message(lsp.ShowMessageParams(type=kind, message=message))


def serve() -> None:
    """Serve over stdin and stdout until the editor exits. Other output goes to stderr, because
    stdout belongs to the protocol, and pygls closes it."""
    sys.stdout.flush()
    protocol = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    server = make_server()
    worker = LintWorker() if has_two_cores() else None
    server.open.worker = worker
    try:
        server.start_io(stdout=protocol)
    finally:
        if worker is not None:
            worker.close()


def _is_failure(record: logging.LogRecord) -> bool:
    """False for the report of a request that was refused with a reason, such as a rename: the
    editor shows the reason, and a traceback would look like a bug."""
    error = record.exc_info[1] if record.exc_info else None
    return getattr(error, "code", None) != lsp.LSPErrorCodes.RequestFailed.value


def make_server() -> Server:
    """A server with all its features."""
    logging.getLogger("pygls.protocol.json_rpc").addFilter(_is_failure)
    server = Server()
    _texts(server)
    _hover_and_completion(server)
    _signatures(server)
    _names(server)
    _structure(server)
    _hints_and_lenses(server)
    _renames(server)
    _changes(server)
    _pictures(server)
    return server


def _texts(server: Server) -> None:
    """Register opening, changing and closing of texts."""

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(ls: Server, params: lsp.DidOpenTextDocumentParams) -> None:
        ls.changed(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    def changed(ls: Server, params: lsp.DidChangeTextDocumentParams) -> None:
        ls.changed(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(ls: Server, params: lsp.DidSaveTextDocumentParams) -> None:
        ls.changed(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(ls: Server, params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        ls.open.close(ls.path(uri))
        if uri in ls.waiting:
            ls.waiting.pop(uri).cancel()
        for each in ls.published.pop(uri, {uri}):
            ls.text_document_publish_diagnostics(
                lsp.PublishDiagnosticsParams(uri=each, diagnostics=[])
            )

    @server.feature(lsp.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def watched(ls: Server, params: lsp.DidChangeWatchedFilesParams) -> None:
        ls.open.forget()
        for uri in ls.workspace.text_documents:
            ls.check_soon(uri)


def _hover_and_completion(server: Server) -> None:
    """Register hover and completion."""

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hovered(ls: Server, params: lsp.HoverParams) -> lsp.Hover | None:
        known, document, offset = ls.at(params.text_document.uri, params.position)
        found = hover.hover(known, offset)
        if found is None:
            return None
        content = lsp.MarkupContent(kind=lsp.MarkupKind.Markdown, value=found.text)
        return lsp.Hover(contents=content, range=convert.span_range(document, found.span))

    @server.feature(
        lsp.TEXT_DOCUMENT_COMPLETION, lsp.CompletionOptions(trigger_characters=TRIGGERS)
    )
    def completed(ls: Server, params: lsp.CompletionParams) -> lsp.CompletionList:
        known, document, offset = ls.at(params.text_document.uri, params.position)
        found = complete.complete(known, offset)
        return lsp.CompletionList(is_incomplete=False, items=convert.items(document, found))


def _signatures(server: Server) -> None:
    """Register signature help."""
    options = lsp.SignatureHelpOptions(trigger_characters=OPENS, retrigger_characters=CONTINUES)

    @server.feature(lsp.TEXT_DOCUMENT_SIGNATURE_HELP, options)
    def signed(ls: Server, params: lsp.SignatureHelpParams) -> lsp.SignatureHelp | None:
        known, _, offset = ls.at(params.text_document.uri, params.position)
        found = calls.signature(known, offset)
        return None if found is None else convert.signature(found, by_offset=_reads_offsets(ls))


def _reads_offsets(ls: Server) -> bool:
    """True if the editor finds a parameter in the label of a signature by its offsets."""
    texts = ls.client_capabilities.text_document
    help_ = texts.signature_help if texts else None
    shown = help_.signature_information if help_ else None
    known = shown.parameter_information if shown else None
    return bool(known and known.label_offset_support)


def _names(server: Server) -> None:
    """Register definition and references."""

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def defined(ls: Server, params: lsp.DefinitionParams) -> list[lsp.Location]:
        known, _, offset = ls.at(params.text_document.uri, params.position)
        found = uses.definition_at(known, offset)
        return [] if found is None else ls.places([found])

    @server.feature(lsp.TEXT_DOCUMENT_REFERENCES)
    def referred(ls: Server, params: lsp.ReferenceParams) -> list[lsp.Location]:
        known, _, offset = ls.at(params.text_document.uri, params.position)
        return ls.places(uses.references(known, offset))

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def highlighted(ls: Server, params: lsp.DocumentHighlightParams) -> list[lsp.DocumentHighlight]:
        known, document, offset = ls.at(params.text_document.uri, params.position)
        places = [p for p in uses.references(known, offset) if p.path == known.path]
        ranges = [convert.span_range(document, place.span) for place in places]
        return [lsp.DocumentHighlight(range=each) for each in ranges]


def _structure(server: Server) -> None:
    """Register symbols, folding and semantic tokens."""

    @server.feature(lsp.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def symbols(ls: Server, params: lsp.DocumentSymbolParams) -> list[lsp.DocumentSymbol]:
        known, document = ls.documents(params.text_document.uri)
        return [convert.symbol(document, each) for each in outline.symbols(known)]

    @server.feature(lsp.TEXT_DOCUMENT_FOLDING_RANGE)
    def folded(ls: Server, params: lsp.FoldingRangeParams) -> list[lsp.FoldingRange]:
        known, _ = ls.documents(params.text_document.uri)
        return [
            lsp.FoldingRange(start_line=each.first, end_line=each.last, kind=each.kind)
            for each in outline.folds(known)
        ]

    @server.feature(lsp.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, convert.LEGEND)
    def coloured(ls: Server, params: lsp.SemanticTokensParams) -> lsp.SemanticTokens:
        known, document = ls.documents(params.text_document.uri)
        return lsp.SemanticTokens(data=convert.token_data(document, colours.tokens(known)))


def _hints_and_lenses(server: Server) -> None:
    """Register inlay hints and code lenses."""

    @server.feature(lsp.TEXT_DOCUMENT_INLAY_HINT)
    def hinted(ls: Server, params: lsp.InlayHintParams) -> list[lsp.InlayHint]:
        known, document = ls.documents(params.text_document.uri)
        first = document.offset_at_position(params.range.start)
        last = document.offset_at_position(params.range.end)
        return [
            lsp.InlayHint(
                position=convert.place(document, each.offset),
                label=each.text,
                tooltip=each.tip,
                kind=lsp.InlayHintKind.Type,
            )
            for each in hints.hints(known)
            if first <= each.offset <= last
        ]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)
    def lenses(ls: Server, params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        uri = params.text_document.uri
        known, document = ls.documents(uri)
        commands = (PLAN, GRAPH)
        return [
            lsp.CodeLens(
                range=convert.span_range(document, each.span),
                command=lsp.Command(title=each.text, command=command, arguments=[uri]),
            )
            for each, command in zip(hints.lenses(known), commands, strict=False)
        ]


def _renames(server: Server) -> None:
    """Register rename."""

    @server.feature(lsp.TEXT_DOCUMENT_PREPARE_RENAME)
    def may_rename(ls: Server, params: lsp.PrepareRenameParams) -> lsp.Range:
        known, document, offset = ls.at(params.text_document.uri, params.position)
        try:
            return convert.span_range(document, uses.renamable(known, offset))
        except RenameError as error:
            raise _refused(error) from error

    @server.feature(lsp.TEXT_DOCUMENT_RENAME, lsp.RenameOptions(prepare_provider=True))
    def renamed(ls: Server, params: lsp.RenameParams) -> lsp.WorkspaceEdit:
        known, _, offset = ls.at(params.text_document.uri, params.position)
        try:
            found = uses.rename(known, offset, params.new_name)
        except RenameError as error:
            raise _refused(error) from error
        changes: dict[str, list[lsp.TextEdit]] = {}
        for place in ls.places(found):
            change = lsp.TextEdit(range=place.range, new_text=params.new_name)
            changes.setdefault(place.uri, []).append(change)
        return lsp.WorkspaceEdit(changes=changes)


def _changes(server: Server) -> None:
    """Register formatting and code actions."""

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def formatted(ls: Server, params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        known, document = ls.documents(params.text_document.uri)
        text = canonical(known.source, Reporter())
        return None if text is None else _whole(known, document, text)

    kinds = [lsp.CodeActionKind.QuickFix, lsp.CodeActionKind.SourceFixAll]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds))
    def offered(ls: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        return _actions(ls, params)


def _actions(ls: Server, params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
    """Return the code actions for a range of a text."""
    uri = params.text_document.uri
    known, document = ls.documents(uri)
    first = document.offset_at_position(params.range.start)
    last = document.offset_at_position(params.range.end)
    only = params.context.only
    found: list[lsp.CodeAction] = []
    if _asks(only, lsp.CodeActionKind.QuickFix):
        for action in actions.actions(known, first, last):
            finding = ls.diagnostic(action.finding, document)
            edit = _edit(uri, [convert.edit(document, each) for each in action.edits])
            if action.creates is not None:
                if not _creates_files(ls):
                    continue
                edit = convert.new_file(*action.creates)
            found.append(
                lsp.CodeAction(
                    title=action.title,
                    kind=lsp.CodeActionKind.QuickFix,
                    diagnostics=[finding],
                    is_preferred=action.kind != "allow" and action.safe,
                    edit=edit,
                )
            )
    text = actions.fix_all(known) if _asks(only, lsp.CodeActionKind.SourceFixAll) else None
    if text is not None:
        title, kind = "Apply all safe fixes of forgec", lsp.CodeActionKind.SourceFixAll
        edit = _edit(uri, _whole(known, document, text))
        found.append(lsp.CodeAction(title=title, kind=kind, edit=edit))
    return found


def _creates_files(ls: Server) -> bool:
    """True if the editor can make a file as part of an edit."""
    workspace = ls.client_capabilities.workspace
    known = workspace.workspace_edit if workspace else None
    operations = (known.resource_operations if known else None) or ()
    return bool(known and known.document_changes) and lsp.ResourceOperationKind.Create in operations


def _asks(only: Sequence[str] | None, kind: lsp.CodeActionKind) -> bool:
    """True if a kind of action is requested: no kinds are named, or it or a parent kind is."""
    asked = [str(getattr(each, "value", each)) for each in only or ()]
    return not asked or any(f"{kind.value}.".startswith(f"{each}.") or not each for each in asked)


def _whole(known: Document, document: TextDocument, text: str) -> list[lsp.TextEdit]:
    """Return the edit that replaces a whole text; none if the texts are equal."""
    if text == known.text:
        return []
    start, end = lsp.Position(line=0, character=0), convert.place(document, len(known.text))
    return [lsp.TextEdit(range=lsp.Range(start=start, end=end), new_text=text)]


def _edit(uri: str, edits: list[lsp.TextEdit]) -> lsp.WorkspaceEdit:
    return lsp.WorkspaceEdit(changes={uri: edits})


def _refused(error: RenameError | str) -> JsonRpcException:
    return JsonRpcException(message=str(error), code=lsp.LSPErrorCodes.RequestFailed.value)


def _pictures(server: Server) -> None:
    """Register commands: the graph as a page, the plan as text, the page of a code."""

    @server.command(GRAPH)
    def graph(ls: Server, *arguments: str) -> str | None:
        uri, *more = arguments  # the URI, then perhaps the view and the format
        return hints.graph_page(ls.open.document(ls.path(uri)), *more)

    @server.command(PLAN)
    def plan(ls: Server, uri: str) -> str | None:
        return hints.plan_page(ls.open.document(ls.path(uri)))

    @server.command(EXPLAIN)
    def explain(ls: Server, code: str) -> str:
        return convert.code_page(code)
