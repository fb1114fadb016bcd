"""`Site`: one client where its data are: bytes in, bytes out, its memory on its own disk."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from bayesfed.data.dataset import Dataset
from bayesfed.errors import BayesfedError
from bayesfed.federated.clients.memories import ClientMemory
from bayesfed.federated.clients.memory_stores import InFolder, Slot
from bayesfed.federated.clients.turn import Reply, answer
from bayesfed.federated.core.protocols import Profile
from bayesfed.flower.experiment import Experiment
from bayesfed.flower.letters import Answer, Hello, Name, Question, read_request


class Site:
    """Answer a server's letters. A new one for every letter answers the same: what lasts is in the folder.

    The memory that belongs to an answer waits until the server's next question says that it was taken: a straggler that was given up on has not
    moved on. The same question twice has the same answer.

    Parameters
    ----------
    client
        This client's name.
    folder
        Where its memories are kept, a folder for each run.
    secret
        The client's key, in keyed runs.
    """

    def __init__(self, client: str, experiment: Experiment, folder: str | Path, *, secret: bytes | None = None) -> None:
        self.client, self.experiment, self.folder, self._secret = client, experiment, Path(folder), secret
        self._phases = {phase.name: phase for phase in experiment.algorithm.phases}

    @cached_property
    def data(self) -> Dataset:
        """The client's rows, read at first use."""
        return self.experiment.data(self.client)

    def handle(self, letter: bytes) -> bytes:
        """Return the answer to a letter; what fails is said in it, never raised."""
        where: tuple[str, int, str] = (self.client, -1, "")
        stage = "letter"
        try:
            request = read_request(letter, {name: phase.link for name, phase in self._phases.items()}, self.experiment.codecs)
            stage = "data"
            if isinstance(request, Hello):
                return Name(Profile(self.client, len(self.data), self._device()), self.experiment.fingerprint).write()
            where = (request.task.client, request.task.round, request.task.phase)
            if request.task.client != self.client:
                return Answer(*where, stage="letter", reason=f"this is client {self.client!r}").write()
            stage = "memory"
            return self._answer(request).write()
        except BayesfedError as problem:
            return Answer(*where, stage=stage, reason=str(problem)).write()
        except Exception as problem:
            # Whatever a user's data function raises is this client's own affair.
            return Answer(*where, stage=stage, reason=f"{type(problem).__name__}: {problem}").write()

    def _answer(self, question: Question) -> Answer:
        task = question.task
        where = (task.client, task.round, task.phase)
        memory = self._memory(task.run)
        memory.agree(question.slot)
        outcome = answer(task, self._phases[task.phase].local, self.data, memory.read(), self._secret)
        if not isinstance(outcome, Reply):
            return Answer(*where, stage=outcome.stage, reason=outcome.reason, field=outcome.field)
        if outcome.memory:
            # Before the reply is sent: a crash in between leaves what can be dropped, never a server that counts on what is not here.
            memory.pend(Slot(task.round, task.phase), outcome.memory)
        return Answer(*where, outcome.packed, outcome.info, outcome.seconds, bool(outcome.memory))

    def _memory(self, run: str) -> ClientMemory:
        # A server that keeps two checkpoints goes back two of them, each so many rounds of so many phases.
        keep = (2 * self.experiment.save_every + 1) * len(self._phases)
        return ClientMemory(InFolder(self.folder / f"run {quote(run, safe='')}" / f"client {quote(self.client, safe='')}"), keep=keep)

    def _device(self) -> Mapping[str, float]:
        return self.experiment.device(self.client) if self.experiment.device else {}
