"""A real loopback server that speaks the Hub's HTTP API, with its storage in a folder.

By hand: ``python -m tests.hubserver --root DIR --port 8123`` and then ``HF_ENDPOINT=http://127.0.0.1:8123
HF_TOKEN=hf_writer HF_HUB_DISABLE_XET=1 hf upload me/draft ./folder``.
"""

from __future__ import annotations

from tests.hubserver.faults import Fault, Seen
from tests.hubserver.server import HubServer, User
from tests.hubserver.store import Sparse, Store

__all__ = ["Fault", "HubServer", "Seen", "Sparse", "Store", "User"]
