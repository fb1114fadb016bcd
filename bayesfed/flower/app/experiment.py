"""What is learned, and from what: server and clients load this file alike."""

import bayesfed as bf
from bayesfed.flower import Experiment


def data(client: str) -> bf.Dataset:
    """Return the rows of one client. Called where that client is: read your own files here."""
    train, _ = bf.digits()
    return bf.federate(train, bf.iid(len(train), 3, bf.Key(0, "partition")))[client]


def experiment() -> Experiment:
    """Return the method and its rounds."""
    net = bf.mlp([64, 32, 10], bf.Key(0, "net"))
    return Experiment(algorithm=bf.fed_avg(net, training=bf.Training(steps=20)), data=data, rounds=5, test=lambda: bf.digits()[1])
