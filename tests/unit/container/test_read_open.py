"""What open_checkpoint says of folders, right and wrong: one finding per cause."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from ckpt_tools.container import CODES, LocalSource, open_checkpoint
from ckpt_tools.errors import InputError
from ckpt_tools.model import Severity
from tests.unit.container.folders import INDEX, LFS, SHARDS, codes, draft, framed, only, sharded, weights


class Remote:
    """A source without local paths, as the Hub's."""

    root = "hf://owner/name@main"

    def __init__(self, folder):
        self.inner = LocalSource(folder)

    def list(self):
        return self.inner.list()

    def read(self, name, start, stop):
        return self.inner.read(name, start, stop)

    def local(self, name):  # the protocol's signature
        return None


def test_a_folder(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path))
    assert checkpoint.findings == ()
    assert list(checkpoint.tensors) == ["a", "b"]
    assert checkpoint.config == {"hidden_size": 4}
    assert json.loads(checkpoint.config_text) == checkpoint.config
    assert checkpoint.metadata == {"format": "pt"}
    assert [info.name for info in checkpoint.files] == ["model.safetensors", "config.json"]
    assert [info.kind for info in checkpoint.files] == ["safetensors", "other"]
    assert checkpoint.weight_files[0].header.startswith(b'{"__metadata__"')
    assert checkpoint.root == str(tmp_path)
    assert checkpoint.extra == {}


def test_a_single_file_takes_the_config_beside_it(tmp_path):
    draft(tmp_path, {"model.safetensors": weights({"a": 4}), "other.safetensors": weights({"a": 9})})
    checkpoint = open_checkpoint(tmp_path / "model.safetensors")
    assert checkpoint.findings == ()
    assert checkpoint.config == {"hidden_size": 4}
    assert [info.name for info in checkpoint.files] == ["model.safetensors"]
    assert checkpoint.tensors["a"].shape == (4,)


def test_a_single_file_without_config_is_a_warning(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(weights({"a": 1}))
    finding = only(open_checkpoint(tmp_path / "x.safetensors"))
    assert (finding.code, finding.severity) == ("FIL020", Severity.WARNING)


def test_shards_with_an_index(tmp_path):
    checkpoint = open_checkpoint(sharded(tmp_path))
    assert checkpoint.findings == ()
    assert [tensor.file for tensor in checkpoint.tensors.values()] == [SHARDS[0], SHARDS[0], SHARDS[1]]
    assert checkpoint.extra["index"].metadata == {"total_size": 9}


def test_one_shard_numbered_one_of_one_needs_no_index(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"model-00001-of-00001.safetensors": weights({"a": 1})}))
    assert checkpoint.findings == ()


def test_a_remote_source_reads_headers_too(tmp_path):
    sharded(tmp_path)
    checkpoint = open_checkpoint("owner/name", Remote(tmp_path))
    assert checkpoint.findings == ()
    assert len(checkpoint.tensors) == 3
    assert (checkpoint.path, checkpoint.root) == ("owner/name", "hf://owner/name@main")


def test_opening_leaves_the_collector_as_it_was(tmp_path):
    draft(tmp_path)
    open_checkpoint(tmp_path)
    assert gc.isenabled()
    gc.disable()
    try:
        open_checkpoint(tmp_path)
        assert not gc.isenabled()
    finally:
        gc.enable()


# -- not a checkpoint


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="no such file or folder") as caught:
        open_checkpoint(tmp_path / "absent")
    assert "Hub id" in str(caught.value.hint)


@pytest.mark.parametrize(("name", "hint"), [("config.json", "give the folder"), ("notes.txt", None)])
def test_a_file_that_holds_no_weights(name, hint, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(InputError, match="not a weight file") as caught:
        open_checkpoint(tmp_path / name)
    assert hint is None or hint in str(caught.value.hint)


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="no checkpoint") as caught:
        open_checkpoint(tmp_path)
    assert "give the folder" in str(caught.value.hint)


def test_a_folder_of_checkpoints_names_them(tmp_path):
    draft(tmp_path / "one")
    draft(tmp_path / "two")
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert f"{tmp_path / 'one'}, {tmp_path / 'two'}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("names", "hint"),
    [
        (["mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"], "zero_to_fp32.py"),
        (["__0_0.distcp", ".metadata"], "dcp_to_torch"),
    ],
)
def test_sharded_training_states_must_be_merged_first(names, hint, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(InputError, match="no checkpoint") as caught:
        open_checkpoint(tmp_path)
    assert hint in str(caught.value.hint)


def test_the_current_folder_needs_a_config(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(weights({"a": 1}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no config\.json in the current folder"):
        open_checkpoint(".")
    (tmp_path / "config.json").write_text("{}")
    assert open_checkpoint(".").findings == ()


def test_a_remote_folder_that_is_none(tmp_path):
    (tmp_path / "README.md").write_text("")
    with pytest.raises(InputError, match="no checkpoint"):
        open_checkpoint("owner/name", Remote(tmp_path))


# -- weights


def test_config_without_weights(tmp_path):
    finding = only(open_checkpoint(draft(tmp_path, {"README.md": ""})))
    assert (finding.code, finding.severity) == ("FIL001", Severity.ERROR)


def test_weights_without_config(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(weights({"a": 1}))
    finding = only(open_checkpoint(tmp_path))
    assert (finding.code, finding.severity, finding.location.file) == (
        "FIL020",
        Severity.ERROR,
        "config.json",
    )


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (LFS, "FIL002", "Git LFS pointer"),
        (weights({"a": 100})[:-40], "FIL003", "40 missing"),
        (weights({"a": 100})[:20], "FIL003", "inside its header"),
        (weights({"a": 1}) + b"0123456789abcdef", "FIL004", "16 trailing bytes after the last tensor"),
        (framed(b"{nonsense"), "FIL005", "damaged header"),
        (framed(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[3,4]}}', b"1234"), "FIL006", "gap"),
        (b"", "FIL007", "0 bytes"),
    ],
)
def test_a_damaged_weight_file_is_one_finding(content, code, says, tmp_path):
    finding = only(open_checkpoint(draft(tmp_path, {"model.safetensors": content})))
    assert (finding.code, finding.severity) == (code, Severity.ERROR)
    assert says in finding.message
    assert "model.safetensors" in finding.message
    assert finding.location.file == "model.safetensors"
    assert finding.hint


def test_a_link_to_nothing(tmp_path):
    draft(tmp_path, {"README.md": ""})
    (tmp_path / "model.safetensors").symlink_to("../blobs/gone")
    finding = only(open_checkpoint(tmp_path))
    assert finding.code == "FIL007"
    assert "link to ../blobs/gone" in finding.message


@pytest.mark.parametrize(("metadata", "says"), [({}, "format None"), ({"format": "mlx"}, "format 'mlx'")])
def test_metadata_without_pt_is_worth_knowing(metadata, says, tmp_path):
    finding = only(open_checkpoint(draft(tmp_path, {"model.safetensors": weights({"a": 1}, metadata)})))
    assert (finding.code, finding.severity) == ("FIL019", Severity.INFO)
    assert says in finding.message


def test_no_metadata_is_worth_knowing_once(tmp_path):
    bare = framed(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1")
    other = bare.replace(b'"a"', b'"b"')
    files = {"model-00001-of-00002.safetensors": bare, "model-00002-of-00002.safetensors": other}
    assert codes(open_checkpoint(draft(tmp_path, files))) == ["FIL019", "FIL026"]


def test_a_tensor_named_twice_in_a_header(tmp_path):
    entry = b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}'
    raw = b'{"__metadata__":{"format":"pt"},' + entry + b"," + entry + b"}"
    finding = only(open_checkpoint(draft(tmp_path, {"model.safetensors": framed(raw, b"1")})))
    assert (finding.code, finding.location.tensor) == ("FIL028", "a")


# -- several files


def test_two_files_without_an_index_are_merged(tmp_path):
    files = {"model.safetensors": weights({"a": 1}), "model_1.safetensors": weights({"weight": 2})}
    checkpoint = open_checkpoint(draft(tmp_path, files))
    assert (only(checkpoint).code, only(checkpoint).severity) == ("FIL016", Severity.WARNING)
    assert "model.safetensors, model_1.safetensors" in only(checkpoint).message
    assert list(checkpoint.tensors) == ["a", "weight"]


def test_the_same_tensor_in_two_files(tmp_path):
    files = {"backup.safetensors": weights({"a": 1, "b": 1}), "model.safetensors": weights({"a": 5, "b": 1})}
    checkpoint = open_checkpoint(draft(tmp_path, files))
    assert only(checkpoint).code == "FIL017"
    assert "a is in both backup.safetensors and model.safetensors (and 1 more" in only(checkpoint).message
    assert checkpoint.tensors["a"].shape == (5,)  # the later file wins, as in engines


def test_complete_shards_without_an_index(tmp_path):
    files = {SHARDS[0]: weights({"a": 1}), SHARDS[1]: weights({"b": 1})}
    finding = only(open_checkpoint(draft(tmp_path, files)))
    assert (finding.code, finding.severity) == ("FIL026", Severity.INFO)


def test_incomplete_shards_without_an_index(tmp_path):
    finding = only(open_checkpoint(draft(tmp_path, {"model-00001-of-00003.safetensors": weights({"a": 1})})))
    assert finding.code == "FIL008"
    assert "model-00002-of-00003.safetensors, model-00003-of-00003.safetensors are missing" in finding.message
    assert "1 of 3" in finding.message


def test_shards_and_a_file_beside_them(tmp_path):
    files = {SHARDS[0]: weights({"a": 1}), SHARDS[1]: weights({"b": 1}), "z.safetensors": weights({"c": 1})}
    assert codes(open_checkpoint(draft(tmp_path, files))) == ["FIL016", "FIL026"]


@pytest.mark.parametrize("index", [True, False])
def test_a_consolidated_copy(index, tmp_path):
    folder = sharded(tmp_path) if index else draft(tmp_path)
    (folder / "consolidated.safetensors").write_bytes(weights({"tok_embeddings.weight": 1}))
    finding = only(open_checkpoint(folder))
    assert (finding.code, finding.severity) == ("FIL015", Severity.WARNING)
    assert finding.location.file == "consolidated.safetensors"


def test_a_consolidated_file_alone_is_the_weights(tmp_path):
    checkpoint = open_checkpoint(draft(tmp_path, {"consolidated.safetensors": weights({"a": 1})}))
    assert checkpoint.findings == ()
    assert list(checkpoint.tensors) == ["a"]


def test_safetensors_and_a_pickle(tmp_path):
    draft(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"never read")
    finding = only(open_checkpoint(tmp_path))
    assert (finding.code, finding.severity) == ("FIL018", Severity.INFO)
    assert "pytorch_model.bin is not read, because model.safetensors is there" in finding.message


def test_training_files_beside_weights(tmp_path):
    draft(tmp_path)
    for name in (
        "optimizer.bin",
        "random_states_0.pkl",
        "scheduler.bin",
        "training_args.bin",
        "training_state.pt",
    ):
        (tmp_path / name).write_bytes(b"x")
    finding = only(open_checkpoint(tmp_path))
    assert (finding.code, finding.severity) == ("FIL023", Severity.INFO)
    assert (
        "optimizer.bin, random_states_0.pkl, scheduler.bin and 2 more are training files" in finding.message
    )


# -- the index


def test_a_missing_shard(tmp_path):
    folder = sharded(tmp_path)
    (folder / SHARDS[1]).unlink()
    checkpoint = open_checkpoint(folder)
    finding = only(checkpoint)
    assert (finding.code, finding.severity, finding.location.file) == ("FIL008", Severity.ERROR, INDEX)
    assert f"names {SHARDS[1]}, which is missing" in finding.message
    assert "1 of 3 tensors" in finding.message
    assert list(checkpoint.tensors) == ["a", "b"]


def test_all_shards_missing(tmp_path):
    folder = sharded(tmp_path)
    for shard in SHARDS:
        (folder / shard).unlink()
    assert codes(open_checkpoint(folder)) == ["FIL008"]


def test_a_shard_in_a_subfolder_is_missing_to_engines(tmp_path):
    folder = sharded(tmp_path, {"a": SHARDS[0], "b": SHARDS[0], "c": "more/x.safetensors"})
    (folder / "more").mkdir()
    (folder / SHARDS[1]).rename(folder / "more" / "x.safetensors")
    finding = only(open_checkpoint(folder))
    assert finding.code == "FIL008"
    assert "engines don't look into subfolders" in finding.message


def test_a_damaged_shard_has_no_followers(tmp_path):
    folder = sharded(tmp_path)
    (folder / SHARDS[1]).write_bytes(LFS)
    assert codes(open_checkpoint(folder)) == ["FIL002"]


def test_a_stray_copy_beside_the_index(tmp_path):
    folder = sharded(tmp_path)
    (folder / "model.safetensors").write_bytes(weights({"a": 4, "b": 2, "c": 3}))
    finding = only(open_checkpoint(folder))
    assert (finding.code, finding.severity) == ("FIL009", Severity.WARNING)
    assert "3 of its 3 tensors are in the shards, too" in finding.message


def test_a_damaged_stray(tmp_path):
    folder = sharded(tmp_path)
    (folder / "model.safetensors").write_bytes(b"x")
    finding = only(open_checkpoint(folder))
    assert finding.code == "FIL009"
    assert "damaged" in finding.message


def test_a_stale_index_hides_a_shard(tmp_path):
    folder = sharded(tmp_path)
    (folder / "model-00003-of-00003.safetensors").write_bytes(weights({"d2t": 4}))
    finding = only(open_checkpoint(folder))
    assert (finding.code, finding.severity) == ("FIL013", Severity.ERROR)
    assert "1 of its tensors (d2t)" in finding.message


def test_the_index_names_the_wrong_shard(tmp_path):
    finding = only(open_checkpoint(sharded(tmp_path, {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]})))
    assert (finding.code, finding.severity) == ("FIL011", Severity.WARNING)
    assert f"says that b is in {SHARDS[1]}, but it is in {SHARDS[0]} (and 1 more)" in finding.message


def test_the_index_names_a_tensor_that_is_nowhere(tmp_path):
    names = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "fc.weight": SHARDS[1]}
    finding = only(open_checkpoint(sharded(tmp_path, names)))
    assert (finding.code, finding.severity, finding.location.tensor) == (
        "FIL012",
        Severity.ERROR,
        "fc.weight",
    )


def test_the_index_lacks_a_tensor(tmp_path):
    checkpoint = open_checkpoint(sharded(tmp_path, {"a": SHARDS[0], "c": SHARDS[1]}))
    assert (only(checkpoint).code, only(checkpoint).severity) == ("FIL014", Severity.INFO)
    assert "b" in checkpoint.tensors  # engines load whole shards


def test_the_index_leaves_the_folder(tmp_path):
    secret = tmp_path / "secret.safetensors"
    secret.write_bytes(weights({"stolen": 1}))
    folder = sharded(
        tmp_path / "draft", {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "x": "../secret.safetensors"}
    )
    checkpoint = open_checkpoint(folder)
    assert (only(checkpoint).code, only(checkpoint).severity) == ("SEC003", Severity.ERROR)
    assert "'../secret.safetensors', which leaves the folder" in only(checkpoint).message
    assert "stolen" not in checkpoint.tensors


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (LFS, "FIL002", "Git LFS"),
        (b'{"weight_map": {"a": "x"}}\n}', "FIL010", "Extra data"),
        (b"\xff", "FIL010", "not UTF-8 (byte 0)"),
        (b"[" * 100_000, "FIL010", "nested too deeply"),
        (b"[]", "FIL010", "not a JSON object"),
        (b"{}", "FIL010", "no weight_map"),
        (b'{"weight_map": []}', "FIL010", "no weight_map"),
        (b'{"weight_map": {}}', "FIL010", "empty weight_map"),
        (b'{"weight_map": {"a": 1}}', "FIL010", "maps 'a' to 1"),
        (b'{"weight_map": {"a": null, "b": "x"}}', "FIL010", "maps 'a' to None"),
    ],
)
def test_a_damaged_index_is_one_finding_and_all_files_are_read(content, code, says, tmp_path):
    folder = sharded(tmp_path)
    (folder / INDEX).write_bytes(content)
    checkpoint = open_checkpoint(folder)
    assert (only(checkpoint).code, only(checkpoint).severity) == (code, Severity.ERROR)
    assert says in only(checkpoint).message
    assert only(checkpoint).location.file == INDEX
    assert len(checkpoint.tensors) == 3


def test_an_index_of_absurd_size(tmp_path, monkeypatch):
    monkeypatch.setattr("ckpt_tools.container.index.MAX_INDEX", 10)
    assert "too large" in only(open_checkpoint(sharded(tmp_path))).message


# -- config and other files


@pytest.mark.parametrize(
    ("content", "says", "line"),
    [
        (b'{\n"a": 1\n"b": 2}', "is not JSON", 3),
        (b"[1]", "is a list", None),
        (b'"x"', "is a string", None),
        (b"null", "is null", None),
        (b"3", "is a bare value", None),
        (b"\xff\xfe{\x00}\x00", "is UTF-16", 1),
        (b'{"a":\n"\xff"}', "is not UTF-8 (byte 7)", 2),
        (b"[" * 100_000, "nested too deeply", None),
        (b"", "is empty (0 bytes)", None),
    ],
)
def test_a_damaged_config_is_one_finding(content, says, line, tmp_path):
    draft(tmp_path)
    (tmp_path / "config.json").write_bytes(content)
    checkpoint = open_checkpoint(tmp_path)
    assert (only(checkpoint).code, only(checkpoint).severity) == ("FIL021", Severity.ERROR)
    assert says in only(checkpoint).message
    assert only(checkpoint).location.line == line
    assert checkpoint.config is None


def test_a_config_that_is_a_link_to_nothing(tmp_path):
    draft(tmp_path)
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("gone")
    assert "is empty" in only(open_checkpoint(tmp_path)).message


def test_a_config_that_is_an_lfs_pointer(tmp_path):
    draft(tmp_path)
    (tmp_path / "config.json").write_bytes(LFS)
    assert only(open_checkpoint(tmp_path)).code == "FIL002"


def test_a_config_with_a_byte_order_mark_is_still_read(tmp_path):
    draft(tmp_path)
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"hidden_size": 4}')
    checkpoint = open_checkpoint(tmp_path)
    assert only(checkpoint).code == "FIL021"
    assert "byte order mark" in only(checkpoint).message
    assert checkpoint.config == {"hidden_size": 4}


def test_a_config_of_absurd_size(tmp_path, monkeypatch):
    monkeypatch.setattr("ckpt_tools.container.config.MAX_CONFIG", 3)
    assert "is larger than 3 bytes" in only(open_checkpoint(draft(tmp_path))).message


def test_a_key_twice_in_the_config(tmp_path):
    draft(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 1,\n "x": {"y": 1},\n "hidden_size": 2}')
    checkpoint = open_checkpoint(tmp_path)
    finding = only(checkpoint)
    assert (finding.code, finding.severity) == ("FIL022", Severity.WARNING)
    assert (finding.location.pointer, finding.location.line) == ("/hidden_size", 3)
    assert checkpoint.config == {"hidden_size": 2, "x": {"y": 1}}


def test_a_quantiser_s_config_is_noted(tmp_path):
    draft(tmp_path)
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert open_checkpoint(tmp_path).extra["hf_quant_config"] == {"quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text("{")
    checkpoint = open_checkpoint(tmp_path)
    assert only(checkpoint).location.file == "hf_quant_config.json"
    assert checkpoint.extra["hf_quant_config"] is None


@pytest.mark.parametrize(
    ("config", "module", "says"),
    [
        (
            {"auto_map": {"": "config.X"}},
            "config.py",
            "config.json has auto_map and the folder holds config.py",
        ),
        ({"auto_map": {"AutoModel": "m.X"}}, None, "config.json has auto_map"),
        ({"a": 1}, "modeling.py", "the folder holds modeling.py"),
    ],
)
def test_remote_code_is_worth_knowing(config, module, says, tmp_path):
    draft(tmp_path, config=config)
    if module:
        (tmp_path / module).write_text("")
    finding = only(open_checkpoint(tmp_path))
    assert (finding.code, finding.severity, finding.message) == ("SEC004", Severity.INFO, says)


def test_names_in_messages_are_escaped(tmp_path):
    names = {"a": SHARDS[0], "b": SHARDS[0], "c": SHARDS[1], "\x1b[31m\ud800": SHARDS[1]}
    finding = only(open_checkpoint(sharded(tmp_path, names)))
    assert finding.message.isprintable()


def test_every_code_has_a_page():
    for code, row in CODES.items():
        assert code == row.code
        assert code[:3] in ("FIL", "SEC")
        assert row.name == row.name.lower()
        for text in (row.title, row.checks, row.why, row.example, row.fix):
            assert text
    assert len({row.name for row in CODES.values()}) == len(CODES)


def test_paths_may_be_strings(tmp_path):
    assert open_checkpoint(str(draft(tmp_path))).path == str(tmp_path)
    assert isinstance(Path(open_checkpoint(tmp_path).root), Path)
