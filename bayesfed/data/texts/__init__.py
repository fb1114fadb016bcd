"""Labelled texts.

From the bottom: `texts`, texts with labels and domains, and rated sentences of four
domains; `pretrained`, folders of tokenizers and encoders; `tokens`, texts as token ids.
"""
