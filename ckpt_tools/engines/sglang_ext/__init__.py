"""SGLang with ckpt's model package loaded (``SGLANG_EXTERNAL_MODEL_PACKAGE=ckpt_tools.sglang_models``)."""
