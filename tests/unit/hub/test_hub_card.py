from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ckpt_tools.hub.card import BEGIN, END, Acceptance, Card, CardInput, make_card, own_text, split_card
from ckpt_tools.model import Engine, Finding, Location, Severity, Subject
from tests.hubserver.drafts import passing

HERE = Path("draft")


def card(existing: str | None = None, **kwargs: Any) -> Card:
    values: dict[str, Any] = {
        "verify": passing(HERE),
        "license": "mit",
        "base_model": "base/target",
        **kwargs,
    }
    return make_card(existing, CardInput("me/my-draft", **values))


def codes(made: Card) -> list[str]:
    return [f.code for f in made.findings]


def test_a_new_card_has_what_the_hub_searches_for() -> None:
    made = card()
    assert made.findings == ()
    assert made.metadata == {
        "license": "mit",
        "base_model": "base/target",
        "library_name": "sglang",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "eagle3", "sglang"],
    }
    assert made.text.startswith("---\nlicense: mit\n")
    assert "\n# my-draft\n" in made.text
    assert "an eagle3 draft for [base/target]" in made.text
    assert "with no warnings and no remarks" in made.text.replace("\n", " ")
    assert "## Serving" not in made.text
    assert "## Acceptance" not in made.text


def test_the_users_words_and_keys_stay() -> None:
    existing = (
        "---\nlicense: apache-2.0\ntags: [mine]\nbase_model: [other/model]\nlanguage: en\n"
        "library_name: transformers\n---\n\n# Mine\n\ntext\n"
    )
    made = card(existing, license=None)
    assert made.findings == ()
    assert made.metadata["license"] == "apache-2.0"
    assert made.metadata["language"] == "en"
    assert made.metadata["library_name"] == "transformers"
    assert made.metadata["base_model"] == ["other/model", "base/target"]
    assert made.metadata["tags"] == ["mine", "speculative-decoding", "eagle3", "sglang"]
    assert own_text(made.text) == "# Mine\n\ntext"


def test_the_generated_part_is_replaced_in_place() -> None:
    first = card()
    edited = first.text.replace(BEGIN, f"above\n\n{BEGIN}") + "\nbelow\n"
    second = card(edited, verify=passing(HERE, facts={"draft": {"num_layers": 7, "fc_norm": True}}))
    assert second.text.index("above") < second.text.index("| layers | 7 |") < second.text.index("below")
    assert "| norm per captured layer | yes |" in second.text
    assert "| parameters |" not in second.text
    assert second.text.count(BEGIN) == second.text.count(END) == 1
    assert (
        card(second.text, verify=passing(HERE, facts={"draft": {"num_layers": 7, "fc_norm": True}})) == second
    )


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r<"), max_size=200))
@settings(max_examples=80, deadline=None)
def test_writing_a_card_twice_changes_nothing(text: str) -> None:
    first = card(text)
    if first.findings:
        return
    assert card(first.text) == first
    _, body, _ = split_card(text)
    if body.strip():
        assert own_text(first.text) == body.strip()


@pytest.mark.parametrize(
    ("front", "says"),
    [
        ("model-index: not a list", "model-index must be a list, not text"),
        ("model-index: {a: 1}", "model-index must be a list, not a mapping"),
        ("tags: eagle3", "tags must be a list of texts"),
        ("tags: [1]", "tags must be a list of texts"),
        ("base_model: /data/llama", "base_model must be a Hub id"),
        ("license: 3", "license must be text"),
        ("- a\n- b", "must be a mapping, not a list"),
        ("3", "must be a mapping, not int"),
        ("a: [", "expected"),
        ("a: b: c", "mapping values are not allowed here"),
    ],
)
def test_metadata_that_the_hub_refuses(front: str, says: str) -> None:
    existing = f"---\n{front}\n---\n# x\n"
    made = card(existing)
    assert codes(made) == ["HUB001"]
    assert says in made.findings[0].message
    assert made.text == existing


def test_yaml_errors_name_the_line() -> None:
    (found,) = card("---\nlicense: mit\na: b: c\n---\n").findings
    assert found.location == Location("README.md", line=3)


def test_an_empty_block_is_no_metadata() -> None:
    assert card("---\n---\n# x\n").findings == ()
    assert card("---\n# only a comment\n---\n# x\n").findings == ()


def test_license() -> None:
    assert codes(card(license=None)) == ["HUB002"]
    assert codes(card("---\nlicense: mit\n---\n", license="apache-2.0")) == ["HUB003"]
    assert codes(card("---\nlicense: mit\n---\n", license="mit")) == []
    assert card("---\nlicense: [mit, gemma]\n---\n", license=None).metadata["license"] == ["mit", "gemma"]


def test_base_model() -> None:
    made = card(base_model=None)
    assert codes(made) == ["HUB020"]
    assert made.findings[0].severity is Severity.WARNING
    assert "base_model" not in made.metadata
    assert "draft: a small head" in made.text


@pytest.mark.parametrize("text", [BEGIN, END, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}\n{END}"])
def test_broken_markers(text: str) -> None:
    made = card(f"# mine\n\n{text}\n")
    assert codes(made) == ["HUB004"]
    assert made.text == f"# mine\n\n{text}\n"


@pytest.mark.parametrize(
    ("format_", "engines", "library"),
    [
        ("speculators", ("vllm",), "speculators"),
        ("safeailab", ("vllm",), "vllm"),
        ("safeailab", ("sglang-ext",), "sglang"),
        ("safeailab", (), "sglang"),
    ],
)
def test_library_name(format_: str, engines: tuple[str, ...], library: str) -> None:
    report = passing(
        HERE,
        subject=Subject("draft", format=format_),
        engines=tuple(Engine(name, "1", "1") for name in engines),
    )
    made = card(verify=report)
    assert made.metadata["library_name"] == library
    assert "a speculative-decoding draft" in made.text
    assert "sglang-ext" not in made.metadata["tags"]


def test_findings_of_verify_are_summed_up() -> None:
    found = tuple(
        Finding(f"ROP00{i}", "rope", severity, "base | differs\nhere")
        for i, severity in enumerate([Severity.WARNING, Severity.INFO, Severity.INFO])
    )
    text = card(verify=passing(HERE, findings=found, target=None)).text
    assert "1 warning and 2 remarks" in text
    assert "- ROP000 rope: base \\| differs here" in text
    assert "ROP001" not in text


def test_acceptance_without_tables_keeps_its_conditions() -> None:
    text = card(acceptance=Acceptance({"expected_length": {"3": [1.5, 2.5]}}, {"data": "GSM8K"})).text
    assert "| 3 | 1.500 … 2.500 |" in text
    assert "drafted token" not in text
    assert "Measured with data: GSM8K." in text
    bare = card(acceptance=Acceptance({"per_position": [1, {"value": 0.5}]}, {"data": "x"})).text
    assert "| 1 | 1 |" in bare
    assert "| 2 | 0.500 |" in bare


def test_facts_are_put_into_words() -> None:
    facts = {"dtypes": {"BF16": 3, "I64": 1}, "num_parameters": 1_234_567, "draft": {"sliding_window": 512}}
    text = card(verify=passing(HERE, facts=facts)).text
    assert "| dtypes | BF16, I64 |" in text
    assert "| parameters | 1,234,567 |" in text
    assert "| sliding window | 512 |" in text


def test_front_matter_is_what_yaml_says() -> None:
    made = card("---\nlicense: mit\nthumbnail: 'näh: #1'\n---\n")
    front = made.text.split("---\n")[1]
    assert yaml.safe_load(front) == made.metadata
    assert made.metadata["thumbnail"] == "näh: #1"
