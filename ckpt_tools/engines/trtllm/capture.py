"""Which target layers TensorRT-LLM captures for an EAGLE-3 draft: outputs of 0-based layers, named when the engine is built.

The draft's config isn't asked: ``get_spec_metadata`` (speculative/utils.py) passes ``eagle3_layers_to_capture`` of the LLM API
alone, and no file that was read mentions ``eagle_aux_hidden_state_layer_ids``. A layer hands over its output
(modeling_speculative.py ``Eagle3DecoderLayer.forward`` and eagle3.py ``maybe_capture_hidden_states``: hidden + residual at the
layer's end), so an id is the layer whose output is captured; ids are sorted (eagle3.py ``__post_init__``).
"""

from __future__ import annotations

REFERENCE = "TensorRT-LLM speculative/eagle3.py Eagle3OneModelSpecMetadata.__post_init__"
#: The LLM API's field (llmapi/llm_args.py ``EagleDecodingConfig``).
FIELD = "eagle3_layers_to_capture"
#: How many layers fc takes when the field isn't given (llm_args.py ``num_capture_layers``).
DEFAULT_COUNT = 3
#: A target of fewer has no default (a target of one has: its only layer).
FEWEST_LAYERS = 6
TOO_FEW = "ValueError: Not enough hidden layers for default EAGLE3 capture"


def default_layers(num_layers: int) -> tuple[int, ...] | None:
    """The layers captured when ``eagle3_layers_to_capture`` isn't given; ``None`` where the engine raises :data:`TOO_FEW`."""
    if num_layers == 1:
        return (0,)
    if num_layers < FEWEST_LAYERS:
        return None
    return (1, num_layers // 2 - 1, num_layers - 4)
