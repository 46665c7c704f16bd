"""How messages travel between server and scheduler: msgpack over ZeroMQ on Unix sockets in a private folder.

One `PAIR` of sockets, since one server talks to one scheduler. Nothing listens on TCP and nothing is unpickled.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq

from aerie.contracts.messages import ToScheduler, ToServer

_Socket = TypeVar("_Socket", bound="zmq.Socket[Any]")

_to_scheduler: msgspec.msgpack.Decoder[ToScheduler] = msgspec.msgpack.Decoder(ToScheduler)
_to_server: msgspec.msgpack.Decoder[ToServer] = msgspec.msgpack.Decoder(ToServer)
_encoder = msgspec.msgpack.Encoder()


def encode(message: ToScheduler | ToServer) -> bytes:
    return _encoder.encode(message)


def decode_to_scheduler(frame: bytes) -> ToScheduler:
    """Raises msgspec.DecodeError on bytes that are not a message."""
    return _to_scheduler.decode(frame)


def decode_to_server(frame: bytes) -> ToServer:
    """Raises msgspec.DecodeError on bytes that are not a message."""
    return _to_server.decode(frame)


def private_address() -> str:
    """A fresh ZeroMQ address on a Unix socket in a folder that only this user can open."""
    folder = Path(tempfile.mkdtemp(prefix="aerie-"))
    os.chmod(folder, 0o700)
    return f"ipc://{folder / 'wire'}"


def remove_address(address: str) -> None:
    """Removes the socket and its folder, if they exist."""
    socket = Path(address.removeprefix("ipc://"))
    socket.unlink(missing_ok=True)
    if socket.parent.exists():
        socket.parent.rmdir()


def bind(context: "zmq.Context[_Socket]", address: str) -> _Socket:
    """Binds the server's end; the socket is plain or asyncio, as the context is."""
    socket = _pair(context)
    socket.bind(address)
    return socket


def connect(context: "zmq.Context[_Socket]", address: str) -> _Socket:
    """Connects the scheduler's end."""
    socket = _pair(context)
    socket.connect(address)
    return socket


def _pair(context: "zmq.Context[_Socket]") -> _Socket:
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)
    socket.linger = 1000
    return socket
