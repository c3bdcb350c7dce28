"""Hover texts, as Markdown.

a setting      value with origin, type, and what a change of it affects
a loss         signature, formula, gradient; a local of it: axes, dtype, interval
a declaration  its documentation, and the settings that are set
other words    their meaning, as in `forgec explain WORD`
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forgedsl.diagnostics import Reporter
from forgedsl.errors import SourceError
from forgedsl.explain import losses, provenance
from forgedsl.explain.provenance import Layer
from forgedsl.hir.table import part_span
from forgedsl.ide import calls, names
from forgedsl.ide.uses import Definition, Use, module_path, target_at, uses_of
from forgedsl.ide.workspace import Document
from forgedsl.ir.program import Function
from forgedsl.lint.engine import AS_WRITTEN
from forgedsl.lint.view import is_closed
from forgedsl.losses.render_math import facts_text
from forgedsl.losses.source_spans import Located, locate
from forgedsl.records import dataclass
from forgedsl.schema.kinds import KINDS, SERVICES, SYNC
from forgedsl.settings import Kind, Setting
from forgedsl.source import Span
from forgedsl.syntax import ast, trivia

_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hover:
    """Markdown about the text of `span`."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A setting at its place in the text. `owner` is the declaration, `profile` the enclosing
    profile."""

    owner: str
    path: str
    kind: Kind
    span: Span
    profile: str = ""

    @property
    def setting(self) -> Setting | None:
        return self.kind.setting(self.path)

    @property
    def address(self) -> str:
        """Path of the setting for overrides."""
        return self.owner if self.kind.single else f"{self.owner}.{self.path}"


def hover(document: Document, offset: int) -> Hover | None:
    """Return the hover text at an offset."""
    if _in_comment_or_text(document, offset):
        return _module_text(document, offset)
    written = setting_at(document, offset)
    if written is not None and written.setting is not None:
        return Hover(text=_of_setting(document, written, written.setting), span=written.span)
    use = uses_of(document).at(offset)
    text = None if use is None else _of_use(document, use)
    if use is not None and text:
        return Hover(text=text, span=use.span)
    return _of_word(document, offset)


def _in_comment_or_text(document: Document, offset: int) -> bool:
    for match in trivia.TOKENS.finditer(document.text):
        if match.start() > offset:
            return False
        if match.start() < offset < match.end():
            return True
    return False


def _module_text(document: Document, offset: int) -> Hover | None:
    """Describe the file that an import names."""
    for alias, decl in uses_of(document).imports.items():
        if decl.target_span.start <= offset <= decl.target_span.end:
            return Hover(text=_of_module(document, alias), span=decl.target_span)
    return None


def _code(text: str) -> str:
    return f"```forge\n{text.rstrip()}\n```"


def _plain(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


# ---- settings


def settings_of(document: Document) -> Iterator[Written]:
    """Return every setting in a text."""
    found: list[Written] = document.kept("settings", lambda: [*_settings_of(document)])
    yield from found


def _settings_of(document: Document) -> Iterator[Written]:
    for decl in document.tree.decls:
        match decl:
            case ast.BlockDecl(kind="profile"):
                for item in decl.block.items:
                    yield from _of_item(document, item, decl.name or "")
            case ast.BlockDecl(kind="flow"):
                for item in decl.block.items:
                    if isinstance(item, ast.Sync) and item.block is not None:
                        yield from _in_block("sync", SYNC, item.block, (), "")
            case ast.BlockDecl():
                owner = decl.name if decl.name and decl.kind != "schedule" else decl.kind
                kind = names.kind_of(document, owner)
                if kind is not None:
                    yield from _in_block(owner, kind, decl.block, (), "")
            case ast.FnDecl() | ast.BindDecl() if decl.settings is not None:
                kind = KINDS.get(decl.kind)
                if kind is not None:
                    yield from _in_block(decl.name, kind, decl.settings, (), "")
            case ast.Assign():
                yield from _of_item(document, decl, "")


def _of_item(document: Document, item: ast.Item, profile: str) -> Iterator[Written]:
    """Handle an item that begins with the name of a declaration."""
    if isinstance(item, ast.Nested):
        kind = names.kind_of(document, item.name)
        if kind is not None:
            yield from _in_block(item.name, kind, item.block, (), profile)
    elif isinstance(item, ast.Assign):
        owner, *rest = item.path.parts
        kind = names.kind_of(document, owner)
        if kind is not None and (rest or kind.single):
            path = ".".join(rest) or "value"
            span = part_span(item.path, 1) if rest else item.path.span
            yield Written(owner=owner, path=path, kind=kind, span=span, profile=profile)


def _in_block(
    owner: str, kind: Kind, block: ast.Block, prefix: tuple[str, ...], profile: str
) -> Iterator[Written]:
    for item in block.items:
        if isinstance(item, ast.Assign):
            path = ".".join((*prefix, *item.path.parts))
            span = item.path.span
            yield Written(owner=owner, path=path, kind=kind, span=span, profile=profile)
        elif isinstance(item, ast.Nested):
            yield from _in_block(owner, kind, item.block, (*prefix, item.name), profile)


def setting_at(document: Document, offset: int) -> Written | None:
    """Return the setting whose name is at an offset."""
    for written in settings_of(document):
        if written.span.start <= offset <= written.span.end:
            return written
    return None


def _states(document: Document) -> Iterator[tuple[str, Layer]]:
    """Return the program as written and under each profile, where it can be resolved."""
    for profile in (AS_WRITTEN, *document.profiles):
        state = document.state(profile)
        if state.program is not None:
            yield profile, Layer(program=state.program, sources=state.sources)


def _values(document: Document, name: str) -> str:
    """Return the value of a path as written, and its other values under profiles."""
    lines: list[tuple[str, str, str]] = []
    first = ""
    for profile, layer in _states(document):
        row = provenance.in_force(name, layer)
        if row is None or (profile != AS_WRITTEN and row.value == first):
            continue
        first = row.value if profile == AS_WRITTEN else first
        where = row.place.rpartition("/")[2]
        who = "as written" if profile == AS_WRITTEN else f"profile {profile}"
        tail = where or (row.layer if profile == AS_WRITTEN else "")
        lines.append((row.value, who, tail))
    if not lines:
        return ""
    shown = [value if len(value) <= 60 else f"{value[:57]}..." for value, _, _ in lines]
    width = max(map(len, shown))
    return "\n".join(
        f"{value:{width}}  {who}  {tail}".rstrip()
        for value, (_, who, tail) in zip(shown, lines, strict=True)
    )


def _of_setting(document: Document, written: Written, setting: Setting) -> str:
    values = _values(document, written.address)
    parts = [_code(f"{written.address} : {setting.type.text}")]
    parts += [_plain(values)] if values else []
    planned = _planned(document, written.address)
    parts += [planned] if planned else []
    return "\n\n".join([*parts, names.setting_doc(setting)])


def _planned(document: Document, address: str) -> str:
    planned = document.planned
    chosen = None if planned is None else planned[2].chosen.get(address)
    return f"The plan of the file as written chose `{chosen}`." if chosen else ""


# ---- names


def _of_use(document: Document, use: Use) -> str:
    if use.definition is not None and use.definition.kind == "import":
        return _of_module(document, use.definition.name)
    if use.definition is None and module_path(document, use.alias) is not None:
        text = _of_member(document, use)
        if text:
            return text
    target = target_at(document, use.span.start)
    if target is None:
        return ""
    home, definition = target
    return _of_definition(home, definition, use if home is document else None)


def _of_definition(document: Document, definition: Definition, use: Use | None) -> str:
    node = definition.node
    parts = [_code(names.signature(node) or f"{definition.kind} {definition.name}")]
    if getattr(node, "doc", ""):
        parts.append(node.doc)
    match definition.kind:
        case "param":
            values = _values(document, definition.name)
            return "\n\n".join([*parts, *([_plain(values)] if values else [])])
        case "loss" | "advantage" | "filter":
            program = document.program
            function = None if program is None else program.functions.get(definition.name)
            return "\n\n".join([*parts, *_formula(function)])
        case "field" | "local":
            span = definition.span if use is None else use.span
            facts = _facts(document, definition, span)
            says = _field(definition)
            what = "a parameter" if definition.kind == "field" else "a local name"
            head = f"{definition.name} : {facts}" if facts else definition.name
            parts = parts if definition.kind == "field" and not facts else [_code(head)]
            return "\n\n".join([*parts, says or what])
        case "python":
            return _of_python(definition)
        case "stream":
            return "\n\n".join([*_stream(document, definition), "A stream of the flow."])
    kind = names.kind_of(document, definition.name)
    if kind is not None:
        settings = _written_settings(document, definition.name)
        parts += [f"{kind.doc[:1].upper()}{kind.doc[1:]}."]
        parts += [_plain(settings)] if settings else []
    return "\n\n".join(parts)


def _of_python(definition: Definition) -> str:
    """Return the signature and the text of a function or class of a Python file."""
    import ast as python

    node = definition.node
    if not isinstance(node, python.FunctionDef | python.AsyncFunctionDef | python.ClassDef):
        return _code(f"python {definition.name}")
    if isinstance(node, python.ClassDef):
        head = f"class {node.name}({', '.join(map(python.unparse, node.bases))})"
        made = [each for each in node.body if getattr(each, "name", "") == "__init__"]
        if made and isinstance(made[0], python.FunctionDef):
            head += f"\n    def __init__({python.unparse(made[0].args)})"
    else:
        result = "" if node.returns is None else f" -> {python.unparse(node.returns)}"
        start = "async def" if isinstance(node, python.AsyncFunctionDef) else "def"
        head = f"{start} {node.name}({python.unparse(node.args)}){result}"
    text = python.get_docstring(node) or ""
    return "\n\n".join([f"```python\n{head}\n```", *([text] if text else [])])


def _written_settings(document: Document, name: str) -> str:
    """Return the settings of a declaration that are not defaults."""
    layer = next((layer for profile, layer in _states(document) if profile == AS_WRITTEN), None)
    page = None if layer is None else provenance.explain(name, [layer])
    if page is None:
        return ""
    lines = [line[2:] for line in page.split("\n")[2:] if line and not line.endswith("  default")]
    return "\n".join(line.replace(f"{document.name}:", f"{document.path.name}:") for line in lines)


def _field(definition: Definition) -> str:
    """Describe the field that the trainer or the rollout provides under this name."""
    from forgedsl.reference.expressions import FIELDS

    if definition.kind == "field" and definition.of == "loss":
        return FIELDS.get(definition.name, "")
    return ""


def _formula(function: Function | None) -> list[str]:
    """Return formula, intervals and gradient of a loss, advantage or filter."""
    if function is None:
        return []
    try:
        page = losses.page(function)
    except SourceError:
        return []
    _, _, rest = page.partition("\n\n")
    return [_plain(rest)] if rest else []


def located(document: Document) -> dict[str, Located]:
    """Return the functions of the file without mistakes, as typed trees."""
    found: dict[str, Located] = document.kept("located", lambda: _located(document))
    return found


def _located(document: Document) -> dict[str, Located]:
    program = document.program
    found = {}
    for name, function in ({} if program is None else program.functions).items():
        if function.module == "" and function.kind != "fn" and is_closed(function):
            made = None
            if function.kind in ("loss", "advantage", "filter"):
                made = locate(function, Reporter())
            if made is not None and not made.tree.is_python:
                found[name] = made
    return found


def value_types(document: Document) -> Iterator[tuple[Span, Located, int]]:
    """Yield every typed name of a function: its span, the tree, and its value in the tree."""
    for tree in located(document).values():
        for span, value in tree.names.items():
            if span.file == document.name:
                yield span, tree, value


def _facts(document: Document, definition: Definition, span: Span) -> str:
    """Return axes, dtype and interval of a local or parameter."""
    by_span = {place: (tree, value) for place, tree, value in value_types(document)}
    places = [span, *uses_of(document).of(definition)]
    for place in places:
        if place in by_span:
            tree, value = by_span[place]
            return facts_text(tree.tree, value)
    for tree in located(document).values():
        for value, made in enumerate(tree.tree.values):
            if made.name == definition.name and _is_in(definition, tree):
                return facts_text(tree.tree, value)
    return ""


def _is_in(definition: Definition, tree: Located) -> bool:
    return any(f.span.start <= definition.span.start <= f.span.end for f in tree.functions)


def _stream(document: Document, definition: Definition) -> list[str]:
    item = definition.node
    if not isinstance(item, ast.Assign):
        return []
    span = item.span
    parts = [_code(document.text[span.start : span.end])]
    if isinstance(item.value, ast.Call):
        parts += _of_call(document, item.value.function.parts)
    return parts


def _of_call(document: Document, parts: tuple[str, ...]) -> list[str]:
    for form in names.flow_forms(document, parts[0]):
        if form.method == (parts[1] if len(parts) > 1 else ""):
            shown = names.method(form)
            return [f"`{shown.detail}`: {form.doc}."] if form.doc else []
    return []


def _of_member(document: Document, use: Use) -> str:
    """Describe a function of the standard library with its formula: `rl.dapo`."""
    program = document.program
    found = None if program is None else program.scope.lookup((use.alias, use.member))
    if isinstance(found, Function):
        signature = next(
            (n.detail for n in names.members(document, use.alias) if n.name == use.member),
            use.member,
        )
        return "\n\n".join([_code(signature), found.doc, *_formula(found)])
    for name in names.members(document, use.alias):
        if name.name == use.member and name.kind == "reward":
            return "\n\n".join([_code(name.detail), name.doc])
    return ""


def _of_module(document: Document, alias: str) -> str:
    decl = uses_of(document).imports[alias]
    kinds: dict[str, list[str]] = {}
    for name in names.members(document, alias):
        kinds.setdefault(name.kind, []).append(name.name)
    lines = [
        f"*{kind}*: {', '.join(f'`{each}`' for each in found)}" for kind, found in kinds.items()
    ]
    return "\n\n".join([_code(names.signature(decl)), *lines])


# ---- words


def _of_word(document: Document, offset: int) -> Hover | None:
    """Describe a word that means the same in all files, or a method of the flow."""
    text = document.text
    line = text.rfind("\n", 0, offset) + 1
    for match in _WORD.finditer(text, line):
        if match.start() > offset:
            return None
        if match.start() <= offset <= match.end():
            span = Span(document.name, *match.span())
            before = re.search(r"([A-Za-z_]\w*)\.\Z", text[line : match.start()])
            if before is not None:
                called = _of_call(document, (before[1], match[0]))
                if called:
                    return Hover(text="\n\n".join([f"**{match[0]}**", *called]), span=span)
            text_of = _of_parameter(document, match.start(), match[0]) or _page(match[0])
            return None if text_of is None else Hover(text=text_of, span=span)
    return None


def _of_parameter(document: Document, offset: int, name: str) -> str | None:
    """Describe a parameter of the call around an offset, if `name = ` is written there."""
    if not re.match(rf"{name}\s*=(?!=)", document.text[offset:]):
        return None
    call = calls.signature(document, offset)
    found = [each for each in call.parameters if each.name == name] if call is not None else []
    if call is None or not found:
        return None
    told = [f"```forge\n{found[0].text}\n```", f"of `{call.label}`", found[0].doc, call.doc]
    return "\n\n".join(filter(None, told))


def _page(word: str) -> str | None:
    from forgedsl.reference.glossary import word as page

    found = page(word)
    if found is None:
        return None
    # a whole table of settings is too long for a hover text
    kept = [block for block in found.split("\n\n") if "| setting |" not in block]
    return "\n\n".join(kept).replace("# ", "### ", 1) if kept else None


def words() -> frozenset[str]:
    """Return the words that have a page, without settings."""
    from forgedsl.reference.glossary import names as known

    return frozenset((*known(), *SERVICES))
