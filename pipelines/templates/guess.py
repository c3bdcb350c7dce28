"""The agent, a program of its own: it asks the policy for a sum until it is right.

It needs no package, and nothing of ForgeDSL. A run starts it for each trajectory, with
FORGE_TASK (a file with the dataset's row), OPENAI_BASE_URL, OPENAI_API_KEY and FORGE_MODEL. The
last line that it prints is the reward: a number, or a JSON object with a number for each part.
"""

import json
import os
import re
import urllib.request

GUESSES = 3
ANSWER = re.compile(r"<answer>(\d{1,4})</answer>")


def ask(messages: list[dict[str, str]]) -> tuple[str, bool]:
    """Return an answer of the policy, and True if it is complete."""
    body = json.dumps({"model": os.environ["FORGE_MODEL"], "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"] == "stop"


def main() -> None:
    with open(os.environ["FORGE_TASK"], encoding="utf-8") as file:
        task = json.load(file)
    messages, solved = task["messages"], 0.0
    for _ in range(GUESSES):
        text, complete = ask(messages)
        found = ANSWER.search(text)
        if found is not None and found[1] == task["target"]:
            solved = 1.0
        if solved or not complete:
            break
        hint = "?" if found is None else "+" if int(found[1]) < int(task["target"]) else "-"
        messages.append({"role": "assistant", "content": text})
        messages.append({"role": "user", "content": hint + task["text"]})
    print(json.dumps({"solved": solved}))


if __name__ == "__main__":
    main()
