"""Laws of what codecs of messages are made of.

From the bottom: `damage` changes bytes; `integers_and_masks` and `leaves` hold the laws; `shipped`
lists every codec of the package, which the laws are run on.
"""
