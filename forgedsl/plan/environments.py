"""Checks environments against the models that play in them: end of a trajectory, lengths, reward
parts.

D620 endless-environment, D621 turns-over-context, D622 no-tool-format, F101 and F113 for unknown
names and missing settings. A trajectory contains its prompt, the completions of all turns and the
observations; all of it must fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from forgedsl.diagnostics import Diagnostic, Label, Severity, error
from forgedsl.ir.graph import Graph, Node
from forgedsl.ir.program import (
    Constructor,
    Decl,
    EnvironmentDecl,
    Function,
    Program,
    Ref,
    model_of,
    rewards_of,
)
from forgedsl.mistakes.suggest import did_you_mean, nearest
from forgedsl.plan.model_dims import read_model
from forgedsl.sizes.meshes import number
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import walk
from forgedsl.types.flow import Role
from forgedsl.vllm_parsers import FORM

LISTED = 'the class lists its reward parts: `parts = ("found",)`'


def environment_of(program: Program, settings: Mapping[str, object]) -> EnvironmentDecl | None:
    """Return the environment that a node or an eval plays in."""
    found = settings.get("env")
    name = found.name if isinstance(found, Ref) else found
    return program.environments[str(name)] if name is not None else None


def played(program: Program, graph: Graph) -> tuple[str, ...]:
    """Return the environments that the flow and the evals play in."""
    settings = [node.settings for node in graph.having(Role.SAMPLES)]
    settings += [{"env": decl.settings["env"].value} for decl in program.evals.values()]
    found = [environment_of(program, each) for each in settings]
    used = {decl.name for decl in found if decl is not None}
    return tuple(name for name in program.environments if name in used)


def longest_text(program: Program, node: Node) -> int | None:
    """Return the maximum tokens of all turns of a trajectory; None if only a deadline ends it, or
    if an agent writes its prompts."""
    service = program.services[node.target]
    new = number(service, "sampling.max_tokens", 0)
    env = environment_of(program, node.settings)
    if env is None:
        return new
    turns = node.settings.get("max_turns")
    if turns is None or env.body.agent:
        return None
    return int(turns) * new + (int(turns) - 1) * int(env.settings["max_observation"].value)


def max_training_tokens(program: Program, node: Node, prompt: int) -> int | None:
    """Return the maximum number of tokens of all training rows of a trajectory. With `history =
    template`, each turn may start a new row, which repeats the conversation so far. None if the
    number of turns has no limit."""
    text, env = longest_text(program, node), environment_of(program, node.settings)
    if text is None or env is None or env.settings["history"].value == "append":
        return None if text is None else prompt + text
    new = number(program.services[node.target], "sampling.max_tokens", 0)
    observation = int(env.settings["max_observation"].value)
    turns = range(int(node.settings["max_turns"]))
    return sum(prompt + (turn + 1) * new + turn * observation for turn in turns)


def check_environments(
    program: Program, graph: Graph, contexts: Mapping[str, int | None], seq_len: int
) -> list[Diagnostic]:
    """Report mistakes of the environments that the flow and the evals play in."""
    found: list[Diagnostic] = []
    for node in graph.having(Role.SAMPLES):
        env = environment_of(program, node.settings)
        if env is not None:
            found += _endless(env, node.settings.get("max_turns"), node.span)
            found += _too_long(program, graph, node, env, contexts, seq_len)
    for decl in program.evals.values():
        found += _eval(program, decl)
        found += _eval_too_long(program, graph, decl, contexts)
    return found + list(_parts(program, graph))


def check_tools(program: Program, graph: Graph, base_dir: Path | None) -> list[Diagnostic]:
    """D622: the form of the model's tool calls is unknown: the family has none, `tool_calls` does
    not name one, and the chat template in the file does not show one."""
    found = []
    for node in graph.having(Role.SAMPLES):
        env = environment_of(program, node.settings)
        model = program.models[model_of(program.services[node.target])]
        offers = env is not None and (env.body.tools or env.body.served or env.body.agent)
        known = read_model(model, base_dir) if offers else None
        if env is not None and known is not None and not (known[0].tools or _form(model)):
            found.append(_unread_tools(env, known[0].name, node, model))
    return found


def _form(model: Decl) -> str | None:
    """Return the form of tool calls that the file gives: its name, or a chat template."""
    form, template = model.settings["tool_calls"].value, model.settings["chat_template"].value
    if isinstance(form, Constructor):
        return FORM + str(form.args["name"])
    if isinstance(form, str):
        return form
    if not isinstance(template, str):
        return None
    from forgedsl.tool_calls import form_of

    return form_of(template)


def _unread_tools(env: EnvironmentDecl, family: str, node: Node, model: Decl) -> Diagnostic:
    tools = ", ".join(f"`{tool.name}`" for tool in env.body.tools) or "tools of a server"
    has, help = f"`{env.name}` has {tools}", "write a `step` that reads plain text"
    if env.body.agent:
        has = f"agent `{env.name}` would get tool calls as text"
        help = "write an agent that sends no `tools`"
    return Diagnostic(
        code="D622",
        name="no-tool-format",
        severity=Severity.WARNING if env.body.agent else Severity.ERROR,
        message=f"the form in which models of `{family}` call tools is not known, but {has}",
        span=node.span,
        related=(Label(text="the model", span=model.name_span),),
        help="if it was trained to call tools, name the form, such as `tool_calls = hermes` of the "
        f'model, or a parser of vLLM, such as `tool_calls = vllm("granite")`; or {help}',
    )


def _endless(env: EnvironmentDecl, turns: object, span: Span) -> Iterator[Diagnostic]:
    if env.body.agent and env.settings["deadline"].value is None:
        yield error(
            "D620",
            "endless-environment",
            f"a trajectory of agent `{env.name}` never ends if the agent hangs",
            span,
            related=(Label(text="declared without `deadline`", span=env.name_span),),
            help=f"`environment {env.name} = ... {{ deadline = 120s }}`",
        )
    elif turns is None and env.settings["deadline"].value is None:
        yield error(
            "D620",
            "endless-environment",
            f"a trajectory in `{env.name}` may never end: it has neither `max_turns` nor a "
            "`deadline`",
            span,
            related=(Label(text="declared without `deadline`", span=env.name_span),),
            help="set `max_turns = 6` here, or `deadline = 60s` in the environment",
        )


def _too_long(
    program: Program,
    graph: Graph,
    node: Node,
    env: EnvironmentDecl,
    contexts: Mapping[str, int | None],
    seq_len: int,
) -> Iterator[Diagnostic]:
    """D621: turns of maximum length do not fit, so that late turns are truncated."""
    text = longest_text(program, node)
    model = model_of(program.services[node.target])
    context = contexts[model]
    room = seq_len if context is None else min(context, seq_len)
    prompt = max(1, number(program.datasets[graph.node(node.root).target], "max_prompt_tokens", 0))
    rows = max_training_tokens(program, node, prompt)
    if text is None or rows is None:
        return
    if prompt + text <= room and rows > seq_len:
        yield Diagnostic(
            code="D621",
            name="turns-over-context",
            severity=Severity.WARNING,
            message=f"the {node.settings['max_turns']} training rows of a trajectory can have "
            f"{rows} tokens, but a trainer row holds {seq_len}",
            span=node.span,
            notes=(
                "with `history = template`, each turn that the chat template rewrites begins a "
                "new row; rows are shorter by the text that the template removes",
                'a trajectory that needs more ends there, with `r.ended` = "tokens"',
            ),
            help=f"set `batch.seq_len = {rows}`, or fewer turns",
        )
    if prompt + text <= room:
        return
    new = number(program.services[node.target], "sampling.max_tokens", 0)
    turns, observation = int(node.settings["max_turns"]), int(env.settings["max_observation"].value)
    where = f"the context {context} of model `{model}`"
    if room == seq_len:
        where = f"the {seq_len} tokens of a row of the trainer"
    yield Diagnostic(
        code="D621",
        name="turns-over-context",
        severity=Severity.WARNING,
        message=f"{turns} turns of {new} tokens, observations of {observation} and a prompt of "
        f"{prompt} are {prompt + text} tokens, more than {where}",
        span=node.span,
        notes=('a trajectory that needs more ends there, with `r.ended` = "tokens"',),
        help="set fewer turns, a smaller `max_tokens` or `max_observation`, or a larger context",
    )


def _eval(program: Program, decl: Decl) -> Iterator[Diagnostic]:
    env = environment_of(program, {"env": decl.settings["env"].value})
    turns = decl.settings["max_turns"]
    if env is not None:
        yield from _endless(env, turns.value, decl.settings["env"].origin.span or decl.name_span)
    elif turns.value is not None:
        yield error(
            "F113",
            "bad-value",
            f"`max_turns` of `{decl.name}` has no effect without `env`",
            turns.origin.span or decl.name_span,
            help="set `env = NAME`, or remove `max_turns`",
        )


def _eval_too_long(
    program: Program, graph: Graph, decl: Decl, contexts: Mapping[str, int | None]
) -> Iterator[Diagnostic]:
    """D621: turns of an eval do not fit in the context of the model, though those of the flow do:
    it measures trajectories that end early."""
    env = environment_of(program, {"env": decl.settings["env"].value})
    turns, played = decl.settings["max_turns"].value, graph.having(Role.SAMPLES)
    if env is None or turns is None or len(played) != 1:
        return
    service = program.services[played[0].target]
    context = contexts[model_of(service)]
    own, observation = (
        decl.settings["sample.max_tokens"].value,
        env.settings["max_observation"].value,
    )
    new = own if isinstance(own, int) else number(service, "sampling.max_tokens", 0)
    text = int(turns) * new + (int(turns) - 1) * int(observation)
    flow = played[0].settings.get("max_turns")
    if context is None or text < context or (flow is not None and flow >= turns):
        return
    yield Diagnostic(
        code="D621",
        name="turns-over-context",
        severity=Severity.WARNING,
        message=f"{turns} turns of {new} tokens and observations of {observation} are {text} "
        f"tokens in eval `{decl.name}`; the context of model `{model_of(service)}` is {context}",
        span=decl.settings["max_turns"].origin.span or decl.name_span,
        notes=('a trajectory that fills it ends there: `r.ended` is "tokens"',),
        help="fewer turns, a smaller `sample.max_tokens`, or a larger context",
    )


def _parts(program: Program, graph: Graph) -> Iterator[Diagnostic]:
    """F101: a reward reads a part that no environment of its rollouts defines. Each span is
    reported once. Monitors are evaluated with every score of the flow, but not in evals."""
    reported: set[Span] = set()
    monitors = [n for n, reward in program.rewards.items() if reward.settings["monitor"].value]
    for node in graph.having(Role.SCORES):
        envs = [environment_of(program, graph.node(s).settings) for s in sorted(node.samplers)]
        rollout = node.inputs[0].text
        what = f"no environment of `{rollout}` has a reward part"
        scored = (*rewards_of(program, node.target), *monitors)
        without = LISTED
        if not any(envs) and program.environments:
            sampler = graph.node(min(node.samplers)).target
            played = f"{sampler}.play(prompt, env = {next(iter(program.environments))})"
            without = f"`{rollout}` is sampled without an environment: write `{played}`"
        yield from _unknown_parts(program, scored, envs, what, reported, without)
    for decl in program.evals.values():
        if isinstance(decl.settings["score"].value, Ref):
            scored = rewards_of(program, decl.settings["score"].value.name)
            env = environment_of(program, {"env": decl.settings["env"].value})
            if env is None:
                what = f"eval `{decl.name}` uses no environment that has a reward part"
                help_ = (
                    "set `env = NAME, max_turns = 3` in the eval, or use a score that reads "
                    "no reward parts"
                )
                yield from _unknown_parts(program, scored, [], what, reported, help_)
            else:
                what = f"`{env.name}`, the environment of eval `{decl.name}`, has no reward part"
                yield from _unknown_parts(program, scored, [env], what, reported)


def _unknown_parts(
    program: Program,
    scored: Iterable[str],
    envs: Sequence[EnvironmentDecl | None],
    what: str,
    reported: set[Span],
    without: str = LISTED,
) -> Iterator[Diagnostic]:
    known = {part for env in envs if env is not None for part in env.body.parts}
    for name in dict.fromkeys(scored):
        reward = program.rewards.get(name)
        if reward is None or not isinstance(reward.body, Function):
            continue
        for path in _read(reward.body):
            if path.parts[-1] not in known and path.span not in reported:
                reported.add(path.span)
                close = did_you_mean(nearest(path.parts[-1], known))
                listed = ", ".join(f"`{part}`" for part in sorted(known))
                yield error(
                    "F101",
                    "undefined",
                    f"{what} `{path.parts[-1]}`",
                    path.span,
                    help=close or (f"its reward parts are {listed}" if listed else "") or without,
                )


def _read(body: Function) -> Iterator[ast.Path]:
    """Yield the uses of `r.rewards.NAME` in a body and in the functions that it calls."""
    pending, seen = [body], {body.name}
    while pending:
        function = pending.pop()
        for node in walk(tuple(statement.value for statement in function.statements)):
            if isinstance(node, ast.Path) and len(node.parts) == 3 and node.parts[1] == "rewards":
                yield node
            called = function.scope.lookup(node.function.parts) if type(node) is ast.Call else None
            if isinstance(called, Function) and called.name not in seen:
                seen.add(called.name)
                pending.append(called)
