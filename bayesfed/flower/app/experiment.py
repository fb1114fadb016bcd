"""The method and the data of the experiment. Server and clients both load this file."""

import bayesfed as bf
from bayesfed.flower import Experiment


def data(client: str) -> bf.Dataset:
    """Return the rows of one client. It is called on the machine of that client: read your own
    files here.
    """
    train, _ = bf.digits()
    return bf.federate(train, bf.iid(len(train), 3, bf.Key(0, "partition")))[client]


def experiment() -> Experiment:
    """Return the method and the number of rounds."""
    net = bf.mlp([64, 32, 10], bf.Key(0, "net"))
    return Experiment(
        algorithm=bf.fed_avg(net, training=bf.Training(steps=20)),
        data=data,
        rounds=5,
        test=lambda: bf.digits()[1],
    )
