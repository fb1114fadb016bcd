"""What a hospital may try at the centre: `attack.py fed.example.org:443 ca.pem SECONDS`. It asks
for the server's half of a run, as the centre's SuperExec does, and prints what it got.
"""

import sys
import time
from pathlib import Path

from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient


def main(address: str, authority: str, seconds: float) -> str:
    """Return what came of asking for the work of a run, for some seconds."""
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=False,
        root_certificates=Path(authority).read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            taken = client.AcquireTask(
                AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
            )
        except BaseException as problem:  # Flower's own for a refusal is no Exception
            return f"refused: {problem.__context__ or problem!r}"
        if taken.HasField("task") and taken.token:
            return f"taken: run {taken.task.run_id}, with a token of {len(taken.token)} characters"
        time.sleep(0.05)
    return "nothing to take"


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1], sys.argv[2], float(sys.argv[3])) + "\n")
