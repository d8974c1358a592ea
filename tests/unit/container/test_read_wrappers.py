from __future__ import annotations

import pytest

from ckpt_tools.container import unwrap

BARE = ("fc.weight", "midlayer.mlp.up_proj.weight", "norm.weight")


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "module.",
        "_orig_mod.",
        "draft_model.",
        "model.",
        "eagle_module.",
        "module.draft_model.",
        "module._orig_mod.",
        "base_model.model.",
    ],
)
def test_a_prefix_of_all_names_is_found(prefix):
    wrapper = unwrap(prefix + name for name in BARE)
    assert wrapper.prefix == prefix
    assert dict(wrapper.names) == {prefix + name: name for name in BARE}
    assert not wrapper.collisions
    assert not wrapper.unprefixed
    assert not wrapper.inner


def test_tables_and_heads_may_lack_the_prefix():
    names = [*(f"module.{name}" for name in BARE), "d2t", "t2d", "lm_head.weight", "embed_tokens.weight"]
    wrapper = unwrap(names)
    assert wrapper.prefix == "module."
    assert wrapper.unprefixed == ("d2t", "t2d", "lm_head.weight", "embed_tokens.weight")
    assert wrapper.names["d2t"] == "d2t"
    assert wrapper.names["module.fc.weight"] == "fc.weight"


def test_tables_that_carry_the_prefix_lose_it():
    wrapper = unwrap(["module.fc.weight", "module.d2t"])
    assert dict(wrapper.names) == {"module.fc.weight": "fc.weight", "module.d2t": "d2t"}


def test_a_prefix_of_some_names_is_none():
    wrapper = unwrap(["module.fc.weight", "norm.weight"])
    assert wrapper.prefix == ""
    assert wrapper.names["module.fc.weight"] == "module.fc.weight"


def test_names_without_an_owner_have_no_prefix():
    assert unwrap(["d2t", "lm_head.weight"]).prefix == ""
    assert unwrap([]).names == {}
    assert unwrap(["module."]).prefix == ""


def test_inner_wrappers_are_taken_out():
    wrapper = unwrap(["layers.0._orig_mod.mlp.up_proj.weight", "norm._fsdp_wrapped_module.weight"])
    assert wrapper.prefix == ""
    assert wrapper.inner == ("_orig_mod.", "_fsdp_wrapped_module.")
    assert sorted(wrapper.names.values()) == ["layers.0.mlp.up_proj.weight", "norm.weight"]


def test_names_that_would_collide_keep_their_own():
    wrapper = unwrap(["module.fc.weight", "module.lm_head.weight", "lm_head.weight"])
    assert wrapper.collisions == {"lm_head.weight": ("module.lm_head.weight", "lm_head.weight")}
    assert wrapper.names["module.lm_head.weight"] == "module.lm_head.weight"
    assert wrapper.names["module.fc.weight"] == "fc.weight"
