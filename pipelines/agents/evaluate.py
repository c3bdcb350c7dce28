"""The agent: a task of Inspect. Its solver asks the policy, its scorer gives the reward.

    python3 -m venv /venvs/inspect
    /venvs/inspect/bin/python -m pip install inspect-ai==0.3.285 openai
    forgec run inspect.forge interpreter=/venvs/inspect/bin/python

A task of your own goes into TASKS, with one sample, and its name behind `--task`.
"""

import argparse
import json
import os
import sys

try:
    from inspect_ai import Task, eval, task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes, value_to_float
    from inspect_ai.solver import generate
except ImportError as error:
    sys.exit(f"{error}: {sys.executable} -m pip install inspect-ai==0.3.285 openai")


@task
def sums(text: str, target: str) -> Task:
    """One sum, answered once."""
    sample = Sample(input=text, target=f"<answer>{target}</answer>")
    return Task(dataset=[sample], solver=generate(), scorer=includes())


TASKS = {"sums": sums}


def main() -> None:
    parser = argparse.ArgumentParser(description="One sample of a task of Inspect.")
    parser.add_argument("--task", choices=TASKS, required=True)
    chosen = TASKS[parser.parse_args().task]
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        given = json.load(file)
    (log,) = eval(
        chosen(given["text"], given["target"]),
        model="openai-api/openai/" + os.environ["FORGE_MODEL"],  # OPENAI_BASE_URL, OPENAI_API_KEY
        display="none",
        log_dir="logs",
        log_format="json",
    )
    if log.status != "success":
        sys.exit(f"{log.error.message if log.error else log.status}")
    (score,) = log.samples[0].scores.values()
    print(json.dumps({"solved": value_to_float()(score.value)}))


if __name__ == "__main__":
    main()
