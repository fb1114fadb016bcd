"""Methods in which every client has a model of its own: FedPer, FedBABU, Ditto, pFedBayes, and
fine-tuning after any method.

What makes a client's model its own lies in the client's memory and is never sent;
`Algorithm.personal` puts it together with the server's state.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
