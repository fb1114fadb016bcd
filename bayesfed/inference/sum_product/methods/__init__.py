"""Message-passing methods, one file each. All take flat evidence and return an `Outcome`; `infer` chooses between them."""
