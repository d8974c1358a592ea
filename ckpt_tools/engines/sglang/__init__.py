"""SGLang: the contract of its draft loaders, by release."""
