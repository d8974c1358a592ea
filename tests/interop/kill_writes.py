"""Kill rewrites of a checkpoint and look at what is left, right away and after the next run.

    python tests/interop/kill_writes.py random 200 --megabytes 50   # SIGKILL at random moments
    python tests/interop/kill_writes.py steps                       # SIGKILL before each step of a write

A folder OUT is rewritten again and again with the next generation of its content. Whenever the writer dies,
OUT is the old generation or the new one, byte for byte, and is there if it was there before; after the next
run, it is the new one and nothing lies beside it. Where folders can't be exchanged in one call ("backup"), a
kill between the two renames leaves OUT missing until the next run starts, which puts the old one back first.
A folder that can't be renamed over ("fill") may be caught half-filled, but never with a config.json then.

Prints a JSON summary; exits 1 with the reason at the first folder that isn't as promised.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckpt_tools.container import fill, stage
from ckpt_tools.container.layout import FileRange, OutFile, OutTensor, OutWeights, Produced
from ckpt_tools.container.write import write_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

KINDS = ("exchange", "backup", "fill", "fresh")
SHARDS = 3


class Broken(Exception):
    """OUT isn't as promised."""


class Rewrites:
    """A source, and the outputs made of it generation by generation."""

    def __init__(self, home: Path, kind: str, nbytes: int) -> None:
        self.home, self.kind, self.out = home, kind, home / "out"
        self.source = home / "in.bin"
        self.source.write_bytes(os.urandom(nbytes))
        self.share = nbytes // SHARDS // 4096 * 4096
        self.beside = ["generation-0", "generation-1", "in.bin"]
        if kind == "fill":
            (home / "real").mkdir()
            self.out.symlink_to(home / "real")
            self.beside += ["out", "real"]
        for generation in (0, 1):
            write_folder(home / f"generation-{generation}", self.files(generation), checksum=True)

    def files(self, generation: int) -> Sequence[OutWeights | OutFile]:
        """Shards of the source's bytes, marked and shifted by the generation, so that every file differs.

        Both take the same steps to write, also where whole blocks are shared.
        """
        mark = bytes([generation]) * 9000
        tensors = [
            (
                OutTensor(f"mark.{i}", "U8", (len(mark),), Produced(len(mark), lambda: iter([mark]))),
                OutTensor(f"data.{i}", "U8", (self.share - 8,), self._range(i * self.share + 8 * generation)),
            )
            for i in range(SHARDS)
        ]
        return [
            *(OutWeights(f"model-{i}.safetensors", pair) for i, pair in enumerate(tensors)),
            OutFile("config.json", b'{"generation": %d}' % generation),
        ]

    def _range(self, start: int) -> FileRange:
        return FileRange(self.source, start, start + self.share - 8)

    def write(self, generation: int) -> None:
        """Rewrite OUT as the command does."""
        if self.kind == "backup":
            stage._exchange = lambda *_: False
        write_folder(self.out, self.files(generation), force=True)

    def start_from(self, generation: int) -> None:
        """Have OUT hold a generation, or be absent where each write is the first."""
        if self.kind == "fresh":
            shutil.rmtree(self.out, ignore_errors=True)
        elif self.found() != generation:
            self.write(generation)

    def found(self) -> int | None:
        """The generation that OUT holds whole; None when it is absent."""
        if not self.out.exists():
            return None
        for generation in (0, 1):
            wanted = self.home / f"generation-{generation}"
            names = sorted(os.listdir(wanted))
            if sorted(os.listdir(self.out)) == names and all(
                (wanted / n).read_bytes() == (self.out / n).read_bytes() for n in names
            ):
                return generation
        raise Broken(f"{self.kind}: OUT is neither generation: {sorted(os.listdir(self.out))}")

    def check_killed(self, old: int, new: int) -> str:
        """Look at OUT after a kill, and again once the next run has cleared up; what was seen, in a word."""
        if self.kind == "fill" and not (self.out / "config.json").exists():
            return "half filled"
        if self.kind == "backup" and not self.out.exists():
            stage.recover(self.out)
            if self.found() != old:
                raise Broken("backup: the old generation didn't come back")
            return "put back"
        allowed = {old, new} if self.kind != "fresh" else {None, new}
        seen = set()
        for moment in ("after the kill", "once cleared up"):
            if self.kind == "fill":  # its stage lies inside
                stage.recover(self.out)
            seen.add(self.found())
            if not seen <= allowed or len(seen) > 1:
                raise Broken(f"{self.kind}: OUT holds {seen} {moment}, not one of {allowed}")
            stage.recover(self.out)
        return "new" if seen == {new} else "old"

    def check_next_run(self, new: int) -> None:
        """The next run gives the new generation and leaves nothing beside it."""
        self.write(new)
        if self.found() != new:
            raise Broken(f"{self.kind}: the next run gave {self.found()}")
        names = sorted(name for name in os.listdir(self.home) if name != "out" or self.kind == "fill")
        if names != sorted(self.beside):
            raise Broken(f"{self.kind}: {names} lie in the folder, {self.beside} should")


def forked(work: Callable[[], None]) -> int:
    """Run work in a child process; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a child must never run on as its parent
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return pid


def finished(pid: int) -> bool:
    """Wait for a child: True when it came to its end, False when it was killed."""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGKILL:
        return False
    if status:
        raise Broken(f"the writer failed with status {status}")
    return True


def kill_at_random(home: Path, kind: str, times: int, nbytes: int, rng: random.Random) -> dict[str, int]:
    """Kill that many rewrites at random moments, half of them anywhere, half near the end."""
    rewrites = Rewrites(home, kind, nbytes)
    rewrites.write(0)
    rewrites.start_from(0)
    start = time.perf_counter()
    finished(forked(lambda: rewrites.write(0)))
    usual = time.perf_counter() - start
    seen: Counter[str] = Counter()
    new = 0
    while seen.total() - seen["finished"] < times:
        new = 1 - new
        rewrites.start_from(1 - new)
        pid = forked(lambda new=new: rewrites.write(new))
        time.sleep(usual * (rng.uniform(0, 1.1) if rng.random() < 0.5 else rng.uniform(0.8, 1.1)))
        os.kill(pid, signal.SIGKILL)
        if finished(pid):
            seen["finished"] += 1
        else:
            seen[rewrites.check_killed(1 - new, new)] += 1
        rewrites.check_next_run(new)
    return dict(seen)


def die_before(step: int) -> None:
    """Make this process kill itself before the step-th of the calls that change the disk."""
    done = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return counting

    class File(io.FileIO):
        write = counted(io.FileIO.write)
        truncate = counted(io.FileIO.truncate)

    changing = (
        "mkdir open rename replace unlink rmdir fsync copy_file_range sendfile write truncate chmod close"
    )
    for name in changing.split():
        setattr(os, name, counted(getattr(os, name)))
    fcntl.flock = counted(fcntl.flock)
    fcntl.ioctl = counted(fcntl.ioctl)
    stage._exchange = counted(stage._exchange)
    fill.open = counted(lambda path, mode, buffering: File(path, mode))  # type: ignore[attr-defined]


def kill_at_steps(home: Path, kind: str, nbytes: int) -> dict[str, int]:
    """Kill a rewrite before its first step, the next one before its second, and so on to the last."""
    rewrites = Rewrites(home, kind, nbytes)
    rewrites.write(0)
    seen: Counter[str] = Counter()
    step, done = 0, False
    while not done:
        step += 1
        new = step % 2
        rewrites.start_from(1 - new)

        def work(step: int = step, new: int = new) -> None:
            if rewrites.kind == "backup":
                stage._exchange = lambda *_: False
            die_before(step)
            write_folder(rewrites.out, rewrites.files(new), force=True)

        done = finished(forked(work))
        seen["finished" if done else rewrites.check_killed(1 - new, new)] += 1
        rewrites.check_next_run(new)
    return dict(seen)


def main() -> None:
    """Parse the arguments, kill, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("how", choices=["random", "steps"])
    parser.add_argument("times", nargs="?", type=int, default=200, help="kills per kind, with random")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: all of them")
    parser.add_argument("--megabytes", type=float, default=0.2)
    parser.add_argument("--where", type=Path, help="a folder on the file system to use")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    args = parser.parse_args()
    nbytes = int(args.megabytes * 1e6)
    rng = random.Random(args.seed)
    summary: dict[str, object] = {"seed": args.seed}
    for kind in args.kind or KINDS:
        with tempfile.TemporaryDirectory(prefix="kill-writes-", dir=args.where) as home:
            try:
                if args.how == "random":
                    summary[kind] = kill_at_random(Path(home), kind, args.times, nbytes, rng)
                else:
                    summary[kind] = kill_at_steps(Path(home), kind, nbytes)
            except Broken as broken:
                sys.exit(f"{broken} (seed {args.seed})")
    sys.stdout.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    main()
