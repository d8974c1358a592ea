"""Talking to the Hub through the client's own session: failures, retries, ranges.

Clients below 1.0 are built on requests, later ones on httpx or httpx2. What differs between them is
kept here: the types that a failed transfer raises, and how a body is streamed.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ckpt_tools.errors import CkptError, InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Notify = Callable[[str], None]
    T = TypeVar("T")

TRIES = 6  # as many as the client makes of its own uploads
WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before the second, third … try; the last is kept
LONGEST_WAIT = 60.0  # a server that asks for more is told to the user instead
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_SECRETS = (
    (re.compile(r"hf_[A-Za-z0-9]{6,}"), "hf_…"),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]+"), r"\1 …"),
    (re.compile(r"(?i)([?&](?:signature|policy|key-pair-id|x-amz-[a-z-]+|token|sig)=)[^&\s'\"]+"), r"\1…"),
)
_sleep = time.sleep


def request_headers() -> dict[str, str]:
    """The headers of an authenticated request, as the client makes them (``HF_TOKEN``, then the login)."""
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    return dict(build_hf_headers(library_name="ckpt-tools"))


def endpoint() -> str:
    """The Hub that is talked to (``HF_ENDPOINT``)."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def is_offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` forbids requests."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def redact(text: str) -> str:
    """The text without tokens and without the signatures of pre-signed addresses."""
    from huggingface_hub import get_token

    if token := get_token():
        text = text.replace(token, "…")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def transport_errors() -> tuple[type[BaseException], ...]:
    """What the client raises when a request fails, whichever library it is built on.

    requests raises ``OSError`` only; httpx has a root class of its own, which the client's HTTP error derives
    from.
    """
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, HfHubHTTPError.__bases__[0], HfHubHTTPError)


def client_errors() -> tuple[type[BaseException], ...]:
    """All that a call of the client raises for reasons outside the program: transport, and a malformed id."""
    from huggingface_hub.errors import HFValidationError

    return (*transport_errors(), HFValidationError)


def upload_errors() -> tuple[type[BaseException], ...]:
    """The same of an upload, where the client wraps failures of single files and malformed answers."""
    return (*client_errors(), RuntimeError, ValueError)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _response(error: BaseException) -> Any:
    """The Hub's answer in an error or in what caused it."""
    for cause in _causes(error):
        response = getattr(cause, "response", None)
        if response is not None:
            return response
    return None


def status_of(error: BaseException) -> int | None:
    """The HTTP status in an error or in what caused it; ``None`` when the Hub never answered."""
    response = _response(error)
    return None if response is None else int(response.status_code)


def is_transient(error: BaseException) -> bool:
    """Whether trying again can help: a time-out, a lost connection, 429 or 5xx; never another 4xx."""
    from huggingface_hub.errors import FileMetadataError, LocalTokenNotFoundError, OfflineModeIsEnabled

    status = status_of(error)
    if status is not None:
        return status in TRANSIENT
    final = (OfflineModeIsEnabled, LocalTokenNotFoundError, FileMetadataError, PermissionError)
    return not any(isinstance(cause, final) for cause in _causes(error))


def retry_after(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait, if it does."""
    response = _response(error)
    if response is None:
        return None
    return _seconds(response.headers)


def _seconds(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "").strip()
    return float(value) if value.isdigit() else None


def retrying(call: Callable[[], T], what: str, notify: Notify | None = None, tries: int = TRIES) -> T:
    """The result of ``call``, tried again while the failure can pass.

    Args:
        call: Raises one of :func:`transport_errors` when it fails.
        what: What is being done, for messages: "listing owner/name".
        notify: Told in one line about every new try.
        tries: In all.

    Raises:
        Exception: The last failure, or the first that is final.
    """
    number = 0
    while True:
        number += 1
        try:
            return call()
        except transport_errors() as error:
            if number == tries or not is_transient(error):
                raise
            asked = retry_after(error)
            if asked is not None and asked > LONGEST_WAIT:
                raise
            status = status_of(error)
            if notify is not None:
                said = f"{status} from the Hub" if status is not None else "the connection was lost"
                notify(f"{what}: {said}, retry {number}/{tries - 1}")
        _sleep(asked if asked is not None else WAITS[min(number, len(WAITS)) - 1])


@contextmanager
def stream(url: str, headers: Mapping[str, str]) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """A GET whose body is not yet read: the response and its chunks.

    Raises:
        Exception: One of :func:`transport_errors`.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    if callable(session.stream):  # httpx and httpx2; for requests this is a flag
        with session.stream("GET", url, headers=dict(headers), timeout=timeout) as response:
            yield response, response.iter_bytes()
    else:
        with session.get(url, headers=dict(headers), timeout=timeout, stream=True) as response:
            yield response, response.iter_content(64 * 1024)


def _server_says(error: BaseException) -> str:
    """The Hub's own sentence, or the failure in the client's words, on one line."""
    response = _response(error)
    if response is not None:
        message = response.headers.get("X-Error-Message")
        if message:
            return redact(" ".join(str(message).split()))
    # Without an answer, the innermost failure says it best: "Connection refused", not who passed it on.
    texts = [(str(cause).strip() or type(cause).__name__) for cause in _causes(error)]
    return redact(" ".join(texts[-1].split()))


def explain(
    error: BaseException, repo_id: str, revision: str | None = None, file: str | None = None
) -> CkptError:
    """What a failed request means to the user: gated, private, absent, refused or down, and what to do.

    Args:
        error: What the client raised.
        repo_id: ``owner/name``.
        revision: As asked for.
        file: The file that was asked for, if one was.

    Returns:
        :class:`InputError` when the repository, revision or file isn't there; :class:`Unavailable` otherwise.
    """
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        HFValidationError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    def caused_by(kind: type[BaseException]) -> bool:
        return any(isinstance(cause, kind) for cause in _causes(error))

    status, where = status_of(error), f"{endpoint()}/{repo_id}"
    if caused_by(HFValidationError):
        return InputError(
            f"{repo_id!r} is no Hub id: {_server_says(error)}", "Hub ids are owner/name[@revision]"
        )
    if caused_by(OfflineModeIsEnabled):
        return Unavailable(
            f"{repo_id}: offline, and not in the Hub's cache",
            "run once without --offline and HF_HUB_OFFLINE, or give a local path",
        )
    if caused_by(LocalTokenNotFoundError):
        return Unavailable("there is no Hub token", "log in with `hf auth login`, or set HF_TOKEN")
    if caused_by(GatedRepoError):
        if _has_token():
            return Unavailable(
                f"{repo_id} is gated, and your account has no access to it ({status})",
                f"ask for access at {where}, then try again",
            )
        return Unavailable(
            f"{repo_id} is gated ({status}): it is shown only to accounts with access, and there is no token",
            f"ask for access at {where}, then log in with `hf auth login` or set HF_TOKEN",
        )
    if caused_by(DisabledRepoError):
        return Unavailable(
            f"{repo_id} was disabled on the Hub ({status})", "take another source of this model"
        )
    if caused_by(RepositoryNotFoundError):
        token = (
            "your token may lack the right to read it"
            if _has_token()
            else "log in with `hf auth login` or set HF_TOKEN"
        )
        return InputError(
            f"{repo_id}: no such local path, and no such model at {endpoint()} that you may see ({status})",
            f"check the spelling; if the model is private, {token}",
        )
    if caused_by(RevisionNotFoundError):
        return InputError(
            f"{repo_id} has no revision {revision or 'main'!r} ({status})",
            f"{where}/refs lists its branches and tags; a commit id works too",
        )
    if status == 401:
        return Unavailable(
            f"the Hub doesn't accept your token (401): {_server_says(error)}",
            "make a new one at https://huggingface.co/settings/tokens, then `hf auth login` or set HF_TOKEN",
        )
    if status == 403:
        return Unavailable(
            f"the Hub refused (403), not retried: {_server_says(error)}",
            f"check what your token may do, and the quota of the account, at {endpoint()}/settings",
        )
    if status == 404:
        what = f"{repo_id} has no file {file}" if file else f"{repo_id}: not found"
        return InputError(f"{what} ({status})", f"{where}/tree/{revision or 'main'} lists its files")
    if status == 429:
        wait = retry_after(error)
        return Unavailable(
            "the Hub limits your requests (429)",
            f"wait {wait:.0f} s, then try again" if wait else "wait some minutes, then try again",
        )
    if status is not None and status < 500:
        return Unavailable(f"the Hub refused ({status}), not retried: {_server_says(error)}")
    if status is not None:
        return Unavailable(
            f"the Hub is down: {status} after {TRIES} tries ({_server_says(error)})",
            "look at https://status.huggingface.co, and try again later",
        )
    return Unavailable(
        f"{endpoint()} can't be reached: {_server_says(error)}",
        "check the network, HTTPS_PROXY and HF_ENDPOINT; --offline takes what is in the Hub's cache",
    )


def clean_cause(error: BaseException) -> BaseException | None:
    """The error as a cause to show under ``--debug``, unless a secret stands in its text."""
    texts = [f"{cause} {cause.args!r}" for cause in _causes(error)]
    return error if all(redact(text) == text for text in texts) else None


def _has_token() -> bool:
    from huggingface_hub import get_token

    return get_token() is not None
