"""Features of editors as functions: what is offered, said and changed, at marked places.

The sweeps go over pipelines that ship; their shares are floors.
"""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest

from forgedsl.ide import actions, calls, colours, complete, hints, hover, outline, uses
from forgedsl.ide.context import context
from forgedsl.ide.workspace import Workspace
from forgedsl.lint.engine import lint_source
from forgedsl.schema.kinds import KINDS
from forgedsl.source import SourceFile
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk

PIPELINES = sorted(Path(__file__).parents[2].glob("pipelines/**/*.forge"))
GRPO = next(path for path in PIPELINES if path.name == "grpo_math.forge")
CURSOR = "|"


def at(text, path=GRPO):
    """The document of a text with a cursor mark, and the offset of the mark."""
    offset = text.index(CURSOR)
    workspace = Workspace()
    workspace.open(path, text.replace(CURSOR, "", 1))
    return workspace.document(path), offset


def grpo(old, new):
    """grpo_math.forge with a line from `old` on replaced by `new`, which has the cursor."""
    text = GRPO.read_text()
    start = text.index(old)
    return at(text[:start] + new + text[text.index("\n", start) :])


def offered(old, new):
    return [item.label for item in complete.complete(*grpo(old, new))]


def said(old, inside=1):
    text = GRPO.read_text()
    start = text.index(old) + inside
    found = hover.hover(*at(text[:start] + CURSOR + text[start:]))
    return "" if found is None else found.text


# ---- completion


@pytest.mark.parametrize(
    ("new", "all_"),
    [
        ("math_score(rollout, prompt.|", ["target", "text"]),
        ("math_score(rollout.|", ["num_tokens", "truncated", "response", "mask"]),
        ("math_score(ref_lp.|", []),
        ("rollout.|", ["keep", "num_tokens", "truncated", "response", "mask"]),
    ],
)
def test_a_stream_offers_the_attributes_that_it_has(new, all_):
    assert sorted(offered("score   = math_score", f"score = {new}")) == sorted(all_)


@pytest.mark.parametrize(
    ("old", "new", "some"),
    [
        ("starve_timeout = 10min", "starve_timeout = 10|", ["10min", "10s", "10h"]),
        ("gpu_memory = 141GiB", "gpu_memory = 141|", ["141GiB"]),
        ("on_error     = drop", "on_error = |", ["drop"]),
        ("prompt  = chat(system", "prompt = row.|", ["question", "answer"]),
        ("target  = after(", "target = af|", ["after", "row"]),
        ("kl    = ratio", "kl = rl.|", ["k1", "k3", "math_equal"]),
        ("kl    = ratio", "kl = |", ["ratio", "pg", "logprob", "eps", "token_mean", "rl"]),
        ("rollout = generator", "rollout = generator.|", ["sample", "play"]),
        ("rollout = generator", "rollout = generator.sample(|", ["prompt", "n"]),
        ("trainer.step(batch", "trainer.step(batch, loss = |", ["grpo", "rl.dapo"]),
        ("trainer.step(batch", "|", ["trainer", "generator", "sync"]),
        ("sync trainer", "sync trainer -> |", ["generator"]),
        ("colocate = [", "colocate = [|", ["trainer", "reference"]),
        ("service trainer : titan", "service trainer : |", ["titan", "vllm"]),
        ("service trainer : titan", "service trainer : titan(|", ["policy"]),
        ("param eps", "param eps : |", ["float", "duration"]),
        ("dataset = gsm8k, split", "dataset = |", ["gsm8k"]),
        ("score   = correct", "score = |", ["correct", "math_score"]),
        ('import "std/rl"', 'import "|', ["std/rl"]),
        ("source  = hf(", 'source = jsonl("data/|', ["data/arithmetic.jsonl"]),
        ("source  = hf(", "source = hf(|", ["id", "split"]),
        ("model policy", 'environment e = gymnasium("Fro|', ["FrozenLake-v1", "Taxi-v4"]),
        ("profile cpu when", "profile cpu when cluster.|", ["gpus", "hosts"]),
        ("behavior : [B", "behavior : |", ["[B, T] f32"]),
        ("dtype = bf16", "dtype = |", ["bf16", "f32"]),
        ("held_out.source", "held_out.|", ["source", "sample"]),
        ("clamp(1.0 - r.num", "r.|", ["num_tokens", "truncated"]),
        ("optimizer { kind", "optimizer { |", ["lr", "kind", "weight_decay"]),
        ("schedule async", "schedule |", ["sync", "async"]),
        ("colocate = [trainer", "# forge: allow[|", ["L405", "N903"]),
        ("model policy", "|", ["model", "service", "param", "import"]),
        ("model policy", "environment e = program(|", ["command", "parts", "reward"]),
        ("model policy", "environment e = program([], reward = |", ["last_line", "exit"]),
    ],
)
def test_what_fits_is_offered(old, new, some):
    found = offered(old, new)
    assert {*some} <= {*found}
    assert len(found) == len({*found})


@pytest.mark.parametrize("call", ["replay(rollout, ", "good.put(rollout, ", "good.put(adv = x, "])
def test_an_advantage_in_a_replay_is_a_function_or_a_stream(call):
    path = next(path for path in PIPELINES if path.name == "replay_math.forge")
    text = path.read_text()
    own = "advantage own(r: [G] f32) -> [G] f32 = r - mean(r, G)\n"
    text, end = f"{text[: text.index('flow ')]}{own}{text[text.index('flow ') :]}", "good.put("
    start = text.index(end)
    for argument, kinds in (("adv", {"advantage", "stream"}), ("keep", {"filter", "stream"})):
        new = f"{call}{argument} = {CURSOR}"
        items = complete.complete(*at(text[:start] + new + text[text.index("\n", start) :], path))
        assert {item.name.kind for item in items} == kinds
        some = {"own", "rl.group_norm", "rl.rloo"} if argument == "adv" else {"rl.mixed"}
        assert {*some, "rollout"} <= {item.label for item in items}


def test_an_advantage_is_offered_with_its_module():
    found = offered("score   = math_score", "adv = |")
    assert {"rl.group_norm", "replay", "generator"} <= {*found}


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_tasks_of_reasoning_gym_are_offered():
    found = offered("source  = hf(", 'source = reasoning_gym("leg|')
    assert {"leg_counting", "gcd"} <= {*found}


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed")
def test_fields_of_the_named_task_are_offered():
    found = offered("source  = hf(", 'source = reasoning_gym("chain_sum", |')
    assert {"size", "seed", "max_terms"} <= {*found}
    assert "max_terms" not in offered("source  = hf(", 'source = reasoning_gym("gcd", |')


def test_arguments_of_the_named_environment_are_offered():
    found = offered("model policy", 'environment e = gymnasium("FrozenLake-v1", |')
    assert {"is_slippery", "map_name"} <= {*found}
    assert "is_slippery" not in offered("model policy", 'environment e = gymnasium("No-v0", |')


def test_what_does_not_fit_is_not_offered():
    assert "policy" not in offered("dataset = gsm8k, split", "dataset = |")
    assert "lr" not in offered("optimizer { kind", "batch { |")
    assert offered("source  = hf(", 'source = hf("|') == []


def assigned(items):
    for item in items:
        if isinstance(item, ast.Assign):
            yield item.path
        elif isinstance(item, ast.Nested):
            yield from assigned(item.block.items)


def missed(path, step):
    """Names of settings that are not offered after one letter, the rest of the line gone."""
    workspace = Workspace()
    document = workspace.document(path)
    text = document.text
    params = {d.name for d in document.tree.decls if isinstance(d, ast.Param)}
    written = [
        (name, part)
        for decl in document.tree.decls
        if isinstance(decl, ast.BlockDecl) and decl.kind in (*KINDS, "service", "profile")
        for name in assigned(decl.block.items)
        for part in name.parts
        if part not in params
    ]
    for name, part in written[::step]:
        cursor = text.index(part, name.span.start) + 1
        workspace.open(path, text[:cursor] + text[text.index("\n", cursor) :])
        found = complete.complete(workspace.document(path), cursor)
        if part not in {item.label for item in found}:
            yield f"{path.name}: {name.text}"


def test_settings_are_offered_after_one_letter():
    assert [name for path in PIPELINES for name in missed(path, 9)] == []


@pytest.mark.full
def test_every_setting_is_offered_after_one_letter():
    assert [name for path in PIPELINES for name in missed(path, 1)] == []


def test_the_context_reads_only_what_is_left_of_the_cursor():
    text = "service s : titan(m) { optimizer { lr = "
    found = context(text + '")]} {{ """', len(text))
    assert found.blocks == (("service", "s", ":", "titan", "()"), ("optimizer",))
    assert (found.words, found.prefix, found.inside) == (("lr", "="), "", "code")
    assert context("x = rl.k", 8).prefix == "k"
    assert context('a = hf("b', 9).inside == "string"
    assert context("a = 1 # b", 9).inside == "comment"


# ---- hover


@pytest.mark.parametrize(
    ("old", "some"),
    [
        ("lr = 1e-6", ["1e-06", "as written", "profile cpu", "Changes what is computed"]),
        ("grpo(\n", ["gradient", "d loss / d logprob", "minimize"]),
        ("ratio = exp", ["diff [B, T] f32", "in ["]),
        ("behavior : [B", ["[B, T] f32", "sampled"]),
        ("trainer : titan", ["torchtitan", "optimizer.lr"]),
        ("eps        :", ["param eps : float = 0.2", "as written"]),
        ("std/rl", ["`dapo`", "`math_equal`"]),
        ("token_mean(", ["valid tokens"]),
        ("sample(prompt", ["completions of each prompt"]),
        ("overlap", ["continue sampling", "true or false"]),
        ("procs     = 4", ["where it runs"]),
        ("console", ["what is logged"]),
        ("titan(policy)", ["torchtitan"]),
        ("colocate = [trainer", ["same GPUs"]),
    ],
)
def test_hover_says_what_stands_there(old, some):
    found = said(old)
    assert all(text in found for text in some), found


def test_hover_of_a_member_of_the_library():
    assert "fn k3(" in said("rl.k3", 4)
    assert "mathematically" in said("rl.math_equal", 4)


def test_hover_says_nothing_in_comments():
    assert said("language edition", 3) == ""


# ---- names


def renames(path, step):
    """Renames that change what lint finds."""
    workspace = Workspace()
    document = workspace.document(path)
    before = [d.code for d in document.findings]
    for definition in [*uses.uses_of(document).definitions()][::step]:
        try:
            places = uses.rename(document, definition.span.start, f"{definition.name}_zz")
        except uses.RenameError:
            continue
        text = document.text
        spans = {place.span for place in places if place.path == path}
        for span in sorted(spans, key=lambda span: -span.start):
            text = f"{text[: span.start]}{definition.name}_zz{text[span.end :]}"
        found = lint_source(SourceFile(str(path), text), path.parent, on_disk=True).diagnostics
        if [d.code for d in found] != before:
            yield f"{path.name}: {definition.kind} {definition.name}"


def test_a_rename_changes_no_finding():
    assert [name for path in PIPELINES[:3] for name in renames(path, 397)] == []


@pytest.mark.full
def test_many_renames_change_no_finding():
    assert [name for path in PIPELINES for name in renames(path, 11)] == []


@pytest.mark.deep
def test_no_rename_changes_a_finding():
    assert [name for path in PIPELINES for name in renames(path, 1)] == []


@pytest.mark.parametrize(
    ("old", "inside", "why"),
    [
        ("behavior :", 1, "by name"),
        ("rl.k3", 4, "standard library"),
        ("language edition", 1, "nothing here"),
        ("r: [G]", 0, "by name"),
    ],
)
def test_a_rename_that_would_break_something_is_refused(old, inside, why):
    text = GRPO.read_text()
    start = text.index(old) + inside
    document, offset = at(text[:start] + CURSOR + text[start:])
    with pytest.raises(uses.RenameError, match=why):
        uses.rename(document, offset, "other")


@pytest.mark.parametrize(
    ("new", "why"), [("eps", "already"), ("if", "word"), ("a b", "not a valid")]
)
def test_a_name_that_cannot_be_taken_is_refused(new, why):
    document, offset = at(GRPO.read_text().replace("beta       :", "|beta       :"))
    with pytest.raises(uses.RenameError, match=why):
        uses.rename(document, offset, new)


def test_definitions_are_found_in_other_files():
    document, offset = at(GRPO.read_text().replace("rl.k3(", "rl.k|3("))
    place = uses.definition_at(document, offset)
    assert place.path.name == "rl.forge"
    text = place.path.read_text()
    assert text[place.span.start :].startswith("k3(")
    desk = GRPO.with_name("desk.forge")
    document, offset = at(desk.read_text().replace("desk.Desk", "desk.De|sk"), desk)
    place = uses.definition_at(document, offset)
    assert place.path.name == "desk.py"
    assert place.path.read_text()[place.span.start :].startswith("Desk")


# ---- the rest


def test_hints_and_lens_show_what_the_plan_found():
    workspace = Workspace()
    document = workspace.document(GRPO)
    shown = [document.text[: h.offset].rpartition(" ")[2] + h.text for h in hints.hints(document)]
    assert any(text.startswith("ratio") and "diff [B, T] f32" in text for text in shown)
    numbers, title = hints.lenses(document)
    assert "policy age <= 1" in title.text
    assert "step at most" in numbers.text
    assert "GiB" in numbers.text
    text = GRPO.read_text().replace("procs     = 4 ", "procs     = auto ", 1)
    text = text.replace("dp_shard = 4", "dp_shard = auto")
    workspace.open(GRPO, text)
    found = hints.hints(workspace.document(GRPO))
    assert any(h.text.startswith(" = ") and "plan" in h.tip for h in found)


def test_a_text_with_mistakes_has_no_hints():
    document, _ = grpo("eps        : float", "eps : |")
    assert hints.hints(document) == []
    assert hints.lenses(document) == []


def test_allow_stands_above_the_line_with_its_indent():
    workspace = Workspace()
    text = GRPO.read_text().replace("temperature = 1.0, top_p", "temperature = 0.7, top_p")
    workspace.open(GRPO, text)
    document = workspace.document(GRPO)
    found = actions.actions(document, 0, len(text))
    assert [(a.kind, a.safe) for a in found] == [("fix", False), ("allow", True)]
    (edit,) = found[1].edits
    assert edit.text.startswith("  # forge: allow[L411] ")
    workspace.open(GRPO, text[: edit.span.start] + edit.text + text[edit.span.end :])
    assert [f.code for f in workspace.document(GRPO).findings] == ["N902"]  # no reason yet


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("param a : int = 1;\n", "param a : int = 1\n"),
        ("param a : int = 1; # one\n", "param a : int = 1 # one\n"),
        ("loss a() {\n  x = 1; y = 2\n}\n", "loss a() {\n  x = 1\n  y = 2\n}\n"),
        ("run { seed = 1; name = 2; }\n", "run { seed = 1, name = 2 }\n"),
    ],
)
def test_a_semicolon_is_removed_or_becomes_what_separates(text, fixed):
    workspace = Workspace()
    workspace.open(GRPO, text)
    assert actions.fix_all(workspace.document(GRPO)) == fixed


def test_a_missing_python_file_is_made_with_the_rewards_that_are_used(tmp_path):
    text = MIXED.replace("mine.digits", "mine.digits(base = 10)").replace("mine.py", "own/mine.py")
    path = tmp_path / "a.forge"
    workspace = Workspace()
    workspace.open(path, text)
    document = workspace.document(path)
    (made,) = [a for a in actions.actions(document, 0, len(text)) if a.creates is not None]
    assert made.title == "F115: create own/mine.py"
    python, lines = made.creates
    assert "def digits(prompt: str, response: str, target: str, base) -> float:\n" in lines
    python.parent.mkdir()
    python.write_text(lines)
    workspace.forget()
    assert {d.code for d in workspace.document(path).findings} <= {"N901", "F107"}


MIXED = """\
forge 1
import "std/rl" as rl
import python "mine.py" as mine
param size : str = "0.6B"
param group : int = 8
reward digits = mine.digits
reward right = rl.math_equal
"""
DIGITS = '''\
def digits(response: str, target: str) -> float:
    """Pay for digits."""
    return float(response == target)
'''


def test_python_functions_are_described_and_rewards_of_the_library_are_found(tmp_path):
    (tmp_path / "mine.py").write_text(DIGITS)
    path = tmp_path / "mixed.forge"
    document, offset = at(MIXED.replace("mine.digits", "mine.di|gits"), path)
    text = hover.hover(document, offset).text
    assert "def digits(response: str, target: str) -> float" in text
    assert "Pay for digits." in text
    document, offset = at(MIXED.replace("math_equal", "math_|equal"), path)
    assert uses.definition_at(document, offset).path.name == "math_equal.py"


@pytest.mark.parametrize(
    ("line", "some", "none"),
    [
        ("reward more = |", {"rl.math_equal"}, set()),
        ("reward more = rl.|", {"math_equal"}, {"dapo", "group_norm"}),
        ("checkpoint { every = | }", {"group"}, {"size"}),
        ("loss own(adv: [B] |", {"f32", "bool"}, {"if", "exp"}),
        ("loss own(logprob: diff [B, T] |", {"f32", "i64"}, {"float"}),
        ("advantage own(r: [G] f32) -> [G] |", {"f32"}, {"r"}),
        ("loss own(adv: [|", {"B", "T", "G"}, {"group"}),
    ],
)
def test_what_is_offered_has_the_right_type(line, some, none):
    labels = {item.label for item in complete.complete(*at(MIXED + line + "\n"))}
    assert some <= labels
    assert not none & labels


def test_colours_do_not_overlap_and_say_what_names_are():
    workspace = Workspace()
    for path in PIPELINES:
        document = workspace.document(path)
        tokens = colours.tokens(document)
        assert all(a.span.end <= b.span.start for a, b in pairwise(tokens))
    document = workspace.document(GRPO)
    kinds = {document.text[t.span.start : t.span.end]: t.type for t in colours.tokens(document)}
    assert kinds["eps"] == "variable"
    assert kinds["logprob"] == "parameter"
    assert kinds["trainer"] == "class"
    assert kinds["rl"] == "namespace"
    assert kinds["lr"] == "property"
    assert kinds["sample"] in ("method", "property")
    assert kinds["token_mean"] == "function"


def test_the_outline_has_every_declaration_and_block():
    document = Workspace().document(GRPO)
    names = {symbol.name for symbol in outline.symbols(document)}
    declared = {getattr(d, "name", None) for d in document.tree.decls} - {None}
    assert declared <= names
    blocks = [n for n in walk(document.tree.decls) if isinstance(n, ast.Block)]
    several = [b for b in blocks if "\n" in document.text[b.span.start : b.span.end]]
    assert len(outline.folds(document)) >= len(several)


def test_features_work_on_half_written_text():
    """Nothing raises, wherever the text breaks off."""
    text = GRPO.read_text()
    for end in range(0, len(text), 797):
        document, offset = at(text[:end] + CURSOR)
        complete.complete(document, offset)
        calls.signature(document, offset)
        actions.actions(document, 0, offset)
        hover.hover(document, max(offset - 1, 0))
        uses.references(document, max(offset - 1, 0))
        outline.symbols(document)
        outline.folds(document)
        colours.tokens(document)
        hints.hints(document)
        assert document.findings is not None


def test_hover_of_an_argument_says_which_call_takes_it():
    found = said("n = group)", 0)
    assert "n" in found
    assert "generator.sample(" in found
    assert "completions of each prompt" in found
