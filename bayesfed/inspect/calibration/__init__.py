"""Pictures of uncertainty: `reliability`, answering only some rows (`selective`), and rows that
differ from those trained on (`shifted`).
"""
