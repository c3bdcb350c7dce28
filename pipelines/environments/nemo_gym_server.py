"""A resources server of NeMo-Gym, such as the one that nemo_gym.forge asks.

    python3.12 -m venv /venvs/gym
    /venvs/gym/bin/python -m pip install nemo-gym==0.4.0
    /venvs/gym/bin/python environments/nemo_gym_server.py equivalence_rule

`gym env start` of NeMo-Gym starts servers, too: it makes an environment with uv for each, and
starts Ray and a server of its own beside them. This script serves one of those that come with the
package in this process: `... SERVER [--port 8000] [FIELD=VALUE ...]`, with fields of the server's
configuration.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import resources_servers
    import uvicorn
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from omegaconf import OmegaConf
    from pydantic import ValidationError
except ImportError as error:
    sys.exit(f"{error}: {sys.executable} -m pip install nemo-gym==0.4.0")

HOST = "127.0.0.1"


def one_of(module: Any, base: type) -> Any:
    """Return the class of a module that is a subclass of `base`."""
    found = [each for each in vars(module).values() if isinstance(each, type)]
    (only,) = [
        each for each in found if issubclass(each, base) and each.__module__ == module.__name__
    ]
    return only


def checked(name: str, known: Iterable[str], what: str) -> str:
    """Return a name that is known; end the process otherwise."""
    known = sorted(known)
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1) or known
        sys.exit(f"there is no {what} {name}; did you mean {close[0]}?")
    return name


def served(name: str, port: int, given: list[str]) -> Any:
    """Return the application of a server."""
    folders = [Path(each) for each in resources_servers.__path__]
    names = [app.parent.name for folder in folders for app in folder.glob("*/app.py")]
    try:
        module = importlib.import_module(f"resources_servers.{checked(name, names, 'server')}.app")
    except ImportError as error:
        needs = next(each for each in folders if (each / name).is_dir()) / name / "requirements.txt"
        sys.exit(f"{error}: the server needs more packages, those of {needs}")
    config = one_of(module, BaseResourcesServerConfig)
    fields = dict(word.partition("=")[::2] for word in given)
    for field in fields:
        checked(field, config.model_fields, f"field of {name}")
    place = BaseServerConfig(host=HOST, port=port)
    client = ServerClient(head_server_config=place, global_config_dict=OmegaConf.create({}))
    try:
        made = config(
            **{"host": HOST, "port": port, "entrypoint": "app.py", "name": name, **fields}
        )
    except ValidationError as error:
        first = error.errors()[0]
        sys.exit(f"{first['loc'][0]} of {name}: {first['msg']}")
    return one_of(module, SimpleResourcesServer)(
        config=made, server_client=client
    ).setup_webserver()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server", help="equivalence_rule, reasoning_gym, ...")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--port", type=int, default=8000)
    given = parser.parse_args()
    app = served(given.server, given.port, given.fields)
    uvicorn.run(app, host=HOST, port=given.port, log_level="warning")


if __name__ == "__main__":
    main()
