"""`Site`: one client on the machine with its data. It takes and returns bytes, and keeps its memory
on its own disk.
"""

from __future__ import annotations

import time
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from bayesfed.data import Dataset
from bayesfed.errors import BayesfedError, WireError, public_text
from bayesfed.federated import ClientMemory, Profile, Reply, Slot
from bayesfed.federated.clients import sides_of
from bayesfed.federated.clients.turn import Turn, answered, reason_of
from bayesfed.flower.experiment import Experiment
from bayesfed.flower.letters import Answer, Hello, Name, Question, read_request
from bayesfed.flower.site_log import log


class Site:
    """One client, which answers the letters of a server. All that lasts is in the folder, so there
    may be a new `Site` for every letter.

    The memory made with an answer becomes valid only when the server's next question says that the
    answer was accepted. The memory of a straggler that the server did not wait for is therefore
    unchanged. The same question always gets the same answer.

    What goes wrong is written to the logger "bayesfed.site" in full. The server gets the stage and
    `bayesfed.errors.public_text`, which holds no cell of a row.

    Parameters
    ----------
    client
        Name of this client.
    experiment
        The experiment of the run.
    folder
        Folder of its memories, with one subfolder for each run.
    secret
        The client's key, in keyed runs.
    """

    def __init__(
        self,
        client: str,
        experiment: Experiment,
        folder: str | Path,
        *,
        secret: bytes | None = None,
    ) -> None:
        self.client, self.experiment, self.folder = client, experiment, Path(folder)
        self._secret, self._sides = secret, sides_of(experiment.algorithm)

    @cached_property
    def data(self) -> Dataset:
        """The rows of the client, read at first use."""
        return self.experiment.data(self.client)

    def handle(self, letter: bytes) -> bytes:
        """Return the answer to a letter. Failures are reported in the answer and never raised."""
        where: tuple[str, int, str] = (self.client, -1, "")
        stage, start = "letter", time.perf_counter()
        try:
            links = {phase.name: phase.link for phase in self.experiment.algorithm.phases}
            request = read_request(letter, links, self.experiment.codecs)
            # The user's data function may raise anything; it concerns this client only.
            stage = "data"
            rows, device = len(self.data), self.experiment.device
            if isinstance(request, Hello):
                profile = Profile(self.client, rows, device(self.client) if device else {})
                stage, experiment = "experiment", self.experiment
                log.info("client %r: asked for its name; %d rows", self.client, rows)
                return Name(profile, experiment.fingerprint, experiment.parts).write()
            where, stage = (request.task.client, request.task.round, request.task.phase), "letter"
            self._check(request)
            stage = "memory"
            answer = self._answer(request)
            if not answer.stage:
                seconds = time.perf_counter() - start
                log.info(
                    "client %r, round %d, phase %r: answered in %.2f s with %d bytes",
                    *where,
                    seconds,
                    len(answer.packed),
                )
            return answer.write()
        # `sys.exit` in a user's function is a failure of this client, and its text is not sent.
        except (Exception, SystemExit) as problem:
            self._log(where, stage, reason_of(problem), problem)
            return Answer(*where, stage=stage, reason=public_text(problem)).write()

    def _check(self, question: Question) -> None:
        """Check that a question is for this client and its experiment."""
        if question.task.client != self.client:
            expected, hint = f"one for client {self.client!r}", "a name of its own for each node"
            raise WireError("question", expected, repr(question.task.client), hint)
        if question.experiment not in ("", self.experiment.fingerprint):
            expected, hint = "one of this client's experiment", "one experiment on both sides"
            raise WireError("question", expected, "one of another experiment", hint)

    def _log(
        self, where: tuple[str, int, str], stage: str, reason: str, problem: BaseException | None
    ) -> None:
        """Write what went wrong to the site's log, with the traceback of errors that are not of
        this package.
        """
        client, round, phase = where
        at = f", round {round}, phase {phase!r}" if phase else ""
        trace = None if isinstance(problem, BayesfedError) else problem
        log.warning(
            "client %r%s, stage %r: %s", client or self.client, at, stage, reason, exc_info=trace
        )

    def _answer(self, question: Question) -> Answer:
        task = question.task
        where = (task.client, task.round, task.phase)
        memory = self._memory(task.run)
        memory.agree(question.slot)
        turn = Turn(task, {self.client: self.data}, memory.read(), self._secret)
        outcome = answered(self._sides, turn)
        if not isinstance(outcome, Reply):
            self._log(where, outcome.stage, outcome.reason, outcome.__cause__)
            sent = outcome.without_rows()
            return Answer(*where, stage=sent.stage, reason=sent.reason, field=sent.field)
        if outcome.memory:
            # Written before the reply is sent: after a crash in between a memory may be unused, but
            # the server never relies on a missing one.
            memory.pend(Slot(task.round, task.phase), outcome.memory)
        return Answer(*where, outcome.packed, outcome.info, outcome.seconds, bool(outcome.memory))

    def _memory(self, run: str) -> ClientMemory:
        # A server keeps two checkpoints, so it may go back by twice `save_every` rounds, each of as
        # many exchanges as there are phases.
        keep = (2 * self.experiment.save_every + 1) * len(self._sides)
        client = f"client {quote(self.client, safe='')}"
        return ClientMemory(self.folder / f"run {quote(run, safe='')}" / client, keep=keep)
