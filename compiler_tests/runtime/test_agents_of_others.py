"""The environments of docs/guide/agents.md play as the page says."""

import asyncio
import json
import re
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import pytest

from forgedsl.environment import Task, Turn
from forgedsl.tool_calls import calls_in

PAGE = Path(__file__).parents[2] / "docs/guide/agents.md"
NAMES = ["Ana Chardin", "Bob Beck", "Carl Dunn", "Dora Ek", "Eva Fo", "Gil Hu"]


def environment(file, name, **given):
    text = PAGE.read_text("utf-8")
    (code,) = re.findall(rf"^```python envs/{file}\n(.*?)^```$", text, re.S | re.M)
    names = {}
    exec(code, names)
    return names[name](**given)


def step(env, text, number=0):
    found = env.step(Turn(text=text, calls=calls_in(text), number=number))
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def test_a_list_that_is_sorted_turn_by_turn_earns_one():
    env = environment("alphabet.py", "Alphabet", turns=3, names=2)
    start = env.reset(Task(text="", target=NAMES), Random(5))
    assert "Sort these names" in start.observation
    earned, done = 0.0, False
    for turn in range(3):
        tag = "combined_alphabetical_sorted" if turn else "alphabetical_sorted"
        made = step(env, f"<{tag}>\n{env.wanted(turn)}\n</{tag}>", turn)
        earned, done = earned + made.rewards["sorted"], made.done
        if done:
            break
        assert "Now sort ALL" in made.observation
    assert (done, pytest.approx(1.0)) == (True, earned)
    assert turn > 0


def test_an_answer_without_a_list_earns_nothing():
    env = environment("alphabet.py", "Alphabet", turns=1)
    env.reset(Task(text="", target=NAMES), Random(1))
    assert step(env, "Ana, Bob").rewards == {"sorted": 0.0}


def test_a_search_finds_passages_and_the_answer_is_compared_as_text(tmp_path):
    passages = tmp_path / "p.txt"
    passages.write_text("Paris is the capital of France.\nRome lies in Italy.\n")
    env = environment("search.py", "Search", passages=str(passages), top=1)
    env.reset(Task(text="", target=["The Paris"]), Random(1))
    assert (
        step(env, "I think.").observation
        == "\nThis was neither <search>...</search> nor <answer>...</answer>. Try again.\n"
    )
    seen = step(env, "<search> capital of France </search>", 1)
    assert (
        seen.observation
        == "\n\n<information>Doc 1: Paris is the capital of France.</information>\n\n"
    )
    end = step(env, "<answer> paris! </answer>", 2)
    assert (end.done, end.rewards) == (True, {"exact": 1.0, "found": 1.0})


def test_a_search_engine_is_asked_as_that_of_the_recipe():
    asked = []

    class Retriever(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            found = {"result": [[{"contents": "Paris is the capital of France."}]]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *words):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Retriever) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        url = f"http://127.0.0.1:{server.server_port}/retrieve"
        env = environment("search.py", "Search", url=url)
        env.reset(Task(text="", target=["Paris"]), Random(1))
        seen = step(env, "<search>France</search>")
        server.shutdown()
    assert asked == [{"queries": ["France"], "topk": 3, "return_scores": False}]
    assert "Doc 1: Paris is the capital of France." in seen.observation


def test_lines_are_counted_as_the_page_says():
    text = PAGE.read_text("utf-8")
    written = {}
    for section in text.split("\n## ")[1:]:
        blocks = re.findall(r"^```\w+ \S+\n(.*?)^```$", section, re.S | re.M)
        if not blocks:
            continue
        rows = [line.strip() for block in blocks for line in block.splitlines()]
        name = section.partition("\n")[0]
        written[name] = sum(bool(row) and not row.startswith(("#", "//")) for row in rows)
    told = re.findall(r"^\| `?(\w+)(?:\.py)?`? .*\| (\d+) \|$", text, re.M)
    assert {name: int(count) for name, count in told} == written


def test_siblings_are_dealt_the_same_cards_and_a_wrong_form_costs_ten():
    hands = [environment("blackjack.py", "Blackjack") for _ in range(2)]
    starts = [env.reset(Task(text=""), Random(7)).observation for env in hands]
    assert starts[0] == starts[1]
    end = step(hands[0], "<answer>STAND</answer>")
    assert end.done
    assert end.rewards["reward"] == (3.0 if end.rewards["won"] else -1.0)
    assert step(hands[1], "STAND").rewards["reward"] == -10.0


def test_a_hand_that_is_hit_for_ever_ends():
    env = environment("blackjack.py", "Blackjack")
    env.reset(Task(text=""), Random(3))
    turns = [step(env, "<answer>hit</answer>", n) for n in range(1)]
    while not turns[-1].done:
        turns.append(step(env, "<answer>hit</answer>", len(turns)))
    assert len(turns) <= 11


def test_the_database_is_read_and_cannot_be_written(tmp_path):
    path = tmp_path / "g.db"
    with sqlite3.connect(path) as made:
        made.execute("create table interactions (a text)")
        made.execute("insert into interactions values ('JNKK')")
    env = environment("genes.py", "Genes", database=str(path))
    env.reset(Task(text="", target="yes"), Random(1))
    call = '<tool_call>{"name": "query_biogrid", "arguments": {"sql_command": "%s"}}</tool_call>'
    (said,) = step(env, call % "select a from interactions where a like '%JN%'").observation
    assert said["content"] == "[('JNKK',)]"
    (said,) = step(env, call % "delete from interactions", 1).observation
    assert said["content"].startswith("error: attempt to write a readonly database")
    end = step(env, "*Yes*", 2)
    assert (end.done, end.rewards["correct"]) == (True, 0.6)
    assert end.rewards["queries"] == pytest.approx(0.4 - 0.5 - 2.0)
