"""The codes of a push's findings: one row each, from which findings and their pages are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckpt_tools.container.codes import Code
from ckpt_tools.model import Finding, Location, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

_CARDS = "https://huggingface.co/docs/hub/model-cards"
_LICENSES = "https://huggingface.co/docs/hub/repositories-licenses"
_TOKENS = "https://huggingface.co/docs/hub/security-tokens"
_UPLOAD = "https://huggingface.co/docs/huggingface_hub/guides/upload"
_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

_ROWS = (
    Code(
        "HUB001", "card-invalid", _ERROR, "The model card's metadata is invalid",
        "The block at the top of README.md is YAML that the Hub accepts, asked before anything is sent.",
        "The Hub validates the card when the commit is made, after every byte of the weights has gone up, "
        "and then refuses it all.",
        "README.md metadata is invalid: model-index must be a list; nothing was uploaded",
        "Change the named key in README.md; without the block, ckpt writes one.",
        (_CARDS, "https://github.com/huggingface/huggingface_hub/issues/1927"),
    ),
    Code(
        "HUB002", "license-missing", _ERROR, "No license is stated",
        "The card or `--license` names a license.",
        "A draft is a work derived from its target's training: without a license nobody may use it, and the "
        "target's license may oblige you to name one.",
        "neither README.md nor --license names a license",
        "Pass `--license ID`, with the id that the Hub uses (apache-2.0, mit, llama3.1, other …).",
        (_LICENSES,),
    ),
    Code(
        "HUB003", "license-conflict", _ERROR, "The card and the command name different licenses",
        "`--license` equals the license in README.md, when both are there.",
        "One of the two would be published wrongly.",
        "README.md says license: mit, --license says apache-2.0",
        "Drop the flag, or change README.md.",
        (_LICENSES,),
    ),
    Code(
        "HUB004", "card-markers-broken", _ERROR, "The generated part of the card can't be told from your own",
        "README.md holds each of the two marker comments once, begin before end, or neither.",
        "Between the markers the text is written anew at each push; outside it is yours and kept. With one "
        "marker gone, your text could be lost.",
        "README.md has the begin marker and no end marker",
        "Put the missing marker back, or remove both: then the generated part is added at the end.",
    ),
    Code(
        "HUB005", "no-write-access", _ERROR, "The token may not write there",
        "What the Hub says about the token: its role, its user and that user's organisations.",
        "The upload would be refused, some of it after the weights have gone up.",
        "the token is read-only; it needs write access to me",
        "Make a token with write access at https://huggingface.co/settings/tokens, or use `--create-pr` to "
        "propose the files to somebody else's repository.",
        (_TOKENS, "https://github.com/huggingface/huggingface_hub/issues/937"),
    ),
    Code(
        "HUB006", "verify-failed", _ERROR, "The draft doesn't pass verify",
        "The report of `ckpt verify` passes.",
        "Whoever downloads the draft would serve it broken. There is no way around verify.",
        "verify found 2 errors (CAP003, VOC001); nothing was uploaded",
        "Repair what verify names; `ckpt fix-keys` repairs much of it.",
    ),
    Code(
        "HUB007", "smoke-not-of-these-files", _ERROR, "The smoke report failed or is of other files",
        "The smoke report passes, and its content hashes are those of the files that are pushed.",
        "A report of other weights would vouch for these.",
        "the smoke report is of another model.safetensors (sha256:1f… there, sha256:9a… here)",
        "Run `ckpt smoke` on this folder again, or push with `--smoke`.",
    ),
    Code(
        "HUB008", "secret", _ERROR, "A file holds a secret",
        "Text files and safetensors headers hold no Hub, cloud or source-hosting token, private key or "
        "address with a password.",
        "What is once on the Hub stays in its history and in the caches of those who downloaded it.",
        "config.json:12 holds a Hub token (hf_…)",
        "Remove it, and revoke it: it may have leaked by other ways already.",
        (_TOKENS,),
    ),
    Code(
        "HUB009", "local-path", _ERROR, "A config points into this machine",
        "No string in a pushed JSON file is an absolute or home path.",
        "The path says who you are and leads nowhere elsewhere; vLLM opens the verifier by this name.",
        "config.json /speculators_config/verifier/name_or_path is /data/models/Llama-3.1-8B",
        "Give the target's Hub id with `--base-model`, which replaces it, or edit the file.",
        ("vLLM 0.33.0 transformers_utils/configs/speculators",),
    ),
    Code(
        "HUB010", "path-rewritten", _INFO, "A local path in a config is replaced in what is pushed",
        "Keys that are known to name the draft's own folder or its target.",
        "The local file stays as it is; only the uploaded copy differs.",
        "config.json /_name_or_path becomes null in what is pushed",
        "Nothing needs to be done.",
    ),
    Code(
        "HUB011", "no-weights", _ERROR, "Nothing that is pushed holds weights",
        "At least one weight file is among the files that go.",
        "The repository would be a card without a model.",
        "no *.safetensors file is among the files that would be pushed",
        "Push the folder that holds the weights.",
    ),
    Code(
        "HUB012", "left-out", _INFO, "Files of the folder are not pushed",
        "Only the draft's own files go: weights, configs, tokenizer, card, license.",
        "Optimizer states, logs and tokens lie beside the weights in many training outputs.",
        "3 files are left out: optimizer.pt (training state), train.log (log), .env (hidden)",
        "`--include NAME` adds a file that belongs to the draft.",
    ),
    Code(
        "HUB013", "pickled-weights-pushed", _WARNING, "The weights that are pushed are pickles",
        "Weights are safetensors; pickles go only when there is nothing else.",
        "The Hub marks pickles as unsafe, and careful users don't load them.",
        "pytorch_model.bin is a pickle, and there are no safetensors",
        "`ckpt fix-keys IN OUT` writes safetensors.",
    ),
    Code(
        "HUB014", "foreign-weights", _ERROR, "The repository holds other weights",
        "Weight files on the Hub that this push neither contains nor may remove, since they weren't pushed "
        "by ckpt.",
        "Engines load every weight file of a repository: two drafts in one give a broken one. It may be the "
        "wrong repository.",
        "me/draft holds pytorch_model.bin, which this push doesn't contain",
        "Push to another repository, or delete those files first with `hf repo-files`.",
        (_UPLOAD,),
    ),
    Code(
        "HUB015", "stale-weights-removed", _INFO, "Weights of an earlier push are removed",
        "Weight files that an earlier push by ckpt left and this one doesn't contain.",
        "Engines load every weight file of a repository. The history keeps them.",
        "model-00002-of-00002.safetensors is no longer part of the draft, and is removed in the same commit",
        "Nothing needs to be done.",
    ),
    Code(
        "HUB016", "already-public", _ERROR, "The repository is public already",
        "With `--private`, an existing repository is private.",
        "The flag only holds when a repository is made: the files would be public.",
        "me/draft exists and is public",
        "Make it private in its settings, or drop --private.",
    ),
    Code(
        "HUB017", "remote-card-replaced", _WARNING, "The card on the Hub has text of its own",
        "When README.md lies in the folder and on the Hub, the text outside the markers is the same.",
        "The folder's text replaces what was written on the Hub's site.",
        "README.md on the Hub has text outside the generated part that the folder's README.md lacks",
        "Copy it into the folder's README.md, or remove that file: then the Hub's text is kept.",
        (_CARDS,),
    ),
    Code(
        "HUB018", "arrived-differently", _ERROR, "What arrived isn't what was sent",
        "After the commit, the size and the hash of every file in the Hub's listing.",
        "Downloads would get other bytes. A .gitignore in the repository can hide files, too.",
        "model.safetensors is missing from me/draft@4f2c… after the push",
        "Push again; if it stays, look at the repository's .gitignore and .gitattributes.",
        (_UPLOAD,),
    ),
    Code(
        "HUB019", "retried", _WARNING, "The Hub failed for a moment",
        "Requests that failed with 408, 429, 5xx or a lost connection and worked when tried again.",
        "The push is complete; the listing was compared afterwards.",
        "committing to me/draft: 504 from the Hub, retry 1/5",
        "Nothing needs to be done.",
        ("https://github.com/huggingface/huggingface_hub/issues/2375",),
    ),
    Code(
        "HUB020", "base-model-missing", _WARNING, "The card names no target",
        "The card's `base_model` is the target's Hub id.",
        "The Hub lists drafts under their target by it, and that is where users look.",
        "the target has no Hub id, so the card has no base_model",
        "Pass the target's Hub id with `--base-model`.",
        (_CARDS,),
    ),
)  # fmt: skip

CODES: Mapping[str, Code] = {row.code: row for row in _ROWS}


def finding(code: str, message: str, location: Location | None = None, hint: str | None = None) -> Finding:
    """A finding of this family, with name and severity from its row; without a hint, the page's advice."""
    row = CODES[code]
    return Finding(code, row.name, row.severity, message, location or Location(), hint or row.fix)
