"""Codes of supports: plain, run lengths, rectangles, contexts from the support model, and whichever is shortest."""
