"""Acceptance through the API: from states, logs and live servers; and whether it pays."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ckpt_tools import targets
from ckpt_tools.api.accepting import AcceptRequest, accept, known_figures
from ckpt_tools.api.converting import Request, fix_keys
from ckpt_tools.errors import InputError, Unavailable, UsageError
from ckpt_tools.forward._torch import torch
from ckpt_tools.model import Report
from ckpt_tools.render.json import report_json
from ckpt_tools.targets.figures import figures
from tests.conftest import FIXTURES

from .pairs import DRAFT, PAIR, STATES, TARGET, Config, Tensors, codes, draft, messages

LOGS = FIXTURES / "logs"
MEASURED = json.loads((PAIR / "acceptance.json").read_text("utf-8"))["depths"]
VLLM = json.loads((PAIR / "vllm.json").read_text("utf-8"))["runs"]


def run(path: str = DRAFT, **more: object) -> Report:
    return accept(AcceptRequest(**{"states": STATES, "draft": path, "target": TARGET, **more}))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole() -> Report:
    return run()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = str(tmp_path_factory.mktemp("served") / "o")
    assert fix_keys(Request(DRAFT, out, to="dual", target=TARGET)).verdict == "pass"
    return out


@pytest.mark.parametrize("depth", MEASURED)
def test_the_length_is_the_real_loops(whole: Report, depth: str) -> None:
    row = whole.facts["expected_length"][depth]
    assert row["mean"] == pytest.approx(MEASURED[depth]["accept_length"], rel=0.03)
    assert row["low"] < row["mean"] < row["high"]


@pytest.mark.parametrize("measured", VLLM, ids=lambda r: f"{r['dtype']}-{r['depth']}")
def test_the_length_is_what_vllm_served(whole: Report, measured: dict[str, Any]) -> None:
    row = whole.facts["expected_length"][str(measured["depth"])]
    assert row["mean"] == pytest.approx(measured["accept_length"], rel=0.05)


@pytest.mark.parametrize("engine", ["sglang", "vllm", "sglang-ext"])
def test_conversions_are_accepted_alike(whole: Report, served: str, engine: str) -> None:
    assert run(served, engine=engine).facts["expected_length"] == whole.facts["expected_length"]


def test_what_is_reported(whole: Report) -> None:
    facts = whole.facts
    assert whole.verdict == "pass"
    assert codes(whole) == []
    assert facts["source"] == "states"
    assert facts["texts"] == 24
    assert len(facts["per_position"]) == 7
    assert all(0.6 < r < 1 for r in facts["per_position"])
    assert list(facts["expected_length"]) == [str(d) for d in range(1, 8)]
    means = [r["mean"] for r in facts["expected_length"].values()]
    assert means == sorted(means)
    assert facts["reached"] == sorted(facts["reached"], reverse=True)
    assert not facts["parallel"]
    assert (facts["best_depth"], facts["speedup"], facts["pays"]) == (None, None, None)
    assert messages(whole, "ACC002") == ["no --cost-ratio: the speedup isn't computed"]
    shown = facts["tables"]["acceptance by position, given those before"]
    assert shown[0]["accepted"] == f"{facts['per_position'][0]:.3f}"
    assert "█" in shown[0]["chart"]
    json.dumps(report_json(whole), allow_nan=False, default=list)


def test_more_branches_accept_more(whole: Report) -> None:
    tree = run(topk=4, depth=3)
    assert tree.facts["top4"][0] > tree.facts["top1"][0]
    assert tree.facts["expected_length"]["3"]["mean"] > whole.facts["expected_length"]["3"]["mean"]


def test_whether_it_pays() -> None:
    cheap = run(cost_ratio=0.05)
    assert cheap.facts["pays"]
    assert cheap.facts["best_depth"] >= 5
    assert cheap.facts["cost_ratio"] == 0.05
    best = str(cheap.facts["best_depth"])
    assert cheap.facts["speedup"][best] == max(cheap.facts["speedup"].values())
    assert codes(cheap) == []
    dear = run(cost_ratio=2.0)
    assert dear.verdict == "pass", "that it doesn't pay is no failure"
    assert not dear.facts["pays"]
    assert codes(dear) == ["ACC001"]
    assert messages(dear, "ACC001")[0].startswith(
        "no speedup: no depth pays at a cost ratio of 2; the best is depth 1"
    )


def test_a_useless_draft(tmp_path: Path) -> None:
    def other(tensors: Tensors, _: Config) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"].roll(1, 0)

    report = run(draft(tmp_path / "d", other), depth=3)
    assert report.verdict == "fail"
    assert codes(report) == ["ACC003"]
    assert messages(report, "ACC003")[0].startswith("accepted length 1.0")

    def none(tensors: Tensors, _: Config) -> None:
        tensors["norm.weight"] = torch.zeros_like(tensors["norm.weight"])

    nothing = run(draft(tmp_path / "n", none), depth=3)
    assert messages(nothing, "ACC003") == ["accepted length 1.00: nothing is accepted"]


def test_a_head_that_cant_be_run(tmp_path: Path) -> None:
    def cut(tensors: Tensors, _: Config) -> None:
        del tensors["fc.weight"]

    report = run(draft(tmp_path / "d", cut))
    assert codes(report) == ["VAL020"]
    assert report.facts["per_position"] is None
    assert report.facts["expected_length"] == {}


def test_no_draft(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="no draft with weights"):
        run(str(tmp_path))


def test_states_of_other_layers(tmp_path: Path) -> None:
    def shift(_: Tensors, config: Config) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]

    with pytest.raises(InputError, match="the draft captures"):
        run(draft(tmp_path / "d", shift))


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (AcceptRequest(), "found none"),
        (AcceptRequest(log="a", url="b"), "found --url, --log"),
        (AcceptRequest(states=STATES), "--states needs --draft and --target"),
        (AcceptRequest(states=STATES, draft=DRAFT), "--states needs --draft and --target"),
        (AcceptRequest(url="file:///etc"), "is no http address"),
    ],
)
def test_arguments(request_: AcceptRequest, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        accept(request_)


def test_from_a_log() -> None:
    report = accept(
        AcceptRequest(log=str(LOGS / "sglang-0.5.12-good.log"), cost_ratio=0.1, engine="sglang==0.5.12")
    )
    facts = report.facts
    assert (facts["source"], facts["engine"], facts["version"], facts["lines"]) == (
        "log",
        "sglang",
        "0.5.12",
        3,
    )
    assert facts["mean_accept_len"] == pytest.approx(2.7)
    assert facts["expected_length"] == {"3": {"mean": pytest.approx(2.7), "low": None, "high": None}}
    assert facts["rate_means"]
    assert facts["pays"] and facts["best_depth"] == 3
    assert facts["speedup"]["3"] == pytest.approx(2.7 / 1.3)


def test_from_a_log_of_vllm() -> None:
    facts = accept(AcceptRequest(log=str(LOGS / "vllm-0.32.0-good.log"))).facts
    assert facts["depth"] == 3
    assert facts["expected_length"]["3"]["mean"] == pytest.approx(2.35)
    assert facts["version"] == "0.32.0"


def test_a_log_that_says_nothing_is_accepted() -> None:
    report = accept(AcceptRequest(log=str(LOGS / "real-sglang-0.5.16-no-d2t.log")))
    assert report.verdict == "fail"
    assert messages(report, "ACC003") == ["accepted length 1.00: nothing is accepted"]


def test_a_log_without_arguments_states_no_depth(tmp_path: Path) -> None:
    lines = (LOGS / "sglang-0.5.12-good.log").read_text("utf-8").splitlines(keepends=True)
    path = tmp_path / "tail.log"
    path.write_text("".join(line for line in lines if "accept len" in line), "utf-8")
    report = accept(AcceptRequest(log=str(path), cost_ratio=0.1))
    assert report.facts["depth"] is None
    assert report.facts["expected_length"] == {}
    assert report.facts["speedup"] is None
    assert messages(report, "ACC002") == [
        "the depth that the server drafts isn't stated: the speedup isn't computed"
    ]


def test_a_log_without_acceptance() -> None:
    with pytest.raises(InputError, match="no line of it tells an acceptance"):
        accept(AcceptRequest(log=str(LOGS / "sglang-0.4.9-key-error.log")))


METRICS = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 70.0
"""
INFO = {
    "speculative_algorithm": "EAGLE3",
    "speculative_num_steps": 3,
    "speculative_num_draft_tokens": 4,
    "version": "0.5.23",
}
META = {
    "spec_verify_ct": 10,
    "spec_num_correct_drafts": 17,
    "completion_tokens": 28,
    "spec_correct_drafts_histogram": [2, 2, 3, 3],
}


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """(address, routes) of a server that answers what a test puts into the routes."""
    routes: dict[str, Any] = {}
    sent: list[Any] = []
    routes["sent"] = sent

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = routes.get(self.path)
            body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            sent.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{made.server_port}", routes
    finally:
        made.shutdown()
        thread.join()
        made.server_close()


def test_from_a_server_of_vllm(server: tuple[str, dict[str, Any]]) -> None:
    url, routes = server
    routes |= {"/metrics": METRICS, "/version": {"version": "0.33.0"}}
    report = accept(AcceptRequest(url=url, cost_ratio=0.1))
    facts = report.facts
    assert (facts["engine"], facts["version"], facts["depth"], facts["rounds"]) == ("vllm", "0.33.0", 2, 100)
    assert facts["per_position"] == [0.8, 0.875]
    assert facts["mean_accept_len"] == 2.5
    assert facts["expected_length"]["2"]["mean"] == 2.5
    assert facts["pays"]
    assert report.subject.path == url


def test_from_a_server_of_sglang(server: tuple[str, dict[str, Any]]) -> None:
    url, routes = server
    routes |= {"/server_info": INFO, "/generate": {"text": "", "meta_info": META}}
    report = accept(AcceptRequest(url=url, prompts=("a", "b")))
    facts = report.facts
    assert [s["text"] for s in routes["sent"]] == ["a", "b"]
    assert facts["rounds"] == 20
    assert facts["mean_accept_len"] == pytest.approx(2.7)
    assert facts["per_position"] == [0.8, 0.75, 0.5]
    assert facts["draft_tokens"] == 4


def test_a_server_that_has_counted_already(server: tuple[str, dict[str, Any]]) -> None:
    url, routes = server
    routes["/server_info"] = {**INFO, "internal_states": [{"avg_spec_accept_length": 1.0}]}
    report = accept(AcceptRequest(url=url, target=TARGET))
    assert report.facts["per_position"] is None
    assert messages(report, "ACC003") == ["accepted length 1.00: nothing is accepted"]
    assert report.target is not None


def test_a_server_that_isnt_there(server: tuple[str, dict[str, Any]]) -> None:
    url, _ = server
    with pytest.raises(Unavailable, match="no SGLang or vLLM server answers"):
        accept(AcceptRequest(url=url))


def test_published_figures() -> None:
    rows = figures()
    assert all(
        {"target", "draft", "benchmark", "setting", "accept_length", "source"} <= row.keys() for row in rows
    )
    assert all(row["source"] for row in rows)
    known = targets.find(rows[0]["target"])
    assert known is not None
    assert known_figures(None) == []
    assert known_figures(replace(known, id="unheard-of")) == []
    mine = known_figures(known)
    assert mine and all(row["target"] == known.id for row in mine)
    log = str(LOGS / "sglang-0.5.12-good.log")
    report = accept(AcceptRequest(log=log, target=known.id))
    assert report.facts["known"] == mine
    shown = report.facts["tables"]["published figures for this target"]
    assert 0 < len(shown) <= 8
    assert shown[0]["length"] == mine[0]["accept_length"]


def test_a_block_head_proposes_no_more_than_its_block() -> None:
    from ckpt_tools.api.accepting import _depth

    request = AcceptRequest(depth=7)
    assert _depth(request, type("Head", (), {"max_steps": 3})()) == 3
    assert _depth(request, object()) == 7
