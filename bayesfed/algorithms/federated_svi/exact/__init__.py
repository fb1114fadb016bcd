"""The posterior of pooled rows: `recipe`, what sites answer (`local`) and the `server`."""
