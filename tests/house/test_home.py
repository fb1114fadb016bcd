"""Where neither the home folder nor the folder of the package can be written to, such as in a
container or for one user of an installation for many, everything works.
"""

import os
import subprocess
import sys

from bayesfed.kernels import compile_kernel


def without_home(tmp_path):
    """Return variables of an environment whose home folder cannot be written to, by root either:
    it is a file.
    """
    (tmp_path / "home").touch()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    return {**kept, "HOME": str(tmp_path / "home")}


def test_arviz_is_imported(tmp_path):
    """ArviZ 0.23 alone fails there."""
    code = (
        "import numpy as np\n"
        "from bayesfed.inspect.compat import installed\n"
        "posterior = {'x': np.zeros((1, 3))}\n"
        "try:\n"
        "    installed().from_dict(posterior=posterior)\n"
        "except TypeError:\n"
        "    installed().from_dict({'posterior': posterior})\n"
        "import platformdirs\n"
        "print(platformdirs.user_cache_dir('bayesfed'))\n"
    )
    environment = without_home(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    if sys.platform == "linux":
        assert done.stdout.strip() == f"{environment['HOME']}/.cache/bayesfed"


def test_kernels_are_compiled_without_a_cache():
    """Numba has no folder for the cache of a function without a file."""
    names = {}
    exec(compile("def double(x):\n    return 2 * x", "<no file>", "exec"), names)
    assert compile_kernel(names["double"])(21) == 42
