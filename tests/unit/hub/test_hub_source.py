from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckpt_tools.errors import CkptError, ExitCode, InputError, Unavailable, UsageError
from ckpt_tools.hub import remote
from ckpt_tools.hub.source import HubId, HubSource, is_hub_id, open_hub, parse_hub_id
from tests.hubserver.fixture import READER, STRANGER, WRITER, log_in
from tests.hubserver.store import GITATTRIBUTES

if TYPE_CHECKING:
    from tests.hubserver import HubServer


def bytes_of(size: int) -> bytes:
    return bytes(i * 7 % 251 for i in range(size))


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["owner/name", "owner/name@v1.0", "o_w-n/na.me@0123456789", "a/b@refs/pr/3", "hf://owner/name", "hf://x"],
)
def test_hub_ids_are_recognised(text: str) -> None:
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text",
    [
        "name",
        ".",
        "./a",
        "../a",
        "/a/b",
        "~/a",
        "a/b/c",
        "a/",
        "/a",
        "a/b@",
        "a b/c",
        "a\\b",
        "",
        "owner/.hidden",
    ],
)
def test_what_is_no_hub_id(text: str) -> None:
    assert not is_hub_id(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("owner/name", HubId("owner/name")),
        ("owner/name@v1", HubId("owner/name", "v1")),
        ("hf://owner/name@refs/pr/2", HubId("owner/name", "refs/pr/2")),
        ("hf://models/owner/name/", HubId("owner/name")),
    ],
)
def test_hub_ids_are_parsed(text: str, expected: HubId) -> None:
    assert parse_hub_id(text) == expected
    assert str(expected).removeprefix("hf://") in (text.removeprefix("hf://"), "owner/name")


@pytest.mark.parametrize(
    "text", ["hf://datasets/a/b", "hf://spaces/a/b", "hf://", "hf://a", "hf://a/b/c.json"]
)
def test_what_starts_with_hf_but_is_no_model_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_hub_id(text)
    assert "owner/name" in str(caught.value.hint)


# -- reading -----------------------------------------------------------------------------------------------


def test_lists_and_reads_small_and_large_files(hub: HubServer, tmp_path) -> None:
    weights = bytes_of(100_000)
    config = b'{"architectures": ["LlamaForCausalLMEagle3"]}'
    commit = hub.store.seed(
        "me/draft", {"config.json": config, "model.safetensors": weights, "sub/x.bin": b"1"}
    )
    source, revision = open_hub("me/draft")
    assert revision == commit.id
    assert source.root == f"hf://me/draft@{commit.id}"
    assert source.list() == {
        ".gitattributes": len(GITATTRIBUTES),
        "config.json": len(config),
        "model.safetensors": 100_000,
    }
    assert source.read("config.json", 0, 1 << 20) == config
    assert source.local("config.json") is not None, "small text goes through the client's cache"
    assert source.read("config.json", 2, 15) == config[2:15]
    assert source.read("model.safetensors", 50_000, 60_000) == weights[50_000:60_000]
    assert source.read("model.safetensors", 99_990, 200_000) == weights[99_990:]
    assert source.read("model.safetensors", 100_000, 100_001) == b""
    assert source.local("model.safetensors") is None, "weights are not downloaded"
    cache = tmp_path / "hf_home"
    assert {p for p in tmp_path.iterdir() if p.name not in ("hub", "hf_home")} == set()
    assert str(source.local("config.json")).startswith(str(cache))


@given(ranges=st.lists(st.tuples(st.integers(0, 40_000), st.integers(0, 40_000)), max_size=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_ranges_gives_the_files_bytes(hub: HubServer, ranges) -> None:
    data = bytes_of(36_000)
    hub.store.seed("me/ranges", {"model.safetensors": data})
    source = HubSource("me/ranges")
    for start, stop in ranges:
        assert source.read("model.safetensors", start, stop) == data[start:stop]


def test_the_token_is_never_sent_to_the_storage(hub: HubServer) -> None:
    hub.store.seed("me/draft", {"model.safetensors": bytes_of(200_000)})
    source = HubSource("me/draft")
    for start in (0, 50_000, 100_000):
        source.read("model.safetensors", start, start + 10)
    cdn = hub.log.find("/__cdn__/")
    assert len(cdn) == 3
    assert not any(seen.authorized for seen in cdn)
    resolves = hub.log.find("/resolve/")
    assert len(resolves) == 1, "the storage's address is asked for once"
    assert all(seen.authorized for seen in resolves)


def test_an_expired_address_is_asked_for_again(hub: HubServer) -> None:
    data = bytes_of(200_000)
    hub.store.seed("me/draft", {"model.safetensors": data})
    source = HubSource("me/draft")
    source.read("model.safetensors", 0, 10)
    hub.signature = "another"
    assert source.read("model.safetensors", 100_000, 100_010) == data[100_000:100_010]


def test_a_cut_connection_goes_on_where_it_stopped(hub: HubServer) -> None:
    data = bytes_of(3_000_000)
    hub.store.seed("me/draft", {"model.safetensors": data})
    said: list[str] = []
    seen_progress: list[tuple[int, int]] = []
    source = HubSource("me/draft", notify=said.append, progress=lambda *a: seen_progress.append(a))
    hub.fault("/__cdn__/", action="cut", after=1_000_000)
    assert source.read("model.safetensors", 0, 3_000_000) == data
    assert hub.log.sent("/__cdn__/") < 3_200_000, "no byte is sent twice"
    assert len(said) == 1
    assert "retry 1/5" in said[0]
    assert seen_progress[-1] == (3_000_000, 3_000_000)


def test_a_slow_server_is_waited_for(hub: HubServer) -> None:
    data = bytes_of(300_000)
    hub.store.seed("me/draft", {"model.safetensors": data})
    hub.fault("/__cdn__/", action="slow", delay=0.01)
    assert HubSource("me/draft").read("model.safetensors", 20_000, 300_000) == data[20_000:]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_what_can_pass_is_retried_with_a_cap(hub: HubServer, status: int) -> None:
    hub.store.seed("me/draft", {"model.safetensors": bytes_of(50_000)})
    source = HubSource("me/draft")
    hub.fault("/resolve/", status=status, times=2, headers={"Retry-After": "1"})
    assert len(source.read("model.safetensors", 0, 10)) == 10
    hub.fault("/__cdn__/", status=status, times=-1)
    with pytest.raises(Unavailable) as caught:
        source.read("model.safetensors", 40_000, 40_010)
    assert caught.value.exit_code == ExitCode.UNAVAILABLE
    assert str(status) in caught.value.message
    assert caught.value.hint or status == 408
    failed = [seen for seen in hub.log.find("/__cdn__/") if seen.status == status]
    assert len(failed) == remote.TRIES


def test_a_long_retry_after_is_told_instead_of_waited(hub: HubServer) -> None:
    hub.store.seed("me/draft", {})
    hub.fault("/api/models/", status=429, headers={"Retry-After": "300"}, times=-1)
    with pytest.raises(Unavailable, match="429") as caught:
        HubSource("me/draft")
    assert "300 s" in str(caught.value.hint)
    assert len(hub.log.find("/api/models/")) == 1


def test_a_server_without_ranges_is_refused_before_the_file_is_sent(hub: HubServer) -> None:
    hub.store.seed("me/draft", {"model.safetensors": bytes_of(100)})
    hub.fault("/__cdn__/", status=200, body={"whole": "file"})
    with pytest.raises(Unavailable, match="without the asked range"):
        HubSource("me/draft").read("model.safetensors", 0, 10)


# -- who may read ------------------------------------------------------------------------------------------


def failure(call) -> CkptError:
    with pytest.raises(CkptError) as caught:
        call()
    error = caught.value
    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for link in chain:
        for token in (WRITER, READER, STRANGER):
            assert token not in f"{link} {link.args}"
    return error


def test_absent_repository_says_that_both_were_tried(hub: HubServer) -> None:
    error = failure(lambda: HubSource("me/absent"))
    assert isinstance(error, InputError)
    assert "no such local path" in error.message
    assert hub.url in error.message
    assert len(hub.log.find()) == 1, "404 is final"


def test_private_repository_looks_absent_and_says_how_to_log_in(hub: HubServer, monkeypatch) -> None:
    hub.store.create("team/private", private=True)
    assert HubSource("team/private").list() != {}
    log_in(monkeypatch, None)
    assert "hf auth login" in str(failure(lambda: HubSource("team/private")).hint)
    log_in(monkeypatch, STRANGER)
    assert "may lack the right" in str(failure(lambda: HubSource("team/private")).hint)


@pytest.mark.parametrize(("token", "says"), [(None, "log in"), (STRANGER, "ask for access")])
def test_gated_repository_says_where_to_ask(hub: HubServer, monkeypatch, token, says) -> None:
    hub.store.seed("meta/gated", {"model.safetensors": bytes_of(100), "config.json": b"{}"})
    settings_ = hub.store.repo("meta/gated").settings
    settings_.gated = True
    hub.store.repo("meta/gated").settings = settings_
    log_in(monkeypatch, token)
    source = HubSource("meta/gated")
    for name in ("model.safetensors", "config.json"):
        error = failure(lambda name=name: source.read(name, 0, 2))
        assert isinstance(error, Unavailable)
        assert "gated" in error.message
        assert says in str(error.hint)
        assert f"{hub.url}/meta/gated" in str(error.hint)


def test_absent_revision_and_file(hub: HubServer) -> None:
    hub.store.seed("me/draft", {"config.json": b"{}"})
    error = failure(lambda: HubSource("me/draft", "v9"))
    assert isinstance(error, InputError)
    assert "'v9'" in error.message
    source = HubSource("me/draft")
    for call in (source.local, source.download, lambda n: source.read(n, 0, 1)):
        assert "no file model.safetensors" in failure(lambda call=call: call("model.safetensors")).message


def test_wrong_token_is_told_apart(hub: HubServer, monkeypatch) -> None:
    hub.store.create("me/draft")
    log_in(monkeypatch, "hf_wrongwrongwrong")
    error = failure(lambda: HubSource("me/draft"))
    assert isinstance(error, Unavailable)
    assert "401" in error.message
    assert "hf_wrong" not in error.message
    assert "HF_TOKEN" in str(error.hint)


def test_malformed_id_is_an_input_error(hub: HubServer) -> None:
    assert "no Hub id" in failure(lambda: HubSource("me/na--me")).message
    assert hub.log.find() == []


@pytest.mark.usefixtures("hub")
def test_unreachable_hub(monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    error = failure(lambda: HubSource("me/draft"))
    assert isinstance(error, Unavailable)
    assert "can't be reached" in error.message
    assert "HF_ENDPOINT" in str(error.hint)


@pytest.mark.parametrize(
    ("status", "headers", "says"),
    [
        (403, {"X-Error-Message": "Access to this resource is disabled."}, "disabled"),
        (403, {}, "refused (403)"),
        (418, {}, "refused (418)"),
        (404, {}, "not found"),
    ],
)
def test_other_refusals_are_final(hub: HubServer, status, headers, says) -> None:
    hub.fault("/api/models/", status=status, headers=headers, times=-1)
    assert says in failure(lambda: HubSource("me/draft")).message
    assert len(hub.log.find()) == 1


def test_a_token_that_the_server_echoes_is_redacted(hub: HubServer) -> None:
    hub.fault("/api/models/", status=403, headers={"X-Error-Message": f"no: Bearer {WRITER} {READER}"})
    error = failure(lambda: HubSource("me/draft"))
    assert error.__cause__ is None, "a cause that holds a secret isn't shown"
    assert "…" in error.message


def test_the_clients_own_offline_error_is_explained() -> None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    error = remote.explain(OfflineModeIsEnabled("no"), "me/draft")
    assert isinstance(error, Unavailable)
    assert "--offline" in str(error.hint)
    assert not remote.is_transient(OfflineModeIsEnabled("no"))


def test_redaction_leaves_other_text_alone() -> None:
    assert remote.redact("hf_hub is at https://x/y?a=1&Signature=abc&b=2") == (
        "hf_hub is at https://x/y?a=1&Signature=…&b=2"
    )


# -- the cache ---------------------------------------------------------------------------------------------


def test_offline_takes_the_cached_snapshot(hub: HubServer, monkeypatch) -> None:
    from huggingface_hub import constants, snapshot_download

    data = bytes_of(30_000)
    commit = hub.store.seed("me/draft", {"config.json": b"{}", "model.safetensors": data})
    snapshot_download("me/draft", endpoint=hub.url)
    online = HubSource("me/draft")
    hub.log.clear()
    assert online.read("model.safetensors", 20_000, 30_000) == data[20_000:]
    assert hub.log.find() == [], "what the cache holds is not read again"
    for make in (
        lambda: HubSource("me/draft", offline=True),
        lambda: HubSource("me/draft", commit.id, offline=True),
        lambda: open_hub("hf://me/draft", offline=True)[0],
    ):
        source = make()
        assert source.commit == commit.id
        assert source.list()["model.safetensors"] == 30_000
        assert source.read("model.safetensors", 5, 10) == data[5:10]
        assert source.download("config.json").read_bytes() == b"{}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert HubSource("me/draft").offline
    assert hub.log.find() == []
    for name, revision in (("me/draft", "v2"), ("me/other", None), ("me/draft", "../../x")):
        error = failure(lambda name=name, revision=revision: HubSource(name, revision))
        assert isinstance(error, Unavailable)
        assert "cache" in error.message
        assert "hf download" in str(error.hint)


def test_a_part_of_a_snapshot_is_no_checkpoint(hub: HubServer) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}).encode()
    files = {"config.json": b"{}", "model.safetensors.index.json": index, "model-1.safetensors": bytes_of(9)}
    hub.store.seed("me/draft", {**files, "model-2.safetensors": bytes_of(9)})
    online = HubSource("me/draft")
    online.read("config.json", 0, 2)
    offline = HubSource("me/draft", offline=True)
    assert offline.read("config.json", 0, 2) == b"{}", "a target's config is enough for many a question"
    error = failure(offline.list)
    assert isinstance(error, Unavailable)
    assert "any weight file is not" in error.message
    online.download("model.safetensors.index.json")
    online.download("model-1.safetensors")
    assert "model-2.safetensors is not" in failure(HubSource("me/draft", offline=True).list).message
    online.download("model-2.safetensors")
    assert "model-2.safetensors" in HubSource("me/draft", offline=True).list()


@pytest.mark.parametrize("index", [b"{", b"[]", b'{"weight_map": 3}'])
def test_a_damaged_index_in_the_cache_is_the_readers_business(hub: HubServer, index: bytes) -> None:
    files = {"model.safetensors.index.json": index, "model.safetensors": b"1"}
    hub.store.seed("me/draft", files)
    for name in files:
        HubSource("me/draft").download(name)
    assert set(HubSource("me/draft", offline=True).list()) == set(files)


def test_a_branch_that_moves_on_is_read_at_its_old_commit(hub: HubServer) -> None:
    hub.store.seed("me/draft", {"config.json": b"old"})
    source = HubSource("me/draft")
    hub.store.seed("me/draft", {"config.json": b"new"})
    assert source.read("config.json", 0, 9) == b"old"
    assert HubSource("me/draft", "main").read("config.json", 0, 9) == b"new"


def test_a_cached_file_that_is_gone_is_an_input_error(hub: HubServer, monkeypatch, tmp_path) -> None:
    hub.store.seed("me/draft", {"config.json": b"{}"})
    source = HubSource("me/draft")
    monkeypatch.setattr(source, "local", lambda _: tmp_path / "gone")
    assert "can't be read" in failure(lambda: source.read("config.json", 0, 1)).message


def test_download_puts_one_file_into_the_cache(hub: HubServer) -> None:
    hub.store.seed("me/draft", {"pytorch_model.bin": bytes_of(1000)})
    source = HubSource("me/draft")
    path = source.download("pytorch_model.bin")
    assert path.read_bytes() == bytes_of(1000)
    assert source.local("pytorch_model.bin") == path


def test_the_client_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys, ckpt_tools.hub.push, ckpt_tools.hub.upload, ckpt_tools.hub.source, ckpt_tools.hub.card\n"
        "from ckpt_tools.hub.source import is_hub_id\n"
        "assert is_hub_id('a/b')\n"
        "loaded = {'huggingface_hub', 'numpy', 'torch', 'jsonschema'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
