"""Closing lines of a run: the verdict, values before and after, and the results."""

from __future__ import annotations

import shlex
from pathlib import Path

from forgedsl import surface
from forgedsl.diagnostics import counted
from forgedsl.runs.checkpoints import last_step, resume_command
from forgedsl.runs.data import RunData, load_run
from forgedsl.runs.text import duration, number
from forgedsl.runs.verdict import edge_size, edges, evals, points, verdict


def summary(run_dir: Path, code: int | None, data: RunData | None = None) -> str:
    """Return the closing lines of `forgec run`. A run that was killed, or goes on, has no exit
    code: None. `data` is what the folder says, if it has been read.

    Example:
        grpo_math finished: 250 steps in 58 s
          verdict      it learned
          reward       0.571 -> 0.942   (first and last 20 steps)
          held_out     0.563 -> 0.931   (step 0 and 250)
          speed        balanced: the trainer waited 8% of the time, the sampler 3%
          report       runs/grpo_math-20261120-101500/report.html
    """
    data = data or load_run(run_dir)
    lines = [headline(data, code)]
    message = str(data.outcome.get("message") or "")
    if message:
        lines.append(f"  {message}")
    for label in ("origin", "remedy"):
        if data.outcome.get(label):
            lines.append(f"  {label:<12} {data.outcome[label]}")
    told = "the checkpoint of step" in message  # the message already says what to continue from
    if code != 0 and not told and not data.running and (command := resume_command(run_dir)):
        lines.append(f"  {'continue':<12} {command}   (step {last_step(run_dir)} is saved)")
    findings = verdict(data)
    # the next lines have its figures
    lines += [
        f"  verdict      {f.text.partition(':')[0]}" for f in findings if f.label == "verdict"
    ]
    reward = points(data, "reward_mean")
    pair = edges(reward)
    if pair:
        note = f"first and last {counted(edge_size(reward), 'step')}"
        lines.append(f"  {'reward':<12} {number(pair[0])} -> {number(pair[1])}   ({note})")
    for name, pts in evals(data).items():
        if len(pts) > 1:
            note = f"step {pts[0][0]:.0f} and {pts[-1][0]:.0f}"
            lines.append(f"  {name:<12} {number(pts[0][1])} -> {number(pts[-1][1])}   ({note})")
    lines += [f"  {f.label:<12} {f.text}" for f in findings if f.label != "verdict"]
    lines += places(data, run_dir)
    return "\n".join(lines)


def headline(data: RunData, code: int | None) -> str:
    words = {
        None: "running" if data.running else "killed",
        0: "finished",
        75: "preempted",
        130: "interrupted",
    }.get(code, str(data.outcome.get("status", "failed")))
    so_far = " so far" if data.running else ""
    done = counted(data.rows[-1]["step"] if data.rows else 0, "step")
    profile = f" (profile {data.job.profile})" if data.job.profile else ""
    mark = "REHEARSAL, nothing was trained: " if data.rehearsal else ""
    return f"{mark}{data.job.name}{profile} {words}: {done} in {duration(data.seconds)}{so_far}"


def places(data: RunData, run_dir: Path) -> list[str]:
    """Return a line per result, and the command that exports weights from a checkpoint."""
    step = last_step(run_dir)
    export = data.job.checkpoint.export or f"exports/step-{step}"
    found = [
        ("report", "report.html"),
        ("metrics", "metrics.jsonl"),
        *([("checkpoints", "checkpoints")] if step else ()),
        ("export", export),
    ]
    lines = [f"  {what:<12} {run_dir / name}" for what, name in found if (run_dir / name).exists()]
    if step and not data.rehearsal and not (run_dir / export).exists():
        how = surface.call(f"export {shlex.quote(str(run_dir))}", f'open_run("{run_dir}").export()')
        lines.append(f"  {'export':<12} {how}   (Hugging Face format)")
    return lines
