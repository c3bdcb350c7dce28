"""A scripted editor: pygls' client over stdin and stdout of a real `forgec lsp`."""

import asyncio
import sys

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

SECONDS = 60
"""that any answer may take on a busy machine"""


class Editor:
    """An editor that has started the server. Positions are (line, column) from 0."""

    def __init__(self, folder, capabilities=None):
        self.folder = folder
        self.capabilities = capabilities or lsp.ClientCapabilities()
        self.client = LanguageClient("test", "1")
        self.found = {}
        self.versions = {}
        self.texts = {}
        self.messages = []
        self.news = asyncio.Event()

        @self.client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params):
            self.found[params.uri] = params
            self.news.set()

        @self.client.feature(lsp.WINDOW_SHOW_MESSAGE)
        @self.client.feature(lsp.WINDOW_LOG_MESSAGE)
        def said(params):
            self.messages.append(params.message)

    async def __aenter__(self):
        await self.client.start_io(sys.executable, "-m", "forgedsl", "lsp")
        root = self.folder.as_uri()
        answer = await self.client.initialize_async(
            lsp.InitializeParams(capabilities=self.capabilities, root_uri=root)
        )
        self.can = answer.capabilities
        self.client.initialized(lsp.InitializedParams())
        return self

    async def __aexit__(self, *error):
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    def open(self, path, text=None):
        """Open a file, or a text in its place."""
        uri = path.as_uri()
        self.texts[uri] = path.read_text() if text is None else text
        self.versions[uri] = 1
        item = lsp.TextDocumentItem(uri=uri, language_id="forge", version=1, text=self.texts[uri])
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(text_document=item))
        return uri

    def change(self, uri, text):
        """Replace the whole text."""
        self.texts[uri] = text
        self.versions[uri] += 1
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                text_document=lsp.VersionedTextDocumentIdentifier(
                    uri=uri, version=self.versions[uri]
                ),
                content_changes=[lsp.TextDocumentContentChangeWholeDocument(text=text)],
            )
        )

    async def findings(self, uri, until=lambda found: True):
        """The findings of the newest text, when they are such."""

        async def newest():
            while True:
                found = self.found.get(uri)
                is_new = found is not None and found.version == self.versions.get(uri)
                if is_new and until(found.diagnostics):
                    return found.diagnostics
                self.news.clear()
                await self.news.wait()

        return await asyncio.wait_for(newest(), SECONDS)

    def place(self, uri, text, inside=0):
        """The position of a piece of text."""
        whole = self.texts[uri]
        offset = whole.index(text) + inside
        line = whole.count("\n", 0, offset)
        return lsp.Position(line=line, character=offset - (whole.rfind("\n", 0, offset) + 1))

    def at(self, uri, text, inside=0):
        return {
            "text_document": lsp.TextDocumentIdentifier(uri=uri),
            "position": self.place(uri, text, inside),
        }

    def whole(self, uri):
        last = self.texts[uri].count("\n") + 1
        start, end = lsp.Position(line=0, character=0), lsp.Position(line=last, character=0)
        return lsp.Range(start=start, end=end)


def applied(text, edits):
    """A text after the edits of an answer."""
    starts = [0]
    for line in text.split("\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(position):
        return starts[position.line] + position.character

    for edit in sorted(edits, key=lambda e: -offset(e.range.start)):
        start, end = offset(edit.range.start), offset(edit.range.end)
        text = text[:start] + edit.new_text + text[end:]
    return text
