"""HIR: the program with names resolved, parameters folded and every setting filled in.

`hir.resolve` turns an AST and the chosen profile and overrides into one `Program`. Settings are
flat and include defaults: `services["trainer"].settings["optimizer.lr"].value == 2e-4`. Bodies of
losses, rewards, advantages, filters and functions stay expressions; their free names are looked up
in the function's `Scope`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

from forgedsl.records import dataclass, field
from forgedsl.source import Span
from forgedsl.syntax import ast
from forgedsl.syntax.walk import names
from forgedsl.types.flow import Role, place

S = TypeVar("S")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a value. `layer` is default, module, file, profile, set-file or set."""

    layer: str
    detail: str  # "profile cpu", "--set trainer.procs=4", "default"
    span: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A folded setting or parameter: str int float bool None, list, `Auto`, `Constructor`,
    `Deferred` (an expression evaluated at run time), or the name of a declaration (`Ref`).
    `place` is the span of the setting's name, `origin.span` that of the value."""

    value: Any
    origin: Origin
    place: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ref:
    """The name of a declaration used as a value (`dataset = gsm8k`)."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Constructor:
    """`hf("Qwen/Qwen3-1.7B", revision = "abc")`: name and arguments by parameter name, folded."""

    name: str
    args: Mapping[str, Any]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """An expression evaluated per row or per rollout (`prompt = chat(system, row.question)`)."""

    expr: ast.Expr
    scope: Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A name bound to a folded value (a param)."""

    value: Any
    span: Span | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonParameter:
    """A parameter of a Python function. `keyword` and `by_position`: it can be passed only in that
    way."""

    name: str
    required: bool
    keyword: bool = False
    by_position: bool = False
    annotation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonFunction:
    """Python object named by `import python`. `makes` is `call`, `object` or `class`: a function,
    an object with a `__call__`, or a class of such objects. `module` is the path as written,
    relative to the file. `params` are the parameters of the call, `init` those of the class,
    `args` the given arguments.
    """

    module: str
    name: str
    makes: str = "call"
    params: tuple[PythonParameter, ...]
    init: tuple[PythonParameter, ...] = ()
    any_number: bool = False
    any_name: bool = False
    asynchronous: bool = False
    args: Mapping[str, Any] = field(default_factory=dict)
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonTool:
    """A method marked `@tool`. `problem` says why a model could not call it, else ""."""

    name: str
    params: tuple[PythonParameter, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonEnvironment:
    """An environment class of `import python`, or an environment made by `program` or `gymnasium`.

    `parts` are the names of its reward parts, `args` the given arguments of `init`. `served`: its
    tools come from an MCP server, which is started with `scripts`. `texts` are strings that may
    describe its tools to the policy. `agent`: the class is an Agent, which sends its own requests
    to the policy. `problem` says why it cannot be used, else "".

    An agent that is a `program` has no module; `args` are those of `program`, and `scripts` the
    files that it needs. An environment of gymnasium has a module only if a file beside the .forge
    file registers it. Its `args` are those of `gymnasium`, its `options` those of the environment's
    class, and its `packages` contain the environment's code.
    """

    module: str
    name: str
    init: tuple[PythonParameter, ...]
    tools: tuple[PythonTool, ...]
    texts: tuple[str, ...] = ()
    served: bool = False
    scripts: tuple[str, ...] = ()
    parts: tuple[str, ...]
    agent: bool = False
    problem: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] | None = None
    packages: tuple[str, ...] = ()
    span: Span

    @property
    def is_program(self) -> bool:
        """True for `program([...])`: an agent that is a command, without a Python class."""
        return not self.module and self.options is None

    @property
    def is_gymnasium(self) -> bool:
        """True for `gymnasium(...)`, whose class is that of another package."""
        return self.options is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonModule:
    """An `nn.Module` of `import python`, used as a loss. `init` and `forward` are the parameters of
    these methods, `args` the given arguments of `init`, `text` the text of its file, `reports` the
    names that its class lists. `any_name`: `forward` accepts any keyword argument."""

    module: str
    name: str
    init: tuple[PythonParameter, ...]
    forward: tuple[PythonParameter, ...]
    any_name: bool = False
    reports: tuple[str, ...]
    text: str
    args: Mapping[str, Any] = field(default_factory=dict)
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A loss, reward, advantage, filter or fn with a body in the expression language.

    `statements` ends in `Return`, or holds `Minimize` and `Report`s (losses); an expression body
    is one `Return`.
    """

    kind: str  # loss | reward | advantage | filter | fn
    name: str
    module: str  # "" for the file itself, else the import path ("std/rl")
    fields: tuple[ast.Field, ...]
    result: ast.Type | None
    statements: tuple[ast.Assign | ast.TypedAssign | ast.Return | ast.Minimize | ast.Report, ...]
    python: PythonModule | None = None
    """the Python class of a loss without statements"""
    scope: Scope
    doc: str
    span: Span


@dataclass(slots=True, kw_only=True)
class Scope:
    """Free names of one module: params, functions and imported modules ("rl.k3")."""

    module: str = ""
    names: MutableMapping[
        str,
        Constant | Function | PythonFunction | PythonEnvironment | PythonModule | Decl | Scope,
    ] = field(default_factory=dict)
    others: MutableMapping[str, str] = field(default_factory=dict)
    """other names of a Python file, each with the reason why it cannot be a reward"""

    def lookup(
        self, parts: tuple[str, ...]
    ) -> Constant | Function | PythonFunction | PythonEnvironment | PythonModule | Decl | None:
        """Resolve a dotted name; None if a part is unknown."""
        found: Any = self
        for part in parts:
            if not isinstance(found, Scope):
                return None
            found = found.names.get(part)
        return None if isinstance(found, Scope) else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Decl:
    """Any declaration with settings: model, dataset, service, rubric, eval, schedule, ..."""

    kind: str
    name: str
    ctor: str | None  # titan | vllm for services
    ctor_args: tuple[Any, ...]  # (Ref("policy"),)
    head: bool = False  # titan(value_head(policy))
    label: str | None  # schedule: sync | async
    settings: Mapping[str, Value]
    doc: str
    span: Span
    name_span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardDecl:
    """A reward: its body is a Function, a PythonFunction, or a standard one (Constructor)."""

    name: str
    body: Function | PythonFunction | Constructor
    settings: Mapping[str, Value]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentDecl:
    """A declared environment: its class, with the arguments of its objects."""

    name: str
    body: PythonEnvironment
    settings: Mapping[str, Value]
    span: Span
    name_span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStep:
    """One statement of the flow, resolved: `name = receiver.method(args)` or `function(args)`.

    draw, batches, pairs   receiver: dataset
    sample, logprobs       receiver: service; with an environment, settings["env"], ["max_turns"]
    values                 receiver: service with a value head
    score                  receiver: rubric or reward  (`score = math_score(rollout, ...)`)
    call                   receiver: advantage or filter function
    keep                   receiver: the edge that is filtered
    replay                 receiver: ""; kwargs are the extra fields of the batch
    put                    receiver: buffer; inputs rollout, keep, and what is kept beside them
    recall                 receiver: buffer (`old = good.draw(8)`)
    step                   receiver: service; inputs batch, batch_2, ...; settings["loss"],
                           ["loss_2"], ...: the loss of each batch; a batch without one is merged
                           with the batch before it
    sync                   receiver: source service; settings["target"]
    """

    name: str | None
    op: str
    receiver: str
    inputs: tuple[FlowInput, ...]
    settings: Mapping[str, Value]
    roles: frozenset[Role] = frozenset()
    span: Span

    @property
    def is_logprobs(self) -> bool:
        """True for `logprobs`; False for `values`, which measures with the value head."""
        return Role.MEASURES in self.roles and "values" not in self.settings

    @property
    def terms(self) -> tuple[tuple[Value, tuple[FlowInput, ...]], ...]:
        """The losses of a step, each with its batches. Several batches of a loss are merged."""
        return terms_of(self.settings, self.inputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowInput:
    """An edge that a statement reads: the parameter, the edge, and its attribute
    (`prompt.target`)."""

    argument: str
    edge: str
    attribute: str | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A whole program under one profile."""

    file: str  # as named on the command line
    name: str  # run.name, by default the file stem
    profile: str | None
    params: Mapping[str, Value]
    models: Mapping[str, Decl]
    datasets: Mapping[str, Decl]
    services: Mapping[str, Decl]
    rewards: Mapping[str, RewardDecl]
    environments: Mapping[str, EnvironmentDecl]
    declared: Mapping[str, Mapping[str, Decl]]  # for operations, by kind: `buffer`
    rubrics: Mapping[str, Decl]  # settings["score"].value is a Deferred over reward names
    functions: Mapping[str, Function]  # losses, advantages, filters, fns used, by flow name
    flow: tuple[FlowStep, ...]
    schedule: Decl | None
    evals: Mapping[str, Decl]
    singletons: Mapping[str, Decl]  # run cluster launcher checkpoint logging proofs colocate
    spans: Mapping[str, Span]  # declaration name -> span
    scope: Scope
    used: frozenset[str] = frozenset()  # names of declarations that are used

    @property
    def for_operations(self) -> tuple[Decl, ...]:
        """Declarations of operations, such as buffers."""
        return tuple(decl for group in self.declared.values() for decl in group.values())


def terms_of(settings: Mapping[str, S], inputs: Sequence[R]) -> tuple[tuple[S, tuple[R, ...]], ...]:
    """The losses of a step, each with its batches. Several batches of a loss are merged."""
    found: list[tuple[S, list[R]]] = []
    for index, read in enumerate(inputs):
        loss = settings.get(place("loss", index))
        if loss is not None:
            found.append((loss, []))
        found[-1][1].append(read)
    return tuple((loss, tuple(reads)) for loss, reads in found)


def rewards_of(program: Program, score: str) -> tuple[str, ...]:
    """Return the rewards of a score: those that a rubric combines, or the reward itself."""
    if score not in program.rubrics:
        return (score,)
    found = {".".join(n) for n in names(program.rubrics[score].settings["score"].value.expr)}
    return tuple(name for name in program.rewards if name in found)


def engine_of(program: Program, service: str) -> str:
    """Return the service whose engine serves a service: itself, or the one that `served_by`
    names."""
    setting = program.services[service].settings.get("served_by")
    return setting.value.name if setting is not None and isinstance(setting.value, Ref) else service


def is_tenant(program: Program, service: str) -> bool:
    """True if `served_by` is set: the engine of another service serves this one."""
    setting = program.services[service].settings.get("served_by")
    return setting is not None and isinstance(setting.value, Ref)


def model_of(service: Decl) -> str:
    """Return the model of a service: "policy" for `titan(policy)`, "m" for `openai("m")`."""
    argument = service.ctor_args[0]
    return argument.name if isinstance(argument, Ref) else str(argument)
