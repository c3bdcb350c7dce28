"""A scripted editor over stdin and stdout does everything on each pipeline that ships."""

import asyncio
import logging
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("pygls")
sys.path.insert(0, str(Path(__file__).parent))

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from session import SECONDS, Editor, applied

from forgedsl.lint.engine import lint_file

ROOT = Path(__file__).parents[2] / "pipelines"
PIPELINES = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.rglob("*.forge"))
QUICK = ("grpo_math.forge", "desk.forge")


def mark(number):
    """Every fifth of the others is a case of `make test-all`, and the rest of `make deep`."""
    return pytest.mark.deep if number % 5 else pytest.mark.full


def run(work):
    """Run a scripted session within the time that it may take."""
    return asyncio.run(asyncio.wait_for(work, 10 * SECONDS))


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=mark(k)) for k, n in enumerate(PIPELINES)]
)
def test_a_session_does_everything(name):
    run(whole_session(ROOT / name))


async def whole_session(path):
    async with Editor(path.parent) as editor:
        uri = editor.open(path)
        found = await editor.findings(uri)
        assert [d.code for d in found] == [d.code for d in lint_file(path).diagnostics]
        await pictures(editor, uri)
        await structure(editor, uri)
        await names(editor, uri)
        await settings(editor, uri)
        await signatures(editor, uri)
        await formatting(editor, uri)
        await repairs(editor, uri)
        assert editor.messages == []


async def pictures(editor, uri):
    """Lens, hints and graph of what has a flow."""
    has_flow = re.search(r"^flow ", editor.texts[uri], re.M) is not None
    document = lsp.TextDocumentIdentifier(uri=uri)
    params = lsp.CodeLensParams(text_document=document)
    lenses = await editor.client.text_document_code_lens_async(params)
    assert [lens.command.command for lens in lenses] == ["forge.plan", "forge.graph"] * has_flow
    if has_flow:
        assert "step at most" in lenses[0].command.title
        line = lenses[0].range.start.line
        assert editor.texts[uri].split("\n")[line].startswith("flow ")
    for command, begins in (("forge.graph", "<!doctype html>"), ("forge.plan", "")):
        params = lsp.ExecuteCommandParams(command=command, arguments=[uri])
        page = await editor.client.workspace_execute_command_async(params)
        assert (page is not None) == has_flow
        assert page is None or page.lower().startswith(begins)
    params = lsp.InlayHintParams(text_document=document, range=editor.whole(uri))
    hints = await editor.client.text_document_inlay_hint_async(params)
    bound = re.search(r"^loss [^{]*\{\n +\w+ +=", editor.texts[uri], re.M)
    if bound is not None:
        assert any(re.search(r": (diff )?\[.*\] f32", hint.label) for hint in hints)


async def structure(editor, uri):
    """Symbols, folding, colours."""
    document = lsp.TextDocumentIdentifier(uri=uri)
    text = editor.texts[uri]
    params = lsp.DocumentSymbolParams(text_document=document)
    symbols = await editor.client.text_document_document_symbol_async(params)
    declared = re.findall(r"^(?:model|dataset|service|loss|reward|param|fn) +(\w+)", text, re.M)
    assert {*declared} <= {symbol.name for symbol in symbols}
    params = lsp.FoldingRangeParams(text_document=document)
    folds = await editor.client.text_document_folding_range_async(params)
    assert len(folds) >= text.count("{\n")
    params = lsp.SemanticTokensParams(text_document=document)
    tokens = await editor.client.text_document_semantic_tokens_full_async(params)
    assert len(tokens.data) % 5 == 0
    assert len(tokens.data) // 5 > text.count("\n") // 2


async def names(editor, uri):
    """Definition, references and rename of each kind of name; hover says what it is."""
    text = editor.texts[uri]
    for kind in ("param", "service", "model", "dataset", "loss", "fn"):
        found = re.search(rf"^{kind} +(\w+)", text, re.M)
        if found is None:
            continue
        at = editor.at(uri, found[0], found.start(1) - found.start())
        hover = await editor.client.text_document_hover_async(lsp.HoverParams(**at))
        assert kind in hover.contents.value.split("\n")[1]
        if kind == "loss" and "import python" not in text:
            assert "gradient" in hover.contents.value
        context = lsp.ReferenceContext(include_declaration=True)
        places = await editor.client.text_document_references_async(
            lsp.ReferenceParams(context=context, **at)
        )
        inside = [place for place in places if place.uri == uri]
        for place in inside:
            identifier = lsp.TextDocumentIdentifier(uri=uri)
            params = lsp.DefinitionParams(text_document=identifier, position=place.range.start)
            (home,) = await editor.client.text_document_definition_async(params)
            assert home.range.start == at["position"]
        if "/std/" in uri:
            await refused(editor, at)
            continue
        before = [d.code for d in await editor.findings(uri)]
        params = lsp.RenameParams(new_name=f"{found[1]}_renamed", **at)
        changes = (await editor.client.text_document_rename_async(params)).changes
        assert len(changes[uri]) == len(inside)
        editor.change(uri, applied(text, changes[uri]))
        assert [d.code for d in await editor.findings(uri)] == before
        editor.change(uri, text)
    field = re.search(r"^loss \w+\(\s*(logprob)", text, re.M)
    if field is not None:
        await refused(editor, editor.at(uri, field[0], field.start(1) - field.start()))


async def refused(editor, at):
    with pytest.raises(JsonRpcException, match=r"by name|standard library"):
        await editor.client.text_document_rename_async(lsp.RenameParams(new_name="other", **at))


async def settings(editor, uri):
    """A setting: hover has its value and origin, completion offers its name and its values."""
    text = editor.texts[uri]
    found = re.search(r"^ +(dtype|device|source) += ", text, re.M) or re.search(
        r"[{,] (dtype|device|source) += ", text
    )
    if found is None:
        return
    start = found.start(1) - found.start()
    hover = await editor.client.text_document_hover_async(
        lsp.HoverParams(**editor.at(uri, found[0], start))
    )
    assert "as written" in hover.contents.value
    assert "Changes" in hover.contents.value
    at = editor.at(uri, found[0], start + 1)
    offset = found.start(1) + 1
    editor.change(uri, text[:offset] + text[text.index("\n", offset) :])
    offered = await editor.client.text_document_completion_async(lsp.CompletionParams(**at))
    assert found[1] in {item.label for item in offered.items}
    editor.change(uri, text)
    at = editor.at(uri, found[0], len(found[0]))
    offered = await editor.client.text_document_completion_async(lsp.CompletionParams(**at))
    expected = {"dtype": "bf16", "device": "cpu", "source": "hf"}[found[1]]
    assert expected in {item.label for item in offered.items}


async def signatures(editor, uri):
    """A call: its label, its parameters, and the active one, as the editor can show it."""
    text = editor.texts[uri]
    found = re.search(r"\w+\.(?:draw|sample|batches|pairs|step)\((?=\w)", text)
    found = found or re.search(r"\b(?:exp|token_mean|mean)\((?=\w)", text)
    if found is None:
        return
    at = editor.at(uri, found[0], len(found[0]))
    params = lsp.SignatureHelpParams(**at)
    shown = await editor.client.text_document_signature_help_async(params)
    (one,) = shown.signatures
    assert one.label.startswith(found[0])
    assert (shown.active_signature, one.documentation.kind) == (0, lsp.MarkupKind.Markdown)
    assert all(each.label in one.label for each in one.parameters)
    if one.parameters:
        assert shown.active_parameter == 0
    outside = lsp.SignatureHelpParams(**editor.at(uri, text[:1]))
    assert await editor.client.text_document_signature_help_async(outside) is None


async def formatting(editor, uri):
    """A text with other spaces comes back as it was."""
    text = editor.texts[uri]
    options = lsp.FormattingOptions(tab_size=2, insert_spaces=True)
    document = lsp.TextDocumentIdentifier(uri=uri)
    params = lsp.DocumentFormattingParams(text_document=document, options=options)
    assert await editor.client.text_document_formatting_async(params) == ()
    editor.change(uri, re.sub(r"^(\w+) (\w+)", r"\1    \2", text, flags=re.M))
    edits = await editor.client.text_document_formatting_async(params)
    assert applied(editor.texts[uri], edits) == text
    editor.change(uri, text)


async def repairs(editor, uri):
    """A fix of a mistake, all safe fixes, and "allow with a reason"."""
    text = editor.texts[uri]
    await offered(editor, uri, f"{text}\n// slip\n", "S001", text)
    editor.change(uri, f"{text}\n## not read anywhere\nparam idle : int = 1\n")
    (finding,) = [d for d in await editor.findings(uri) if "idle" in d.message] or [None]
    if finding is not None:
        actions = await asked(editor, uri, finding)
        (allow,) = [a for a in actions if a.title.startswith("Allow")]
        editor.change(uri, applied(editor.texts[uri], allow.edit.changes[uri]))
        assert not [d for d in await editor.findings(uri) if "idle" in d.message]
    editor.change(uri, text)


async def offered(editor, uri, damaged, code, text):
    editor.change(uri, damaged)
    found = await editor.findings(uri)
    assert [d.code for d in found] == [code]
    actions = await asked(editor, uri, found[0])
    (fix,) = [a for a in actions if a.title.startswith(code)]
    fixed = applied(damaged, fix.edit.changes[uri])
    (every,) = [a for a in actions if a.kind == lsp.CodeActionKind.SourceFixAll]
    editor.change(uri, fixed)
    assert code not in [d.code for d in await editor.findings(uri)]
    assert every.edit.changes[uri][0].new_text == fixed


async def asked(editor, uri, finding):
    context = lsp.CodeActionContext(diagnostics=[finding])
    document = lsp.TextDocumentIdentifier(uri=uri)
    params = lsp.CodeActionParams(text_document=document, range=finding.range, context=context)
    return await editor.client.text_document_code_action_async(params)


def test_an_unsaved_module_counts(tmp_path):
    async def work():
        module, main = tmp_path / "parts.forge", tmp_path / "main.forge"
        module.write_text("param size : int = 3\n")
        main.write_text('import "parts" as parts\nparam twice : int = 2 * parts.size\n')
        async with Editor(tmp_path) as editor:
            uri = editor.open(main)
            assert "F101" not in [d.code for d in await editor.findings(uri)]
            other = editor.open(module)
            await editor.findings(other)
            editor.change(other, "param length : int = 3\n")
            await editor.findings(uri, until=lambda found: "F101" in [d.code for d in found])
            at = editor.at(uri, "parts.size", 6)
            offered = await editor.client.text_document_completion_async(lsp.CompletionParams(**at))
            assert [item.label for item in offered.items] == ["length"]

    run(work())


def test_a_name_is_renamed_in_the_files_that_import_it(tmp_path):
    async def work():
        module, main = tmp_path / "parts.forge", tmp_path / "main.forge"
        module.write_text("param size : int = 3\n")
        main.write_text('import "parts" as parts\nparam twice : int = 2 * parts.size\n')
        async with Editor(tmp_path) as editor:
            uri = editor.open(main)
            at = editor.at(uri, "parts.size", 7)
            params = lsp.RenameParams(new_name="length", **at)
            changes = (await editor.client.text_document_rename_async(params)).changes
            assert {*changes} == {uri, module.as_uri()}

    run(work())


OFFSETS = lsp.ClientCapabilities(
    text_document=lsp.TextDocumentClientCapabilities(
        signature_help=lsp.SignatureHelpClientCapabilities(
            signature_information=lsp.ClientSignatureInformationOptions(
                parameter_information=lsp.ClientSignatureParameterInformationOptions(
                    label_offset_support=True
                )
            )
        )
    )
)


@pytest.mark.parametrize(
    ("capabilities", "labels"),
    [(OFFSETS, [(5, 13), (15, 23)]), (None, ["a: float", "b: float"])],
    ids=["offsets", "texts"],
)
def test_parameters_are_marked_as_the_editor_can(tmp_path, capabilities, labels):
    async def work():
        path = tmp_path / "a.forge"
        path.write_text("fn b(a: float, b: float) -> float = a\nparam x : float = b(1.0, \n")
        async with Editor(tmp_path, capabilities) as editor:
            uri = editor.open(path)
            options = editor.can.signature_help_provider
            assert {"(", ","} <= {*options.trigger_characters}
            at = editor.at(uri, "b(1.0, ", 7)
            params = lsp.SignatureHelpParams(**at)
            shown = await editor.client.text_document_signature_help_async(params)
            (one,) = shown.signatures
            assert [each.label for each in one.parameters] == labels
            assert shown.active_parameter == 1

    run(work())


CREATES = lsp.ClientCapabilities(
    workspace=lsp.WorkspaceClientCapabilities(
        workspace_edit=lsp.WorkspaceEditClientCapabilities(
            document_changes=True, resource_operations=[lsp.ResourceOperationKind.Create]
        )
    )
)


@pytest.mark.parametrize("capabilities", [CREATES, None])
def test_a_missing_python_file_is_made_where_the_editor_can(tmp_path, capabilities):
    async def work():
        path = tmp_path / "a.forge"
        path.write_text('import python "own.py" as own\nreward short = own.short\n')
        async with Editor(tmp_path, capabilities) as editor:
            uri = editor.open(path)
            (finding,) = [d for d in await editor.findings(uri) if d.code == "F115"]
            actions = await asked(editor, uri, finding)
            made = [a.edit.document_changes for a in actions if a.title.startswith("F115")]
            assert len(made) == (capabilities is not None)
            for created, written in made:
                assert (created.kind, created.uri) == ("create", (tmp_path / "own.py").as_uri())
                assert "def short(" in written.edits[0].new_text

    run(work())


@pytest.mark.parametrize(
    "text", ["# 😋 a\nparam x : int =\n", "# a\r\nparam x : int =\r\n", "param x"]
)
def test_places_are_right_in_any_text(tmp_path, text):
    async def work():
        path = tmp_path / "a.forge"
        path.write_bytes(text.encode())
        async with Editor(tmp_path) as editor:
            uri = editor.open(path, text)
            (found,) = await editor.findings(uri)
            line = text.count("\n", 0, text.index("param"))
            assert found.range.start.line == line
            assert found.range.end.character <= len("param x : int =") + 1

    run(work())


def test_the_server_says_what_is_missing(tmp_path, monkeypatch, capsys):
    from forgedsl.cli import lsp as command

    monkeypatch.setitem(sys.modules, "pygls", None)
    assert command.main([]) == 2
    assert command.INSTALL in capsys.readouterr().err


def test_a_refused_rename_is_no_failure_in_the_log():
    from pygls.exceptions import JsonRpcInternalError
    from pygls.protocol import json_rpc

    from forgedsl.ide.uses import RenameError
    from forgedsl.lsp.server import _refused, make_server

    make_server()
    for error, shown in ((_refused(RenameError("no")), False), (JsonRpcInternalError("x"), True)):
        said = (json_rpc.logger.name, logging.ERROR, "", 0, "failed", (), (None, error, None))
        assert bool(json_rpc.logger.filter(logging.LogRecord(*said))) == shown


@pytest.mark.parametrize("text", ["", "\n", "forge 1", "forge 1\n", "# \N{GRINNING FACE}"])
def test_the_end_of_a_text_has_a_position(text):
    from pygls.workspace import TextDocument

    from forgedsl.lsp.convert import place

    end = place(TextDocument("file:///x.forge", source=text), len(text))
    *before, last = text.split("\n")
    assert (end.line, end.character) == (len(before), len(last.encode("utf-16-le")) // 2)
