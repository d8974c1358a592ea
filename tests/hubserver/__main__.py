"""``python -m tests.hubserver``: serve a folder by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.hubserver import HubServer, User


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m tests.hubserver", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the storage")
    parser.add_argument("--port", type=int, default=8123, help="0 takes any free port")
    parser.add_argument("--user", default="me", help="owner of the tokens hf_writer and hf_reader")
    args = parser.parse_args()
    users = {"hf_writer": User(args.user), "hf_reader": User(args.user, role="read")}
    hub = HubServer(args.root, args.port, users)
    sys.stdout.write(
        f"export HF_ENDPOINT={hub.url} HF_TOKEN=hf_writer HF_HUB_DISABLE_XET=1\n"
        f'# faults: curl -d \'{{"match": "PUT", "status": 500}}\' {hub.url}/__admin__/fault\n'
        f"# log:    curl {hub.url}/__admin__/log\n"
    )
    sys.stdout.flush()
    try:
        hub.serve_forever()
    except KeyboardInterrupt:
        hub.stop()


if __name__ == "__main__":
    main()
