"""`Group`: the processes of a job under ``torchrun``, and what they say to one another."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, ClientError, DataError, RankError, public_text
from bayesfed.federated.clients.serialisation import to_safetensors
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.training.optimisers import ADAM
from bayesfed.keys import Key
from bayesfed.models import cnn

log = logging.getLogger("bayesfed.site")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Group:
    """The ranks of a job, which exchange values over gloo. Without a launcher there is one rank,
    and nothing is sent.

    Parameters
    ----------
    rank, size
        Number of this process, from 0, and of all processes.
    handle
        Group of torch.distributed; None for one rank.
    remote
        Whether rank 0 is on another machine.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None
    remote: bool = False

    @classmethod
    def join(cls, timeout_s: float) -> Group:
        """Return the group of this job, as ``torchrun`` describes it in the environment.

        Raises
        ------
        ArgumentError
            If restarts of this job would fail.
        RankError
            If the other ranks do not come.
        """
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return cls()
        if (
            int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))
            and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        ):
            raise ArgumentError(
                "Ranks",
                "a store that restarted processes can use",
                "a store that keeps the addresses of processes that have died",
                "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment of torchrun",
            )
        timeout = timedelta(seconds=timeout_s)
        try:
            if not dist.is_initialized():
                dist.init_process_group("gloo", timeout=timeout)
            # A group of its own, whatever backend the script uses.
            handle = dist.new_group(backend="gloo", timeout=timeout)
        except RuntimeError as problem:
            raise _lost("joining", problem) from problem
        joined = cls(dist.get_rank(), dist.get_world_size(), handle)
        return replace(joined, remote=joined.broadcast(_host()) != _host())

    def portable(self, error: Exception | None) -> Exception | None:
        """Return an error that rank 0 can raise. Of another machine it has the text that may leave
        it, since the full one may hold cells of rows; that is in the log "bayesfed.site".
        """
        if error is None or not self.remote:
            return portable(error)
        log.warning("rank %d: %s", self.rank, error, exc_info=error)
        if isinstance(error, ClientError):
            return portable(error.without_rows())
        kind = type(error) if isinstance(error, ArgumentError | DataError) else RankError
        return portable(kind(public_text(error)))

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all ranks on rank 0, in their order; an empty list elsewhere."""
        if self.handle is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.rank == 0 else None
        self._tried("gathering", lambda: dist.gather_object(value, values, 0, group=self.handle))
        return values or []

    def broadcast(self, value: Result) -> Result:
        """Return rank 0's value on every rank."""
        if self.handle is None:
            return value
        values = [value]
        self._tried(
            "broadcasting", lambda: dist.broadcast_object_list(values, 0, group=self.handle)
        )
        return values[0]

    def reduce(self, tensor: Tensor) -> None:
        """Add the tensors of all ranks, in place on rank 0. Elsewhere the tensor is not to be used
        afterwards.
        """
        if self.handle is not None:
            self._tried("adding", lambda: dist.reduce(tensor, 0, group=self.handle))

    def led(self, work: Callable[[], Result]) -> Result:
        """Do something on rank 0 alone, and return its result on every rank. An error of it is
        raised on every rank.
        """
        result, error = None, None
        if self.rank == 0:
            try:
                result = work()
            except Exception as problem:
                if self.handle is None:
                    raise
                error = problem
        result, sent = self.broadcast((result, portable(error)))
        if sent is not None:
            raise error or sent
        return cast(Result, result)

    def alike(self, what: Mapping[str, str], hint: str) -> None:
        """Raise `ArgumentError` on every rank unless all ranks give the same texts by name."""
        several = self.gather(dict(what))

        def compared() -> None:
            for rank, other in enumerate(several):
                for name, text in several[0].items():
                    if other.get(name) != text:
                        raise ArgumentError(
                            f"Ranks, rank {rank}",
                            f"{name} {text!r}, as on rank 0",
                            f"{other.get(name)!r}",
                            hint,
                        )

        self.led(compared)

    def wait(self) -> None:
        """Wait for all ranks, so that none ends while others still read what it sent."""
        if self.handle is not None:
            self._tried("waiting", lambda: dist.barrier(group=self.handle))

    def leave(self) -> None:
        """Leave the group."""
        if self.handle is not None and dist.is_initialized():
            dist.destroy_process_group(self.handle)

    def _tried(self, doing: str, call: Callable[[], object]) -> None:
        try:
            call()
        except RuntimeError as problem:
            raise _lost(f"rank {self.rank} of {self.size}, {doing}", problem) from problem


def _lost(where: str, problem: Exception) -> RankError:
    actual = (str(problem).splitlines() or [type(problem).__name__])[0]
    return RankError(
        where, "all ranks to answer", actual, "torchrun --max-restarts, and resume=newest(folder)"
    )


def portable(error: Exception | None) -> Exception | None:
    """Return an error that another process can raise: the error itself if it can be sent, else its
    text.
    """
    try:
        return error if isinstance(pickle.loads(pickle.dumps(error)), type(error)) else None
    except Exception:
        return RankError(f"{type(error).__name__}: {error}")


def _host() -> str:
    """Return what tells this machine from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return socket.gethostname() + (boot.read_text() if boot.is_file() else "")


def gpu() -> torch.device | None:
    """Return the GPU of this rank, the one of its number on this machine (``LOCAL_RANK``); None if
    there are no GPUs.
    """
    if not torch.cuda.is_available():
        return None
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def machine() -> dict[str, str]:
    """Return what the bits of training depend on: the build of torch, the instructions and the GPU
    it uses, and a digest of a training.
    """
    device = gpu()
    return {
        "torch": torch.__version__,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "GPU": torch.cuda.get_device_name(device) if device else "none",
        "training": _training(),
    }


def _training() -> str:
    """Return a digest of a training on few rows, of single functions and of decompositions.

    Libraries choose kernels by processor and by shape, so products of several shapes are among
    them.
    """
    key = Key(0, "ranks", "canary")
    net, generator = cnn((1, 8, 8), 10, key.child("net"), hidden=128), key.generator()
    adam = ADAM(net.parameters(), 1e-3, fused=True)
    with one_thread():
        for count in (32, 12, 9, 1, 64, 20):
            rows = torch.randn(count, 8, 8, generator=generator)
            adam.zero_grad()
            nn.functional.cross_entropy(net(rows), torch.arange(count) % 10).backward()
            adam.step()
        square = rows[0].double() @ rows[1].double()
        parts = (
            *net.parameters(),
            rows.exp(),
            rows.abs().log(),
            rows.erf(),
            rows.tanh(),
            torch.linalg.svdvals(square),
            *torch.linalg.qr(square),
            square.sum(),
        )
    numbers = {str(place): part for place, part in enumerate(parts)}
    return blake2b(to_safetensors(numbers), digest_size=8).hexdigest()
