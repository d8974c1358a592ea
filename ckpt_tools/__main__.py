"""``python -m ckpt_tools``."""

from ckpt_tools.cli import main

main()
