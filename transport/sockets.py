"""The one socket factory: every ZeroMQ socket is made here, with every option that a default would get wrong.

A made socket belongs to one thread at a time. Sockets never reconnect by themselves: a connection that broke may have lost
a suffix of what was sent, so whoever holds it must know, and opens a wholly new one with a new routing id.
"""

from __future__ import annotations

import os
import socket as unix
from typing import cast

import zmq

from ..errors import AccessDenied, BindFailed, ConnectFailed, ParamstreamError

Socket = zmq.Socket[bytes]

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A broker takes frames up to this, so that an event over its limit is counted and refused and its connection survives;
past it libzmq cuts the peer off before anything is buffered."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""A client takes longer frames from its broker: lists of versions and joins of many partitions."""

HIGH_WATER_MARK = 10_000
"""Messages queued in a pipe. Bytes are bounded by window and credit; this only catches what has none."""

LINGER_MS = 500
"""How long a closed socket still tries to send: enough for a goodbye on loopback, short enough for an exit."""

RELEASE_MS = 2_000
"""How long a close waits for libzmq to let go of an address: it takes under a millisecond."""

HEARTBEAT_IVL_MS = 2_000
HEARTBEAT_TIMEOUT_MS = 10_000
"""libzmq's own heartbeats notice a peer that went without closing; ours carry positions and notice a process that hangs."""

SPARE_DESCRIPTORS = 16
"""What must be free before a socket is made. One takes about four in all; but where libzmq finds none while it starts its
threads or looks up an address, it ends the process."""

COPY_THRESHOLD_BYTES = 64 * 1024
"""Below it, sending a copy is cheaper than tracking a buffer."""


def context() -> zmq.Context[Socket]:
    """This process's context; a forked child gets a fresh one."""
    return cast("zmq.Context[Socket]", zmq.Context.instance())


def router(
    address: str,
    *,
    insecure: bool,
    in_process: str | None = None,
    most_waiting: int = HIGH_WATER_MARK,
    most_bytes: int = MAX_MESSAGE_BYTES,
) -> tuple[Socket, str]:
    """A bound ROUTER and its real address (port 0 becomes a port). `in_process` is a second, inproc address.

    Each way of each peer holds `most_waiting` messages; a peer that sends more than `most_bytes` in one is cut off.
    Raises `AccessDenied` for a bind beyond loopback without `insecure`, `BindFailed` where the address cannot be taken, or the
    process may open too few files more.
    """
    if not insecure and not is_local(address):
        raise AccessDenied(
            f"{address} can be reached from other machines and nothing there is authenticated",
            remedy="Bind to 127.0.0.1 or an ipc path, or pass insecure=True (--insecure) on a network you trust",
        )
    try:
        socket = _made(zmq.ROUTER, address, most_waiting)
    except OSError as error:
        raise BindFailed(f"cannot bind {address}: {_TOO_FEW}", remedy=_RAISE_LIMIT) from error
    # A peer whose pipe is full or gone is told to the sender as EAGAIN or EHOSTUNREACH, instead of dropped in silence.
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    # A client that comes back under its old routing id takes over from its half-open predecessor.
    socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    try:
        if in_process is not None:
            socket.bind(in_process)
        _refuse_taken_path(address)
        socket.bind(address)
    except (zmq.ZMQError, BindFailed) as error:
        socket.close(linger=0)
        why = error.problem if isinstance(error, BindFailed) else error.strerror
        raise BindFailed(
            f"cannot bind {address}: {why}", remedy="Choose another address, or port 0 for any free one"
        ) from error
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def release(socket: Socket, address: str) -> None:
    """Close a ROUTER; its address can be bound again when this returns (libzmq closes listeners in its own thread).

    Where no descriptor is left for waiting on that, it can be bound again soon after.
    """
    try:
        monitor = socket.get_monitor_socket(zmq.EVENT_CLOSED | zmq.EVENT_CLOSE_FAILED)
    except zmq.ZMQError:
        socket.close()
        return
    socket.unbind(address)
    monitor.poll(RELEASE_MS)
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close()


def dealer(
    address: str, routing_id: bytes, *, most_waiting: int = HIGH_WATER_MARK, most_bytes: int = MAX_ANSWER_BYTES
) -> Socket:
    """A DEALER that connects to `address` once. Each way holds `most_waiting` messages, each of at most `most_bytes`.

    Raises `ConnectFailed` where the address cannot be read, or the process may open too few files more.
    """
    socket = _unconnected(address, routing_id, most_waiting, most_bytes)
    try:
        _connect(socket, address)
    except ConnectFailed:
        socket.close(linger=0)
        raise
    return socket


def watched_dealer(
    address: str, routing_id: bytes, events: int, *, most_waiting: int, most_bytes: int
) -> tuple[Socket, Socket]:
    """A `dealer`, and a socket that tells of `events` of its connection, from before there is one: a peer that is not there may be
    known as soon as it is asked.

    Raises as `dealer` does, and `ConnectFailed` where the process may open too few files more for watching.
    """
    socket = _unconnected(address, routing_id, most_waiting, most_bytes)
    try:
        monitor = socket.get_monitor_socket(events)
    except zmq.ZMQError as error:
        socket.close(linger=0)
        raise ConnectFailed(f"cannot watch a connection: {_TOO_FEW}", remedy=_RAISE_LIMIT) from error
    try:
        _connect(socket, address)
    except ConnectFailed:
        close_watched(socket, monitor, linger_ms=0)
        raise
    return socket, monitor


def close_watched(socket: Socket, monitor: Socket, linger_ms: int = LINGER_MS) -> None:
    """Both sockets of `watched_dealer`."""
    socket.disable_monitor()
    monitor.close(linger=0)
    socket.close(linger=linger_ms)


def is_local(address: str) -> bool:
    """Whether only this machine can reach a socket bound there."""
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    return host == "localhost" or host == "::1" or host.startswith("127.")


def check_process(made_in: int) -> None:
    """Raises where this process was forked from the one that made a socket: it would send into nothing."""
    if os.getpid() != made_in:
        raise ParamstreamError(
            f"this client was made in process {made_in}, before a fork; sockets do not survive one",
            remedy="Connect again in this process, or start it with the 'spawn' method",
        )


def _refuse_taken_path(address: str) -> None:
    """libzmq takes an ipc path from under a living listener without a word; a listener that answers is a listener."""
    if not address.startswith("ipc://"):
        return
    with unix.socket(unix.AF_UNIX, unix.SOCK_STREAM) as probe:
        try:
            probe.connect(address.removeprefix("ipc://"))
        except OSError:
            return
    raise BindFailed("another process listens there")


_TOO_FEW = "this process may open too few files more"
_RAISE_LIMIT = "Close what is not needed, or raise the limit (ulimit -n)"


def _check_descriptors() -> None:
    """Raises `OSError` unless so many are free that libzmq will not run out of them in the midst of something."""
    taken: list[int] = []
    try:
        taken.append(os.open(os.devnull, os.O_RDONLY))
        taken.extend(os.dup(taken[0]) for _ in range(SPARE_DESCRIPTORS - 1))
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _unconnected(address: str, routing_id: bytes, most_waiting: int, most_bytes: int) -> Socket:
    try:
        socket = _made(zmq.DEALER, address, most_waiting)
    except OSError as error:
        raise ConnectFailed(f"cannot connect to {address}: {_TOO_FEW}", remedy=_RAISE_LIMIT) from error
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    socket.setsockopt(zmq.MAXMSGSIZE, most_bytes)
    return socket


def _connect(socket: Socket, address: str) -> None:
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise ConnectFailed(
            f"{address!r} is not an address to connect to: {error.strerror}",
            remedy="Give tcp://HOST:PORT or ipc://PATH",
        ) from error


def _made(kind: int, address: str, most_waiting: int) -> Socket:
    """Raises `OSError` where there are too few descriptors."""
    _check_descriptors()
    socket: Socket = context().socket(kind)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.SNDHWM, most_waiting)
    socket.setsockopt(zmq.RCVHWM, most_waiting)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_IVL_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TTL, HEARTBEAT_TIMEOUT_MS)
    if "[" in address:
        socket.setsockopt(zmq.IPV6, 1)
    return socket
