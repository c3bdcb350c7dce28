"""Every setting of every kind changes the job, and the runtime reads what it changes.

Who reads is found by types: mypy says of which class of the job an attribute in runtime/ is. What
only the compiler acts on (the cluster, the launcher's manifests) has to show in the plan.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from forge_texts import GRPO, SFT, changed, lower_of

from forgedsl.api import load_text
from forgedsl.lower.build import Lowered
from forgedsl.lower.job import Spec
from forgedsl.lower.lock import choices
from forgedsl.operations.registry import OPERATIONS
from forgedsl.plan.meshes import CHOSEN
from forgedsl.plan.text import render_plan
from forgedsl.schema import KINDS, SERVICES, constructors
from forgedsl.schema.kinds import SYNC
from forgedsl.settings import Limit

ROOT = Path(__file__).parents[2]
EVALUATED = changed(GRPO, ("sync trainer -> generator { every = 1 }", "sync trainer -> generator"))
EVALUATED += "eval held { dataset = gsm8k, score = total, every = 10 }\n"
TOGETHER = changed(
    EVALUATED, ("schedule async { steps = 500, max_policy_age = 1 }", "schedule sync { steps = 5 }")
)
PAIRS = """forge 1
import "std/rl" as rl
model base { source = hf("Qwen/Qwen3-0.6B") }
dataset pairs {
  source = hf("a/b", split = "train")
  prompt = row.question, chosen = row.good, rejected = row.bad
}
service trainer : titan(base) { batch { seq_len = 512, rows = 4 } }
service reference : titan(base) { }
flow train {
  pair  = pairs.pairs(8)
  ref   = reference.logprobs(pair)
  batch = replay(pair, ref = ref)
  trainer.step(batch, loss = rl.dpo)
}
schedule sync { steps = 5 }
"""
MEASURED = changed(SFT, ("forge 1\n", 'forge 1\nimport "std/rl" as rl\n'))
MEASURED += "eval held { dataset = tulu, loss = nll, every = 10 }\n"
CODE = changed(
    EVALUATED,
    ("forge 1\n", 'forge 1\nimport python "grade.py" as grade\n'),
    ("= rl.math_equal(tolerance = 1e-6)", "= grade.score { effects = [io] }"),
)
ONE = changed(TOGETHER, ("procs = 4,", "procs = 1,"), ("replicas = 2, parallel.tp = 2,", ""))
ONE += "colocate = [trainer, generator]\n"
REPLAYED = changed(
    TOGETHER,
    ("flow train", "buffer good { groups = 64, max_age = 8 }\nflow train"),
    ("  trainer.step(batch", "  good.put(rollout, score = score, ref = ref_lp)\n"
     "  old = good.draw(4)\n  again = replay(old, ref = old.ref, adv = rl.rloo(old.score))\n"
     "  trainer.step(merge(batch, again)"),
)  # fmt: skip
PLAYED = changed(
    EVALUATED,
    ("forge 1\n", 'forge 1\nimport python "grade.py" as grade\n'),
    ("generator.sample(prompt, n = 8)", "generator.play(prompt, env = shop, n = 8, max_turns = 4)"),
    ("filter mixed", "environment shop = grade.Shop {}\nfilter mixed"),
)
ASKED = changed(
    EVALUATED,
    ("filter mixed", 'service remote : openai("m") { url = "http://a/v1" }\nfilter mixed'),
    ("= rl.math_equal(tolerance = 1e-6)", '= remote.score(prompt = "{response} 1 to 5:")'),
)
SHARED = changed(
    EVALUATED,
    ("procs = 4,", "procs = 2, lora.rank = 8,"),
    ("sync trainer -> generator", "sync trainer -> generator { weights = adapter }"),
    ("filter mixed", "service judge : vllm(policy) {}\nfilter mixed"),
    ("= rl.math_equal(tolerance = 1e-6)", '= judge.score(prompt = "{response} 1 to 5:")'),
)
SERVED = changed(
    EVALUATED, ("procs = 4,", "procs = 2, lora.rank = 8,"), ("device = cpu, procs = 2", "")
)
MIXTURE = changed(
    EVALUATED,
    ('hf("Qwen/Qwen3-1.7B")', 'hf("Qwen/Qwen3-30B-A3B")'),
    ('qwen3("1.7B")', 'qwen3_moe("30B-A3B", layers = 2)'),
)
WEIGHTED = changed(
    EVALUATED,
    ("gsm8k.draw(16)", "gsm8k.draw(16, weight = rl.frontier)"),
    ("  batch   =", "  gsm8k.observe(prompt, score)\n  batch   ="),
)
MUON = changed(EVALUATED, ("procs = 4,", "procs = 4, optimizer.kind = muon,"))
OLDER = changed(EVALUATED, ("max_policy_age = 1", "max_policy_age = 4"))
SLURM = ["cluster.hosts=2", 'launcher=slurm("gpu")']
WANDB = EVALUATED + 'logging { wandb { project = "p" } }\n'
MLFLOW = EVALUATED + 'logging { mlflow { experiment = "m" } }\n'
TRACKIO = EVALUATED + 'logging { trackio { project = "t" } }\n'
PYTHON = "async def score(prompt, response, target):\n    return 1.0\n"
PYTHON += "class Shop(Environment):\n    pass\n"

CHANGES: dict[str, dict[str, object]] = {
    "run": {"seed": "3", "name": "other"},
    "cluster": {
        "hosts": "2", "gpus": "16", "gpu": '"H100"', "gpu_memory": "200GiB", "cpus": "48",
        "memory": "512GiB",
    },
    "launcher": {"value": 'slurm("gpu")'},
    "colocate": {"value": (TOGETHER, "[trainer, generator]")},
    "model": {
        "source": 'hf("Qwen/Qwen3-1.7B-Base")', "arch": 'qwen3("1.7B", layers = 2)',
        "dtype": "f32", "context": "8192", "tokenizer": 'hf("a/b")', "chat_template": '"{{ 1 }}"',
        "tool_calls": "mistral", "adapter": 'hf("a/b")',
    },
    "dataset": {
        "source": 'hf("a/b")', "system": (changed(
            EVALUATED, ("= row.question", "= chat(system, row.question)")), '"s"'),
        "prompt": "row.other", "target": "row.other", "chat": (SFT, "row.other"),
        "learn": (SFT, "last_turn"), "chosen": (PAIRS, "row.other"),
        "rejected": (PAIRS, "row.other"), "shuffle": "none", "streaming": "true",
        "max_prompt_tokens": "256", "on_long": "truncate", "max_bad_rows": "0.1",
        "level": (WEIGHTED, "row.other"),
    },
    "reward": {
        "procs": "2", "concurrency": (CODE, "3"), "timeout": "5s", "retries": "3",
        "on_error": "0.0", "max_failed": "0.5", "monitor": (changed(EVALUATED, (
            "rubric total", "reward more = rl.exact\nrubric total")), ["more.monitor=true"]),
        "memory": (CODE, "1GiB"), "cache": "true", "files": (CODE, '["grade.py"]'),
    },
    "rubric": {"score": "2.0 * correct", "on_truncated": "0.5", "on_error": "0.0"},
    "schedule": {
        "steps": "7", "epochs": (SFT, "2.0"),
        "max_policy_age": "2", "window": (OLDER, "0.5"), "on_stale": "error",
        "starve_timeout": "5min", "restarts": "2",
    },
    "eval": {
        "dataset": (changed(EVALUATED, ("service trainer", 'dataset more {\n  source = hf("c/d")\n'
                    "  prompt = row.q, target = row.a\n}\nservice trainer")), "more"),
        "split": '"test"', "source": 'hf("c/d")', "score": "correct", "every": "20", "limit": "9",
        "sample.temperature": "0.5", "sample.top_p": "0.5", "sample.top_k": "5",
        "sample.min_p": "0.1", "sample.max_tokens": "99", "sample.n": "2",
        "env": (PLAYED, ["held.env=shop", "held.max_turns=3"]),
        "max_turns": (changed(PLAYED, ("every = 10", "every = 9, env = shop, max_turns = 3")), "2"),
        "loss": (MEASURED, "rl.sft"),
    },
    "checkpoint": {"every": "7", "keep": "5", "grace": "5min", "export": 'hf("out")'},
    "logging": {
        "console": "false", "jsonl": "false", "tensorboard": "false", "wandb.project": '"p"',
        "wandb.entity": (WANDB, '"e"'),
        "wandb.mode": (WANDB, "offline"),
        "mlflow.experiment": '"m"', "mlflow.uri": (MLFLOW, '"http://127.0.0.1:5000"'),
        "trackio.project": '"t"', "trackio.space": (TRACKIO, '"me/space"'),
        "samples": "2", "prometheus": "9400",
        "record.steps": "all", "record.disk": "4GiB",
    },
    "proofs": {
        f"off.{name}": '"a reason"' for name in (
            "publications", "start", "gap", "frozen", "masks", "loss",
        )
    },
    "environment": {
        "procs": (PLAYED, "2"), "tool_timeout": (PLAYED, "3s"), "deadline": (PLAYED, "60s"),
        "max_observation": (PLAYED, "64"), "history": (PLAYED, "template"),
        "on_error": (PLAYED, "0.5"),
    },
    "buffer": {"groups": (REPLAYED, "32"), "max_age": (REPLAYED, "9")},
    "sync": {
        "every": (OLDER, "2"), "overlap": "false", "on_swap": "keep",
        "transport": (ONE, "shm"), "timeout": "9s",
        "weights": (changed(EVALUATED, ("procs = 4,", "procs = 4, lora.rank = 8,")), "adapter"),
    },
    "titan": {
        "hosts": ["trainer.hosts=2", "trainer.procs=2", *SLURM], "gpus": "0",
        "cpus": "3", "device": "cpu", "dtype": "f32", "mesh_name": '"other"', "procs": "2",
        "temperature": "0.5", "compile": "false",
        "served_by": (SERVED, ["reference.served_by=trainer"]),
        "parallel.dp_shard": ["trainer.procs=2", "trainer.parallel.dp_shard=2"],
        "parallel.dp_replicate": "2", "parallel.tp": "2", "parallel.cp": "2",
        "parallel.pp": "2", "parallel.ep": (MIXTURE, "2"),
        "router_replay": (MIXTURE, "false"),
        "optimizer.kind": "adam", "optimizer.lr": "1e-4", "optimizer.betas": "[0.8, 0.9]",
        "optimizer.eps": "1e-6", "optimizer.weight_decay": "0.2", "optimizer.warmup": "5",
        "optimizer.decay": "linear", "optimizer.max_norm": "2.0", "optimizer.on_nan": "skip",
        "optimizer.momentum": (MUON, "0.8"), "optimizer.nesterov": (MUON, "false"),
        "optimizer.ns_steps": (MUON, "4"), "optimizer.adjust_lr": (MUON, "original"),
        "optimizer.precision": "bf16_moments", "memory.offload": "true",
        "memory.keep_weights": "false",
        "lora.rank": "8", "lora.alpha": (changed(
            EVALUATED, ("procs = 4,", "procs = 4, lora.rank = 8,")), "64.0"),
        "batch.seq_len": "2048", "batch.rows": "2", "batch.tokens": (changed(
            EVALUATED, ("rows = 4", "tokens = 16k")), "8k"), "batch.pack": "false",
        "batch.accumulate": (SFT, "2"), "memory.activation_checkpoint": "full",
    },
    "openai": {
        "url": (ASKED, '"http://b/v1"'), "key": (ASKED, '"KEY"'), "max_tokens": (ASKED, "9"),
        "structured": (ASKED, "false"),
        "rename": (ASKED, '["max_tokens=max_completion_tokens"]'), "omit": (ASKED, "[temperature]"),
    },
    "vllm": {
        "gpus": "0", "cpus": "3",
        "device": "cpu", "dtype": "f16", "mesh_name": '"other"',
        "procs": ["generator.procs=1", "generator.parallel.tp=1"], "replicas": "1",
        "route": "sticky", "parallel.tp": ["generator.procs=1", "generator.parallel.tp=1"],
        "sampling.temperature": "0.5", "sampling.top_p": "0.5", "sampling.top_k": "5",
        "sampling.min_p": "0.1", "sampling.max_tokens": "99", "sampling.min_tokens": "2",
        "sampling.stop": '["end"]', "engine.gpu_memory": "0.5", "engine.prefix_caching": "false",
        "engine.cuda_graphs": "false", "engine.max_running": "8", "engine.kv_dtype": "fp8",
        "engine.weight_dtype": "fp8", "served_by": (SHARED, ["judge.served_by=generator"]),
    },
}  # fmt: skip

NAMES = {
    "buffer": "good","model": "policy", "dataset": "gsm8k", "reward": "correct", "rubric": "total",
         "eval": "held", "environment": "shop", "titan": "trainer",
         "openai": "remote", "vllm": "generator"}  # fmt: skip
"""what the base program declares; singletons are addressed by their kind"""
RULES = {"reward.effects"}
"""what the rules about rewards read, and nobody else (X803, R510)"""
PLANNED = {"cluster.hosts", *(f"cluster.{name}" for name in CHANGES["cluster"])}
SAID = {"content_hash", "origins", "summary", "topology", "compiler"}
"""fields of a job for people"""
SCHEMAS = {
    **{name: kind for name, kind in KINDS.items() if name != "service"},
    **SERVICES,
    "sync": SYNC,
}
AUTOS = [
    (kind, setting.name)
    for kind in ("titan", "vllm", "colocate")
    for setting in SCHEMAS[kind].settings
    if setting.type.auto
    and setting.name in (*CHOSEN, "value")
    and (kind, setting.name) != ("vllm", "procs")  # what its degrees make
]
"""what the plan chooses where it is `auto`"""
ROWS = [(kind, name) for kind, rows in CHANGES.items() for name in rows]
MIXED = changed(EVALUATED, ('hf("openai/gsm8k", split = "train")',
                'mixture([hf("a/b"), hf("c/d")], weights = [1.0, 2.0])'))  # fmt: skip
RANDOM = changed(EVALUATED, ('hf("Qwen/Qwen3-1.7B")', "random(1)"))
SHUFFLED = changed(EVALUATED, ("max_prompt_tokens", "shuffle = seed(1), max_prompt_tokens"))
MADE = changed(
    EVALUATED,
    ('hf("openai/gsm8k", split = "train")', 'reasoning_gym("chain_sum", size = 900, seed = 7)'),
    ("rl.math_equal(tolerance = 1e-6)", "rl.reasoning_gym(whole = true)"),
)
EXPORTED = EVALUATED + 'checkpoint { export = hf("a") }\n'


def rewarded(value: str) -> str:
    return changed(EVALUATED, ("rl.math_equal(tolerance = 1e-6)", value))


WRITTEN: dict[str, tuple[str, str, str]] = {
    "hf.id": (EVALUATED, "openai/gsm8k", "a/b"),
    "hf.config": (EVALUATED, 'split = "train"', 'split = "train", config = "main"'),
    "hf.split": (EVALUATED, 'split = "train"', 'split = "test"'),
    "hf.revision": (EVALUATED, 'hf("Qwen/Qwen3-1.7B"', 'hf("Qwen/Qwen3-1.7B", revision = "a"'),
    "hf.path": (EXPORTED, 'hf("a")', 'hf("b")'),
    "local.path": (EVALUATED, 'hf("Qwen/Qwen3-1.7B"', 'local("model"'),
    "random.seed": (RANDOM, "random(1)", "random(2)"),
    "jsonl.path": (EVALUATED, 'hf("openai/gsm8k", split = "train")', 'jsonl("a.jsonl")'),
    "parquet.path": (EVALUATED, 'hf("openai/gsm8k", split = "train")', 'parquet("a.parquet")'),
    **{
        f"{kind}.path": (EVALUATED, 'hf("openai/gsm8k", split = "train")', f'{kind}("a.x")')
        for kind in ("csv", "json", "disk")
    },
    "reasoning_gym.task": (MADE, '"chain_sum"', '"leg_counting"'),
    "reasoning_gym.size": (MADE, "900", "800"),
    "reasoning_gym.seed": (MADE, "seed = 7", "seed = 8"),
    "reasoning_gym.whole": (MADE, "true", "false"),
    "mixture.sources": (MIXED, 'hf("c/d")', 'hf("e/f")'),
    "mixture.weights": (MIXED, "2.0", "3.0"),
    "seed.seed": (SHUFFLED, "seed(1)", "seed(2)"),
    "score.prompt": (ASKED, "1 to 5", "5 is best"),
    "score.scale": (ASKED, '5:"', '5:", scale = [0, 9]'),
    "score.range": (ASKED, '5:"', '5:", range = [0.0, 2.0]'),
    "math_equal.tolerance": (EVALUATED, "1e-6", "1e-3"),
    "math_equal.partial": (rewarded("rl.math_equal(partial = 0.1)"), "0.1", "0.2"),
    "math_equal.which": (rewarded("rl.math_equal(which = last)"), "= last", "= first_tag"),
    "think_tags.which": (rewarded("rl.think_tags(which = any)"), "= any", "= pair"),
    "think_tags.tag": (rewarded('rl.think_tags(tag = "reason")'), '"reason"', '"plan"'),
    "think_tags.partial": (rewarded("rl.think_tags(0.1)"), "0.1", "0.2"),
    "exact.strip": (rewarded("rl.exact(strip = true)"), "= true", "= false"),
    "exact.lower": (rewarded("rl.exact(lower = false)"), "lower = false", "lower = true"),
    "contains.text": (rewarded('rl.contains("a")'), '"a"', '"b"'),
    "contains.lower": (rewarded("rl.contains(lower = false)"), "lower = false", "lower = true"),
    "format_regex.pattern": (rewarded('rl.format_regex("a")'), '"a"', '"b"'),
    "overlong.soft": (rewarded("rl.overlong(soft = 9, hard = 20)"), "= 9", "= 8"),
    "overlong.hard": (rewarded("rl.overlong(soft = 9, hard = 20)"), "= 20", "= 21"),
    "draw.count": (EVALUATED, "draw(16)", "draw(8)"),
    "pairs.count": (PAIRS, "pairs(8)", "pairs(4)"),
    "sample.n": (EVALUATED, "n = 8", "n = 4"),
    "play.n": (PLAYED, "n = 8", "n = 4"),
    "play.max_turns": (PLAYED, "max_turns = 4", "max_turns = 3"),
    "step.epochs": (EVALUATED, "loss = grpo", "loss = grpo, epochs = 2"),
    "step.minibatches": (EVALUATED, "loss = grpo", "loss = grpo, minibatches = 2"),
}
"""arguments of constructors and calls: a program, and what is changed in it"""
CONSTRUCTORS = (
    *constructors.MODEL_SOURCES.values(), *constructors.DATA_SOURCES.values(),
    *constructors.SEED.values(), *constructors.EXPORTS.values(), constructors.JUDGE,
    *constructors.STANDARD_REWARDS.values(),
)  # fmt: skip


@cache
def read() -> frozenset[tuple[str, str]]:
    """(class, field) of everything in a job that the runtime reads, rehearsals left out."""
    from mypy import build
    from mypy.modulefinder import BuildSource
    from mypy.nodes import MemberExpr
    from mypy.options import Options
    from mypy.types import Instance, UnionType, get_proper_type

    options = Options()
    options.export_types = options.ignore_errors = options.ignore_missing_imports = True
    options.preserve_asts, options.incremental, options.follow_imports = True, False, "skip"
    files = [
        p
        for p in (ROOT / "runtime").rglob("*.py")
        if "stub" not in p.parts and "twin" not in p.stem
    ]
    paths = {".".join(p.relative_to(ROOT / "runtime").with_suffix("").parts): p for p in files}
    kinds = {
        f"services.{path.parent.name}.job" for path in (ROOT / "forgedsl").glob("services/*/job.py")
    }
    names = {"lower.job", "job.parts", *kinds}
    jobs = {f"forgedsl.{n}": ROOT / f"forgedsl/{n.replace('.', '/')}.py" for n in names}
    modules = [BuildSource(str(p), n.removesuffix(".__init__")) for n, p in (paths | jobs).items()]
    types = build.build(modules, options).types
    found = set()
    for each in types:
        if isinstance(each, MemberExpr) and each.expr in types:
            owner = get_proper_type(types[each.expr])
            for one in owner.items if isinstance(owner, UnionType) else [owner]:
                one = get_proper_type(one)
                if isinstance(one, Instance) and one.type.module_name in jobs:
                    found.add((one.type.name, each.name))
    return frozenset(found)


def fields(old: object, new: object) -> Iterator[tuple[str, str]]:
    """(class, field) of what differs, as deep inside as it can be said."""
    if isinstance(old, Spec) and type(old) is type(new):
        for name in type(old).model_fields:
            before, after = getattr(old, name), getattr(new, name)
            if before != after and name not in SAID:
                owners = [c for c in type(old).__mro__ if name in getattr(c, "model_fields", {})]
                yield from list(fields(before, after)) or [(c.__name__, name) for c in owners]
    elif isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() & new.keys():
            yield from fields(old[key], new[key])
    elif isinstance(old, tuple) and isinstance(new, tuple):
        for before, after in zip(old, new, strict=False):
            yield from fields(before, after)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@cache  # the base is that of many settings
def lowered(text: str, folder: Path, *overrides: str) -> Lowered:
    (folder / "grade.py").write_text(PYTHON)
    found, diagnostics = lower_of(text, *overrides, folder=folder)
    assert found is not None, diagnostics
    return found


def both(kind: str, name: str, folder: Path) -> tuple[Lowered, Lowered]:
    """The base program, and the one with the setting changed."""
    row = CHANGES[kind][name]
    text, value = row if isinstance(row, tuple) else (EVALUATED, row)
    if kind == "sync":
        new = changed(
            text, ("sync trainer -> generator", f"sync trainer -> generator {{ {name} = {value} }}")
        )
        return lowered(text, folder), lowered(new, folder)
    own = {SFT: "tulu", PAIRS: "pairs"}.get(text, "gsm8k") if kind == "dataset" else None
    target = own or NAMES.get(kind, kind)
    address = target if name == "value" else f"{target}.{name}"
    edits = value if isinstance(value, list) else [f"{address}={value}"]
    return lowered(text, folder), lowered(text, folder, *edits)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_every_setting_is_in_the_table(kind: str) -> None:
    schema = SCHEMAS[kind]
    refused = {limit.setting for limit in schema.support if not limit.role and not limit.words}
    left = {s.name for s in schema.settings} - refused - CHANGES.get(kind, {}).keys()
    assert {f"{kind}.{name}" for name in left} <= RULES


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(k, n, id=f"{k}.{n}", marks=() if i % 2 else pytest.mark.full)
        for i, (k, n) in enumerate(ROWS)
    ],
)
def test_a_setting_changes_the_job_and_is_read(kind: str, name: str, folder: Path) -> None:
    old, new = both(kind, name, folder)
    if f"{kind}.{name}" in PLANNED:
        pages = [render_plan(x.plan.request.program, x.graph, x.plan, summary=("",), identity="")
                 for x in (old, new)]  # fmt: skip
        assert pages[0] != pages[1]
    else:
        assert set(fields(old.job, new.job)) & read()


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("generator.sampling.seed=3", "here it is `run.seed`"),
        (
            "trainer.memory.logits=chunked",
            "known are `activation_checkpoint`, `offload`, `keep_weights`",
        ),
        ("cluster.rdma=true", "known are `cpus`, `gpu`"),
        ('launcher=pbs("a")', "known are `kubernetes`, `local`, `process`, `slurm`, `ssh`"),
    ],
)
def test_what_the_language_has_no_longer_is_named_with_what_it_has(written: str, said: str) -> None:
    (told,) = load_text(EVALUATED, "test.forge", overrides=[written]).reporter
    assert told.severity == "error"
    assert said in told.help


def test_every_argument_is_in_the_table() -> None:
    given = {f"{made.name}.{p.name}" for made in CONSTRUCTORS for p in made.params}
    forms = (form for unit in OPERATIONS for form in unit.forms)
    given |= {f"{form.method}.{count}" for form in forms for count in form.counts}
    assert given == WRITTEN.keys()


@pytest.mark.parametrize("name", WRITTEN)
def test_an_argument_changes_the_job_and_is_read(name: str, tmp_path: Path) -> None:
    text, old, new = WRITTEN[name]
    (tmp_path / "model").mkdir()
    for file in ("a.jsonl", "a.parquet", "a.x"):
        (tmp_path / file).write_text("{}\n")
    before, after = (lowered(each, tmp_path).job for each in (text, changed(text, (old, new))))
    assert set(fields(before, after)) & read()


@pytest.mark.full
@pytest.mark.parametrize(("kind", "name"), AUTOS)
def test_what_the_plan_chooses_is_in_the_job_as_if_it_were_written(
    kind: str, name: str, folder: Path
) -> None:
    address = NAMES[kind] + f".{name}" if kind in NAMES else kind
    auto = lowered(EVALUATED, folder, f"{address}=auto").job
    assert [*auto.chosen] == [address]
    written = lowered(EVALUATED, folder, *choices(auto.chosen)).job
    assert {*fields(auto, written)} <= {("Job", "chosen")}


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(kind, each) for kind in SERVICES for each in SERVICES[kind].support],
    ids=lambda each: getattr(each, "setting", each),
)
def test_what_is_not_carried_out_is_refused(kind: str, limit: Limit, folder: Path) -> None:
    given = SERVICES[kind].setting(limit.setting)
    assert given is not None
    amount = "true" if given.type.base == "bool" else str(limit.most + 1)
    amount = limit.words[0] if limit.words else amount
    settings = [f"{NAMES[kind]}.{limit.setting}={amount}", f"{NAMES[kind]}.procs=4"]
    settings += [f"{NAMES[kind]}.{limit.beside}=2"] if limit.beside else []
    settings += [f"{NAMES[kind]}.device={limit.device}"] if limit.device else []
    headed = ("titan(policy)", "titan(value_head(policy))")
    text = changed(EVALUATED, headed) if limit.head else EVALUATED
    found = [d for d in lower_of(text, *settings, folder=folder)[1] if d.code == "P216"]
    assert [d.help for d in found] == [limit.instead]
