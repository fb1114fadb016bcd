"""Laws of codecs.

From the bottom: `damage` changes bytes; `integers_and_masks`, `leaves` and `messages` hold the laws
of the three kinds of codecs; `shipped` lists every codec of the package, which the package's own
tests run the laws on.
"""
