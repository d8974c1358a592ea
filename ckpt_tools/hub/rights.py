"""May the token write where a push goes? Asked before anything is read or sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.errors import InputError
from ckpt_tools.hub import remote
from ckpt_tools.hub.codes import finding

if TYPE_CHECKING:
    from ckpt_tools.model import Finding


def check_rights(repo_id: str, create_pr: bool, notify: remote.Notify | None) -> tuple[Finding, ...]:
    """A finding when the token can't write there; what the Hub doesn't say is left to the Hub.

    Raises:
        InputError: The id is malformed.
        Unavailable: There is no token, the Hub refuses it, or it is down.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    api = HfApi(endpoint=remote.endpoint(), library_name="ckpt-tools")
    try:
        validate_repo_id(repo_id)
        if repo_id.count("/") != 1:
            raise InputError(f"{repo_id} is no Hub id", "push to owner/name")
        me = remote.retrying(api.whoami, "asking who you are", notify)
    except remote.client_errors() as error:
        raise remote.explain(error, repo_id) from remote.clean_cause(error)
    namespace = repo_id.split("/")[0]
    token = me.get("auth", {}).get("accessToken", {})
    role = token.get("role")
    if role == "read":
        need = "a token that may open pull requests" if create_pr else f"write access to {namespace}"
        return (finding("HUB005", f"the token is read-only; it needs {need}"),)
    if create_pr:
        return ()
    if role == "fineGrained":
        scopes = token.get("fineGrained", {}).get("scoped", [])
        may = {s.get("entity", {}).get("name") for s in scopes if "repo.write" in s.get("permissions", ())}
        if not may & {namespace, repo_id} and "repo.write" not in token["fineGrained"].get("global", ()):
            allowed = ", ".join(sorted(filter(None, may))) or "nothing"
            message = f"the fine-grained token may write {allowed}; it needs write access to {repo_id}"
            return (finding("HUB005", message),)
        return ()
    orgs = {org.get("name"): org.get("roleInOrg") for org in me.get("orgs", ())}
    if namespace == me.get("name") or orgs.get(namespace, "none") not in ("read", "none"):
        return ()
    standing = "only a reader of" if namespace in orgs else "not a member of"
    message = f"{me.get('name')} is {standing} {namespace}; the push needs write access to {namespace}"
    return (finding("HUB005", message),)
