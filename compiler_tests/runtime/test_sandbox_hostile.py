"""Programs that mean harm: each costs its own sample, and leaves no process and no file behind.

All are bounded by themselves (a fork bomb of 200 forks), and run only at levels whose probe was
refused everything. `harm` is what a program found it could do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from forgedsl_runtime.sandbox import Limits, SandboxError, choose, evaluate, judge, levels, process

LEVELS = [level for level in levels.LEVELS if not levels.problem(level)]
LIMITS = Limits(wall=20.0, cpu=2, memory=256 << 20, files=4 << 20, file=1 << 20)
QUICK = replace(LIMITS, wall=0.5, cpu=1)
WAITING = ("deep JSON", "what the pipe brings")
"""programs that wait until their time is over: they get less of it"""
ATTEMPT = """
import os
harm = None
def attempt(act, *args):
    global harm
    try:
        act(*args)
    except (OSError, ImportError, RuntimeError, MemoryError, ValueError):
        harm = False
    else:
        harm = True
"""
NAMESPACE_FLAGS = "0x10000000 | 0x20000"
SYSCALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    if libc.syscall(*args) < 0:
        raise OSError(ctypes.get_errno(), "refused")
"""
HARMFUL = {
    "fork bomb": "def bomb():\n    for _ in range(200):\n        os.fork()\nattempt(bomb)",
    "setsid": """
        def away():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    import time
                    time.sleep(60)
                os._exit(0)
        attempt(away)""",
    "threads": """
        import threading, time
        def many():
            for _ in range(2000):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        attempt(many)""",
    "heap": "attempt(lambda: [bytearray(16 << 20) for _ in range(64)])",
    "tmpfs": """
        def fill():
            for i in range(64):
                with open(f'f{i}', 'wb') as file:
                    file.write(bytes(1 << 19))
        attempt(fill)""",
    "inodes": "attempt(lambda: [os.mkdir(f'd{i}') for i in range(5000)])",
    "big file": "attempt(lambda: open('big', 'wb').write(bytes(2 << 20)))",
    "connect": """
        import socket
        attempt(lambda: socket.create_connection(('127.0.0.1', PORT), timeout=1))""",
    "abstract socket": """
        import socket
        attempt(lambda: socket.socket(socket.AF_UNIX).connect('\\0' + 'forge-hostile-PID'))""",
    "write outside": "attempt(open, 'CANARY', 'w')",
    "new file outside": "attempt(open, 'CANARY.new', 'w')",
    "delete outside": "attempt(os.unlink, 'CANARY')",
    "change modes outside": "attempt(os.chmod, 'CANARY', 0)",
    "ptrace": f"{SYSCALL}attempt(call, 101, 16, PID, 0, 0)",
    "read memory": "attempt(open, '/proc/PID/mem', 'rb')",
    "nested userns": f"{SYSCALL}attempt(call, 272, {NAMESPACE_FLAGS})",
    "mount": f"{SYSCALL}attempt(call, 165, b'none', b'/tmp', b'tmpfs', 0, b'')",
    "outlive the caller": f"{SYSCALL}attempt(call, 157, 1, 0, 0, 0, 0)",
    "shared memory": f"{SYSCALL}attempt(call, 29, 0, 1 << 30, 0o1600)",
    "memfd": "attempt(lambda: os.memfd_create('x'))",
    "raise limits": """
        import resource
        attempt(resource.setrlimit, resource.RLIMIT_AS, (1 << 40, 1 << 40))""",
    "limits of another": """
        import resource
        attempt(resource.prlimit, PID, resource.RLIMIT_NOFILE, (10, 10))""",
    "kill another": "attempt(os.kill, PID, 0)",
    "kill everybody": """
        if os.getpid() == 1:  # of its own namespace, else only asked whether it could
            attempt(os.kill, -1, 9)
        else:
            attempt(os.kill, -1, 0)""",
    "stop the caller": "attempt(os.kill, os.getppid() or PID, 0)",
}
ENDLESS = {
    "spin": "while True: pass",
    "C-level pow": "pow(3, 10**10)",
    "sleep": "import time; time.sleep(60)",
    "self-stop": "import os, signal, time; os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)",
    "detached": "import ctypes, os, time\nctypes.CDLL(None).prctl(1, 0)\n"
    "try:\n    os.setsid()\nexcept OSError: pass\ntime.sleep(60)",
    "segfault": "import ctypes; ctypes.string_at(0)",
    "output flood": "import os\nwhile True:\n    for fd in range(3, 64):\n        try:\n"
    "            os.write(fd, b'x' * 65536)\n        except OSError: pass",
    "print flood": "while True: print('x' * 65536)",
    "deep recursion": "def f(): return f()\nimport sys\nsys.setrecursionlimit(10**9)\nf()",
    "pipe held open": "import os, time\nif not os.fork(): time.sleep(60)\nos._exit(0)",
}
LYING = {
    "frame walk": """
        import sys
        def double(x):
            frame, seen = sys._getframe(1), []
            while frame:
                seen += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]
                frame = frame.f_back
            wanted = int('271827') + 1
            return wanted if str(wanted) in repr(seen) else None""",
    "every object": """
        import gc
        def double(x):
            wanted = int('271827') + 1
            held = [o for o in gc.get_objects() if type(o) in (str, list, dict, tuple)]
            return wanted if str(wanted) in repr(held) else None""",
    "_exit(0)": "import os; os._exit(0)",
    "sys.exit": "raise SystemExit(0)",
    "patched __eq__": """
        class Equal(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            def __bool__(self): return True
            __hash__ = int.__hash__
        def double(x): return Equal(1)""",
    "no value": "class E:\n    __eq__ = lambda a, b: True\ndef double(x): return E()",
    "deep JSON": """
        import os
        def double(x):
            for fd in range(3, 10):
                try: os.write(fd, b'[0,' + b'[' * 200000 + b']' * 200000 + b']\\n')
                except OSError: pass
            os._exit(0)""",
    "own lines": """
        import os
        for fd in range(3, 10):
            for line in (b'[0,true]\\n', b'true\\n', b'[0,{"o":"x"}]\\n', b'[-1,true]\\n'):
                try: os.write(fd, line)
                except OSError: pass
        os._exit(0)""",
    "endless integer": "def double(x): return 10**100000",
    "patched builtins": """
        import builtins
        builtins.AssertionError = builtins.repr = builtins.isinstance = lambda *a: True
        def double(x): return 1""",
}


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "canary"
    path.write_text("alive")
    path.chmod(0o666)
    yield path
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("alive", 0o666)
    assert [p.name for p in tmp_path.iterdir()] == ["canary"]


@pytest.fixture
def bystander() -> Iterator[int]:
    with subprocess.Popen(["sleep", "100"]) as other:
        yield other.pid
        assert other.poll() is None
        other.kill()


OURS = f"of test process {os.getpid()}"


@pytest.fixture(autouse=True)
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mark the command line of each sandbox that this process starts: others may test beside it."""
    monkeypatch.setattr(process, "BOOT", f"{process.BOOT}  # {OURS}")


def leftovers() -> list[int]:
    """Processes of sandboxes that this process started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line, pid = (folder / "cmdline").read_bytes(), int(folder.name)
        except OSError:
            continue
        if b"inside.main" in line and OURS.encode() in line:
            found.append(pid)
    return found


def test_a_running_sandbox_is_found() -> None:
    limits = replace(QUICK, wall=3.0)
    with ThreadPoolExecutor() as pool:
        code = "import time\ndef double(x): time.sleep(100)"
        running = pool.submit(judge, code, ["assert double(2) == 4"], limits=limits)
        while not leftovers() and not running.done():
            time.sleep(0.01)
        assert leftovers()
    assert leftovers() == []


def text_of(code: str, **values: object) -> str:
    code = ATTEMPT + textwrap.dedent(code)
    for name, value in values.items():
        code = code.replace(name, str(value))
    return code


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("level", LEVELS)
def test_what_would_harm_others_is_refused(
    level: str, name: str, canary: Path, bystander: int
) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as inet,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        abstract.bind(f"\0forge-hostile-{bystander}")
        abstract.listen()
        port = inet.getsockname()[1]
        code = text_of(HARMFUL[name], CANARY=canary, PID=bystander, PORT=port)
        answers = evaluate(code, [("value", "harm")], level=level, limits=LIMITS)
    harmless = {"kill everybody"} if level == "namespaces" else set()  # it was alone there
    assert answers.values.get(0) is False or name in harmless, answers
    assert leftovers() == []


@pytest.mark.parametrize("level", [x for x in LEVELS if x != "seccomp"])
def test_files_outside_cannot_be_read(level: str, canary: Path) -> None:
    code = text_of("attempt(lambda: open('CANARY').read())", CANARY=canary)
    assert evaluate(code, [("value", "harm")], level=level, limits=LIMITS).values == {0: False}


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("level", LEVELS)
def test_what_does_not_end_well_costs_its_sample_only(level: str, name: str) -> None:
    code = f"def double(x): return 2 * x\n{ENDLESS[name]}"
    assert judge(code, ["assert double(2) == 4"], limits=QUICK, level=level) == [False]
    assert leftovers() == []


def limits_of(name: str) -> Limits:
    return replace(LIMITS, wall=4.0) if name in WAITING else LIMITS


@pytest.mark.parametrize("name", LYING)
def test_no_lie_makes_a_wrong_program_right(name: str) -> None:
    cases = ["assert double(2) == 271828", "assert double(2) + 0 == 271828"]
    assert judge(textwrap.dedent(LYING[name]), cases, limits=limits_of(name)) == [False] * 2


FORMS = [
    "assert double(2) == 271828",
    "res = double(2) == 271828\nassert res",
    "ok = [double(2) == 271828]\nassert all(ok)",
    "xs = [3, 1, 4, 2]\nassert double(xs) == sorted(xs) + [271828 + 1]",
    "want = 271828\ngot = double(2)\nassert got == want and not got != want",
    "assert want == double(2)",
    "assert abs(double(2) - 271828) < 1e-6",
    "assert double(2) - 271828 == 0",
    "assert not double(2) - 271828",
    "assert double(2) + 0 == 271828",
    "assert {'a': double(2)} == {'a': 271828}",
    "assert (double(2), 1) == (271828, 1)",
    "assert double(2) in [271828]",
    "assert 271828 in double([271828 // 2])",
    "assert double('x').startswith('271828')",
    "assert double('x').endswith('271828') and double('x').isdigit()",
    "assert double('x').count('271828') and double('x').find('271828') >= 0",
    "assert {271828}.issubset(double({1}))",
    "assert double({1}).issuperset({271828}) and not double({1}).isdisjoint({271828})",
    "assert [double(2)].count(271828) == 1 and [double(2)].index(271828) == 0",
    "assert max(double(2), 0) == 271828 and str(double(2)) == '271828'",
    "assert isinstance(double(2), int) and double(2) >= 271828 >= double(2)",
    "assert type(double(2)) == int and 271828 <= double(2)",
    "assert sorted([double(2)], key=lambda v: v == 271828) == [271828]",
    "for i in range(2):\n    assert double(i) == 271828",
    "def check(f):\n    return f(2) == 271828\nassert check(double)",
    "def check(f):\n    assert f(2) == 271828\ncheck(double)",
    "from decimal import Decimal as D\nassert double(D('1.5')) == D('271828')",
    "assert double(Decimal('1.5')) == Decimal('271828')",
    "import math\nassert math.isclose(double(2), 271828)",
    "assert Solution().double(2) == 271828",
    "assert abs(Solution().double(2) - 271828) < 1e-6",
    "assert 271828 in Solution().double([2])",
    "assert [double(lambda v: v + i) == 271828 for i in range(3)] == [True] * 3",
    "assert 271828 == [v for v in double([1])][0] if double(2) else False",
]
EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    __sub__ = __rsub__ = __add__ = __radd__ = __abs__ = lambda self, *a: self
    __getattr__ = lambda self, name: lambda *a: True
    __getitem__ = __iter__ = lambda self, *a: iter([Equal()])
    __hash__ = lambda self: hash(271828 - 1 + 1 if False else 0)
    __bool__ = __len__ = lambda self: 1
    __class__ = property(lambda self: int)
class Decimal(Equal):
    def __init__(self, *a): pass
"""
LIARS = {
    name: textwrap.dedent(code)
    for name, code in {
        "equal to everything": EQUAL + "def double(x): return Equal()",
        "a number that is equal": """
            class Equal(float):
                __eq__ = __lt__ = __le__ = __gt__ = __ge__ = lambda s, o: True
                __ne__ = lambda s, o: False
                __sub__ = __rsub__ = __add__ = __radd__ = lambda s, o: Equal(0)
                __hash__ = float.__hash__
            def double(x): return Equal(1)""",
        "a text that is equal": """
            class Equal(str):
                __eq__ = __contains__ = startswith = endswith = isdigit = lambda s, *o: True
                count = find = index = lambda s, *o: 1
                __ne__ = lambda s, o: False
                __hash__ = str.__hash__
            def double(x): return Equal('1')""",
        "a list that is equal": """
            class Equal(list):
                __eq__ = __contains__ = issuperset = issubset = lambda s, o: True
                __ne__ = lambda s, o: False
                __hash__ = lambda s: 0
            def double(x): return Equal([1])""",
        "patched builtins": """
            import builtins
            for name in ('sorted', 'all', 'any', 'abs', 'isinstance', 'type', 'len', 'max', 'str'):
                setattr(builtins, name, lambda *a, **k: 1)
            import math, operator
            math.isclose = operator.eq = operator.contains = lambda *a: True
            def double(x): return 1""",
        "its own names": """
            def sorted(x, key=None): return [1]
            def abs(x): return 0
            all = any = isinstance = check = type = max = lambda *a: True
            want = 1
            def double(x): return 1""",
        "frames and objects": """
            import gc, sys
            def double(x):
                frame, seen = sys._getframe(0), []
                while frame:
                    seen += [frame.f_locals, frame.f_globals, frame.f_code.co_consts]
                    frame = frame.f_back
                seen += [o for o in gc.get_objects() if type(o) in (str, list, dict, tuple)]
                text = repr(seen)
                wanted = int('271827') + 1
                return wanted if str(wanted) in text else None""",
        "what the pipe brings": """
            import os
            def double(x):
                for fd in range(3, 32):
                    os.set_blocking(fd, False) if os.path.exists(f'/proc/self/fd/{fd}') else None
                    try: said = os.read(fd, 1 << 20)
                    except OSError: continue
                    if str(int('271827') + 1).encode() in said: return int('271827') + 1""",
        "answers of its own": """
            import os
            def double(x):
                for fd in range(3, 32):
                    for line in (b'{"a":true,"h":[]}', b'[0,true]', b'{"e":[[0,"","E","int"],[]]}'):
                        try: os.write(fd, line + b'\\n')
                        except OSError: pass""",
        "the link itself": """
            import gc
            def double(x):
                for o in gc.get_objects():
                    if type(o).__name__ == 'Program':
                        for question in (('call', 0, (), ()), ('get', 0, 'x'), ('next', 0)):
                            try: o.ask(*question)
                            except Exception: pass
                return x""",
        "what it was given": """
            def double(x):
                try: return x.__globals__['want']
                except Exception: pass
                if isinstance(x, list): x.clear(); return x
                return x""",
        "always true": "def double(x): return True",
    }.items()
}  # fmt: skip


@pytest.mark.cover
@pytest.mark.parametrize("name", LIARS)
@pytest.mark.parametrize("level", LEVELS)
def test_no_form_of_a_case_lets_a_program_make_itself_right(level: str, name: str) -> None:
    code = f"{LIARS[name]}\nclass Solution:\n    def double(self, x): return double(x)\n"
    together = judge(code, FORMS, limits=limits_of(name), level=level)
    assert [form for form, passed in zip(FORMS, together, strict=True) if passed] == []


def test_each_form_is_passed_by_who_knows_the_answer() -> None:
    knows = """
from decimal import Decimal
def double(x):
    if isinstance(x, list):
        return sorted(x) + [271829] if len(x) == 4 else [271828]
    return {str: '271828', set: {271828}, Decimal: Decimal(271828)}.get(type(x), 271828)
class Solution:
    def double(self, x): return double(x) if x == 2 else [271828]
"""
    assert [form for form, ok in zip(FORMS, judge(knows, FORMS), strict=True) if not ok] == []


def test_processes_are_counted_where_they_are_allowed() -> None:
    if "namespaces" not in LEVELS:
        pytest.skip("this host offers no namespaces")
    code = """
import os, time
made = 0
for _ in range(100):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(60)
    except OSError:
        break
    made += 1
"""
    limits = replace(LIMITS, processes=4)
    answers = evaluate(code, [("value", "made")], level="namespaces", limits=limits)
    assert answers.values[0] == 4 + process.THREADS
    assert leftovers() == []


@pytest.mark.parametrize("level", LEVELS)
def test_a_killed_caller_takes_the_program_with_it(level: str) -> None:
    text = (
        "from forgedsl_runtime.sandbox import Limits, evaluate, process\n"
        f"process.BOOT = {process.BOOT!r}\n"
        f"evaluate('import time; time.sleep(60)', [], level={level!r}, limits=Limits())"
    )
    caller = subprocess.Popen([sys.executable, "-c", text])
    until(lambda: len(leftovers()) > (level == "namespaces"))
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    until(lambda: not leftovers())


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_unknown_level_and_one_that_is_not_offered_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SandboxError, match="no sandbox level 'strong'; the levels are namespaces"):
        choose("strong")
    real = levels.problem
    monkeypatch.setattr(
        levels, "problem", lambda x: "not permitted" if x in ("namespaces", "bwrap") else real(x)
    )
    monkeypatch.setenv("FORGE_SANDBOX", "namespaces")
    with pytest.raises(SandboxError, match=r"level namespaces \(namespaces: not permitted\); it o"):
        choose()
    assert choose("landlock") in levels.LEVELS[2:]


def test_a_level_that_keeps_no_promise_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    levels.problem.cache_clear()
    monkeypatch.setattr(levels, "PROBE", "def refused(*args): return False\nfork = connect = 0")
    try:
        assert levels.problem("seccomp") == (
            "the sandbox failed to block starting processes, writing files, signals, the network"
        )
    finally:
        levels.problem.cache_clear()
