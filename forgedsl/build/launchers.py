"""A plan as what schedulers take: an sbatch script, and Kubernetes manifests.

    Job + Plan -> hosts, GPUs and time of the allocation -> job.sbatch | k8s.yaml

Both ask for the hosts and GPUs that the plan places processes on and run job.json in them. Settings
are those of `launcher` if it is of that kind; a program with another launcher gets what the plan
knows. With several hosts each starts one Monarch worker, whose addresses are in FORGE_WORKERS.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forgedsl.lower.job import Job
    from forgedsl.plan.plan import Plan

PORT = 26600
WORKER = (
    'python -c "from socket import getfqdn; from monarch.actor import run_worker_loop_forever as '
    'run; run(address=\\"tcp://\\" + getfqdn() + \\":{port}\\", ca=\\"trust_all_connections\\")"'
)
IMAGE = "forgedsl:latest"
CLAIM = "forge-runs"
MOUNT = "/forge"
GIB = 2**30


def sbatch_text(job: Job, plan: Plan) -> str:
    """The script for `sbatch`."""
    args = job.launcher.args if job.launcher.kind == "slurm" else {}
    options: list[tuple[str, Any]] = [
        (name, args[name]) for name in ("partition", "account", "qos", "constraint") if name in args
    ]
    if "time" in args:
        options.append(("time", _clock(args["time"])))
    cpus, memory = _declared(plan, "cpus"), _declared(plan, "memory")
    if cpus is not None:
        options.append(("cpus-per-task", cpus))
    if args.get("exclusive", True):
        options += [("exclusive", None), ("mem", "0")]  # 0: all of a host
    elif memory is not None:
        options.append(("mem", f"{memory // GIB}G"))
    options += [_option(text) for text in args.get("options") or ()]
    return _rendered("job.sbatch.j2", job, plan, options=options)


def k8s_text(job: Job, plan: Plan) -> str:
    """Manifests for `kubectl apply`: a Job with one pod a host, and a Service that names them."""
    args = job.launcher.args if job.launcher.kind == "kubernetes" else {}
    pod = re.sub(r"[^a-z0-9]+", "-", job.name.lower()).strip("-")[:50] or "forge"
    hosts = _hosts(job)[0]
    return _rendered(
        "k8s.yaml.j2",
        job,
        plan,
        pod=pod,
        namespace=args.get("namespace", "default"),
        image=args.get("image", IMAGE),
        account=args.get("service_account"),
        labels=[tuple(label.split("=", 1)) for label in args.get("labels") or ()],
        limits=_limits(plan, gpus=_hosts(job)[1]),
        claim=CLAIM,
        mount=MOUNT,
        workers=",".join(f"tcp://{pod}-{i}.{pod}:{PORT}" for i in range(hosts)),
    )


def _rendered(template: str, job: Job, plan: Plan, **more: Any) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("forgedsl.build"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    hosts, gpus = _hosts(job)
    return environment.get_template(template).render(
        title=" ".join(job.summary[0].split()),
        compiler=job.compiler,
        name=re.sub(r"[^A-Za-z0-9_.-]+", "-", job.name).strip("-") or "forge",
        hosts=hosts,
        gpus=gpus,
        services=[f"{mesh.service}: {mesh.text} on {mesh.device}" for mesh in plan.meshes],
        port=PORT,
        worker=WORKER.format(port=PORT),
        **more,
    )


def _declared(plan: Plan, name: str) -> int | None:
    """What `cluster` says of a host; None where the plan took an assumed one."""
    setting = plan.request.program.singletons["cluster"].settings[name]
    return None if setting.origin.layer == "default" else int(setting.value)


def _limits(plan: Plan, *, gpus: int) -> list[tuple[str, Any]]:
    """What a pod may use."""
    memory = _declared(plan, "memory")
    found = [
        ("nvidia.com/gpu", gpus or None),
        ("cpu", _declared(plan, "cpus")),
        ("memory", None if memory is None else f"{memory // GIB}Gi"),
    ]
    return [(name, value) for name, value in found if value is not None]


def _hosts(job: Job) -> tuple[int, int]:
    """Hosts, and GPUs on the fullest of them, that processes are placed on."""
    places = [place for service in job.services.values() for place in service.mesh.places]
    hosts = 1 + max((place.host for place in places), default=0)
    return hosts, max((1 + max(place.gpus) for place in places), default=0)


def _clock(seconds: float) -> str:
    """As Slurm takes it: `1-12:30:00`, days left out where there are none."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def _option(text: str) -> tuple[str, str | None]:
    """`--mail-type=END` or `mail-type=END`."""
    name, equals, value = text.lstrip("-").partition("=")
    return name, value if equals else None
