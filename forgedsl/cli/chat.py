"""`forgec try RUN`: ask the exported policy of a run, in the terminal or with one prompt.

RUN --exported--> folder in Hugging Face format --ChatModel--> answers
--against base: the model that the run began with answers each prompt too
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgedsl.cli.overrides import UsageError, refuse
from forgedsl.cli.parser import Parser, at_least, whole
from forgedsl.cli.waiting import waiting

if TYPE_CHECKING:
    from forgedsl.lower.job import Job, Sampling

BASE = "base"
MAX_TOKENS = 256
"""longest answer of a policy whose run samples nothing"""


def parser() -> Parser:
    parser = Parser("try", command.__doc__, "RUN")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, or a model folder")
    parser.add_argument(
        "--prompt", metavar="TEXT", help="answer this and end; otherwise ask in the terminal"
    )
    parser.add_argument(
        "--against", metavar="base | RUN", help="show what another model answers too"
    )
    parser.add_argument(
        "--step", type=whole, metavar="N", help="the export of this step; default: the newest"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message of the chat")
    parser.add_argument(
        "--plain", action="store_true", help="continue the text as it is, without chat template"
    )
    parser.add_argument("--temperature", type=float, metavar="T", help="0: the likeliest tokens")
    parser.add_argument("--max-tokens", type=at_least(1), metavar="N", help="longest answer")
    parser.add_argument("--seed", type=whole, metavar="N", help="the same answers again")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the command; the result is its exit code."""
    return parser().run(command, arguments)


def command(
    run: Path,
    prompt: str | None,
    against: str | None,
    step: int | None,
    system: str | None,
    plain: bool,
    temperature: float | None,
    max_tokens: int | None,
    seed: int | None,
) -> None:
    """Ask the exported policy of a run.

    Without --prompt it is a chat: an empty line or Ctrl-D ends it, /new forgets what was said, and
    Ctrl-C ends an answer. Sampling is that of the run. Without a chat template, text is continued.

    Examples:
      forgec try runs/grpo_math-20261120-120000
      forgec try runs/grpo_math-20261120-120000 --prompt "12+30=" --temperature 0
      forgec try runs/grpo_math-20261120-120000 --against base
      forgec try models/after_100 --prompt "Why is the sky blue?" --max-tokens 100
    """
    try:
        if prompt == "":
            raise UsageError("--prompt is empty: write the text to answer")
        folders = {"policy": exported(run, step)}
        if against is not None:
            folders[against] = _other(run, against)
        changes = {"temperature": temperature, "max_tokens": max_tokens}
        asked = sampling_of(run, {n: v for n, v in changes.items() if v is not None})
    except UsageError as error:
        refuse("try", error)
    talk = Talk(_loaded(folders), asked, system=system, plain=plain, seed=seed)
    if prompt is not None:
        talk.say(prompt)
        return
    for name, folder in folders.items():
        print(f"{name}: {folder}", file=sys.stderr)
    for line in _lines():
        if line == "/new":
            talk.forget()
            continue
        try:
            talk.say(line)
        except KeyboardInterrupt:
            print("\n(stopped; this question is forgotten)", file=sys.stderr)


def _loaded(folders: dict[str, Path]) -> dict[str, Any]:
    with waiting("loading PyTorch") as say:
        from forgedsl_runtime.chat_model import ChatModel

        models = {}
        for name, folder in folders.items():
            say(f"loading {folder}")
            models[name] = ChatModel.load(folder)
    return models


class Talk:
    """A chat with one model, or with several that see the same questions. Each sees its own
    answers."""

    def __init__(
        self,
        models: dict[str, Any],
        sampling: Sampling,
        *,
        system: str | None = None,
        plain: bool = False,
        seed: int | None = None,
    ) -> None:
        self._models = models
        self._sampling = sampling
        self._system = system
        self._plain = plain
        self._seed = seed
        self._said: dict[str, list[dict[str, str]]] = {}
        self.forget()

    def forget(self) -> None:
        """Begin a new chat."""
        first = [] if self._system is None else [{"role": "system", "content": self._system}]
        self._said = {name: list(first) for name in self._models}

    def say(self, text: str) -> None:
        """Ask all models, and print their answers. If interrupted, the chats of all models stay as
        they were before the question."""
        before = dict(self._said)
        try:
            self._ask_all(text)
        except KeyboardInterrupt:
            self._said = before
            raise

    def _ask_all(self, text: str) -> None:
        for name, model in self._models.items():
            if len(self._models) > 1:
                print(f"--- {name}")
            if unknown := model.unknown_text(text):
                note = f"note: the tokenizer of {name} does not know {unknown}"
                print(f"{note}: the model reads a placeholder instead", file=sys.stderr)
            messages = [*self._said[name], {"role": "user", "content": text}]
            chats = model.chats and not self._plain
            answer = model.answer(
                messages if chats else text, self._sampling, seed=self._seed, streams=True
            )
            self._said[name] = [*messages, {"role": "assistant", "content": answer}]


def _lines() -> Iterator[str]:
    """What a person types, up to an empty line or the end of the input."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  # arrows and history of `input`
    while True:
        try:
            line = input("> " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            line = ""
        if not line:
            return
        yield line


def exported(run: Path, step: int | None = None) -> Path:
    """Return the folder of an exported policy. If `run` is a model folder, return it. Else return
    the export of `step`; without `step`, `checkpoint.export`, else the newest export.

    Raises:
        UsageError: there is none; the message says how to make it.
    """
    if (run / "config.json").is_file() and step is None:
        return run
    job = _job(run)
    if (run / "rehearsal.json").exists():
        raise UsageError(f"{run} is a rehearsal: nothing was trained, there are no weights")
    if step is not None:
        made = [run / f"exports/step-{step}"]
    else:
        whole = (p for p in run.glob("exports/step-*") if not p.name.endswith("-adapter"))
        by_step = sorted(whole, key=lambda p: int(p.name.partition("-")[2]))
        named = job.checkpoint.export
        made = [*([run / named] if named else []), *reversed(by_step)]
    found = next((each for each in made if (each / "config.json").is_file()), None)
    if found is None:
        from forgedsl.runs.checkpoints import checkpoint_steps

        which = "" if step is None else f" of step {step}"
        if not checkpoint_steps(run):
            raise UsageError(f"{run} has no export{which}, and no checkpoint to make one from")
        wanted = "" if step is None else f" --step {step}"
        raise UsageError(
            f"{run} has no export{which}; make it: forgec export {run}{wanted}. An export that was "
            "written with --to FOLDER is asked with: forgec try FOLDER"
        )
    return found


def sampling_of(run: Path, changes: dict[str, Any]) -> Sampling:
    """The sampling of a run's policy, with changes.

    Raises:
        UsageError: a value is not allowed.
    """
    from pydantic import ValidationError

    from forgedsl.lower.job import Sampling

    known: dict[str, Any] = {"max_tokens": MAX_TOKENS}
    if (run / "job.json").is_file():
        samplers = (s for s in _job(run).samplers.values() if s.served_by is None)
        known |= next((each.sampling.model_dump() for each in samplers), {})
    if changes.get("temperature", 0.0) < 0:
        raise UsageError("--temperature must be at least 0")
    try:
        return Sampling.model_validate(known | changes)
    except ValidationError as error:
        raise UsageError(str(error.errors()[0]["msg"])) from error


def _other(run: Path, against: str) -> Path:
    """Return the folder of the model that answers beside the policy: the model that the run began
    with, or the export of another run."""
    if against != BASE:
        return exported(Path(against))
    if not (run / "job.json").is_file():
        raise UsageError(f"--against base needs a run folder, and {run} is a model")
    from forgedsl_runtime.chat_model import base_folder

    return base_folder(_job(run), run.resolve())


def _job(run: Path) -> Job:
    from forgedsl.lower.job import read_job
    from forgedsl.runs.checkpoints import no_run

    if not (run / "job.json").is_file():
        raise UsageError(no_run(run))
    return read_job(run)
