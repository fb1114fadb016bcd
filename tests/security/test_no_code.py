"""Nothing received is ever executed."""

import ast
import contextlib
import json
import os
import pickle
from pathlib import Path

import pytest

import bayesfed as bf
from bayesfed.errors import RefusedError
from bayesfed.keys import Key
from tests.support.codecs.shipped import message_codecs
from tests.support.hostile.cases import TRAP, Trap
from tests.support.hostile.mutations import reseal

PACKAGE = Path(bf.__file__).parent
META = {"client": "a", "round": 3, "phase": "train"}
FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# The pool of processes talks to its own children, over pipes that it made.
OWN_CHILDREN = {f"federated/clients/{name}.py" for name in ("worker", "worker_loop", "workers")}
# A recipe, network or data set of a user's own file, which the experiment file names as
# ``file.py:function``. It imports cloudpickle to have that module written by value for spawned
# workers; it reads no pickle.
OWN_FILES = {("running/experiments/own.py", done) for done in ("exec", "compile", "import")}
# A result is pickled by its owner; only the function that pickle itself calls reads one.
OWN_FILES |= {("running/pickling.py", "import")}


def test_no_reader_can_execute_what_it_reads():
    found = []
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            if FORBIDDEN & set(names):
                found.append((where, "import"))
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {
                    "eval",
                    "exec",
                    "compile",
                    "__import__",
                    "torch.load",
                    "yaml.load",
                    "yaml.unsafe_load",
                }:
                    found.append((where, called))
                if called.endswith("np.load") and any(
                    k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
                    for k in node.keywords
                ):
                    found.append((where, called))
    assert {entry for entry in found if entry[0] not in OWN_CHILDREN} == {
        # Asks whether an error of this rank survives the trip to others; what it reads it wrote
        # itself.
        ("federated/clients/process_group.py", "import"),
        *OWN_FILES,
    }


@pytest.mark.parametrize("codec", message_codecs(1 << 20).values(), ids=message_codecs())
def test_no_codec_unpickles(codec, tmp_path):
    trap = Trap(str(tmp_path / "sprung"))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        raw = pickle.dumps(trap, protocol)
        header = json.dumps(
            {"meta": META, "leaves": [["w", "f4", [len(raw) // 4], len(raw)]]}
        ).encode()
        for message in (
            raw,
            reseal(raw),
            reseal(b"BFD1" + len(header).to_bytes(4, "little") + header + raw),
        ):
            with contextlib.suppress(RefusedError):
                codec.decode(message, Key(0))
    assert not os.path.exists(trap.path)
    assert not os.path.exists(TRAP)


def test_the_trap_works(tmp_path):
    pickle.loads(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    assert (tmp_path / "sprung").is_dir()
