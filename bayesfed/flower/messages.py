"""Bytes in Flower's messages. No other module knows how these are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bayesfed.errors import needs

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict

# There is only one type of message; the bytes say what it is.
ACTION = "bayesfed"
TYPE = f"query.{ACTION}"
RECORD, ARRAY, STYPE = "letter", "bytes", "bayesfed.letter"


@dataclass(frozen=True)
class Received:
    """A reply to a message.

    Parameters
    ----------
    id
        The id of the message it answers.
    content
        Its bytes.
    error
        What went wrong; empty if nothing did.
    gone
        Whether the node is gone.
    """

    id: str
    content: bytes = b""
    error: str = ""
    gone: bool = False


class FlowerMail:
    """Turns bytes into Flower's own messages and back: an array, unchanged, in pieces of 5 MB.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """

    def __init__(self) -> None:
        needs("flwr.app", "flower", "flwr")

    def outgoing(self, content: bytes, node: int, ttl_s: float) -> Message:
        """Return a message to a node, which may take `ttl_s` seconds including its answer."""
        from flwr.app import Message

        return Message(record(content), node, TYPE, ttl=ttl_s)

    def incoming(self, message: Message) -> Received:
        """Return the content of a reply; never raises."""
        from flwr.common.constant import ErrorCode

        id = str(message.metadata.reply_to_message_id)
        if message.has_error():
            error = message.error
            gone = error.code in (
                ErrorCode.MESSAGE_UNAVAILABLE,
                ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
                ErrorCode.NODE_UNAVAILABLE,
            )
            return Received(id, error=f"Flower's error {error.code}, {error.reason}", gone=gone)
        try:
            return Received(id, content_of(message))
        except (KeyError, TypeError, AttributeError) as problem:
            return Received(
                id, error=f"a reply without our bytes: {type(problem).__name__} {problem}"
            )


def record(content: bytes) -> RecordDict:
    """Return a record that holds these bytes."""
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict(
        {RECORD: ArrayRecord({ARRAY: Array("uint8", (len(content),), STYPE, content)})}
    )


def content_of(message: Message) -> bytes:
    """Return the bytes in a message.

    Raises
    ------
    KeyError
        If the message has no bytes of this package.
    """
    array = message.content.array_records[RECORD][ARRAY]
    if array.stype != STYPE:
        raise KeyError(array.stype)
    return bytes(array.data)
