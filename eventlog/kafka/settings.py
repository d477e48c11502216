"""Where a Kafka is, how it is spoken to, and what its topics get: `ps.KafkaLog`.

    broker = ps.Broker(bind="tcp://0.0.0.0:7777", log=ps.KafkaLog(["kafka-1:9092", "kafka-2:9092"], replication_factor=3))

A "kafka://HOST:PORT[,HOST:PORT]" URL stands for the same with every default. Secrets are never shown.
"""

from __future__ import annotations

import os
import re
import ssl
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

import msgspec

from ...errors import InvalidEvent

SCHEME = "kafka"
PASSWORD_VARIABLE = "PARAMSTREAM_KAFKA_PASSWORD"
"""The environment's name for `sasl_plain_password`, where a file of settings does not hold it."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,100}")
_SERVER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/,@\[\]]+):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class KafkaLog:
    """Settings of an event log in Kafka. Making one connects to nothing; raises `InvalidEvent` that names a wrong one."""

    bootstrap_servers: Sequence[str]
    """"HOST:PORT" of some of Kafka's nodes, the others are learned from them; or one text, with commas between."""
    topic_prefix: str = "paramstream."
    """Begins the name of every Kafka topic of this log: two logs in one Kafka differ in it."""
    replication_factor: int = 1
    """Of new Kafka topics. An acknowledged record then stands on all but one of them at least: with 3 a node may die."""
    security_protocol: str = "PLAINTEXT"
    """"PLAINTEXT", "SSL", "SASL_PLAINTEXT" or "SASL_SSL"."""
    sasl_mechanism: str = "PLAIN"
    """"PLAIN", "SCRAM-SHA-256" or "SCRAM-SHA-512"."""
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    ssl_cafile: str | None = None
    """Certificates that Kafka's is checked against (default: the system's)."""
    ssl_certfile: str | None = None
    """This client's own certificate, with `ssl_keyfile`, where Kafka asks for one."""
    ssl_keyfile: str | None = None
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    """Instead of the three files."""
    request_timeout_s: float = 10.0
    """How long a request may take. What times out may stand all the same: it is read back before it is sent again."""
    session_timeout_s: float = 6.0
    """A broker that Kafka has not heard from for so long loses its slots to the others."""

    def __post_init__(self) -> None:
        given = self.bootstrap_servers
        servers = given.split(",") if isinstance(given, str) else given
        object.__setattr__(self, "bootstrap_servers", tuple(servers))
        if not servers:
            raise _wrong("bootstrap_servers", "at least one HOST:PORT is needed")
        for server in servers:
            _check_server(server)
        if not _PREFIX.fullmatch(self.topic_prefix):
            raise _wrong("topic_prefix", f"{self.topic_prefix!r} is not 1 to 100 of A-Z, a-z, 0-9, '.', '_' and '-'")
        if not 1 <= self.replication_factor <= 32767:
            raise _wrong("replication_factor", f"{self.replication_factor} is not at least 1")
        for name in ("request_timeout_s", "session_timeout_s"):
            value: float = getattr(self, name)
            if not 0.1 <= value <= 600:
                raise _wrong(name, f"{value} is not between 0.1 and 600 s")
        self._check_security()

    def _check_security(self) -> None:
        if self.security_protocol not in PROTOCOLS:
            raise _wrong("security_protocol", f"{self.security_protocol!r} is none of {', '.join(PROTOCOLS)}")
        if self.sasl_mechanism not in MECHANISMS:
            raise _wrong("sasl_mechanism", f"{self.sasl_mechanism!r} is none of {', '.join(MECHANISMS)}")
        has_login = self.sasl_plain_username is not None and self.sasl_plain_password is not None
        if self.uses_sasl and not has_login:
            raise _wrong("sasl_plain_username", f"{self.security_protocol} needs a user name and a password")
        if not self.uses_sasl and (self.sasl_plain_username or self.sasl_plain_password):
            raise _wrong("security_protocol", f"{self.security_protocol} would not use the user name and password")
        files = (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile)
        if not self.uses_tls and (self.ssl_context is not None or any(files)):
            raise _wrong("security_protocol", f"{self.security_protocol} would not use the TLS settings")
        if self.ssl_context is not None and any(files):
            raise _wrong("ssl_context", "give a context or the files, not both")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise _wrong("ssl_certfile", "a certificate needs its key, and a key its certificate")

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol.endswith("SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")

    @property
    def min_insync_replicas(self) -> int:
        """On so many nodes a record stands before it is acknowledged."""
        return max(1, self.replication_factor - 1)

    @property
    def servers(self) -> str:
        """For messages: where this Kafka is."""
        return ",".join(self.bootstrap_servers)

    def tls(self) -> ssl.SSLContext | None:
        """The context to connect with; None without TLS. Raises `InvalidEvent` where a file cannot be used."""
        if not self.uses_tls:
            return None
        if self.ssl_context is not None:
            return self.ssl_context
        try:
            context = ssl.create_default_context(cafile=self.ssl_cafile)
            if self.ssl_certfile is not None:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile)
        except OSError as error:  # ssl.SSLError is one too
            raise _wrong("ssl_cafile", f"the TLS files cannot be used: {error}") from error
        return context

    @classmethod
    def from_url(cls, url: str) -> KafkaLog:
        """The settings that "kafka://HOST:PORT[,HOST:PORT]" stands for."""
        scheme, separator, place = url.partition("://")
        if scheme != SCHEME or not separator:
            raise InvalidEvent(f"not the URL of a Kafka: {url!r}", item=url, remedy='Give "kafka://HOST:PORT"')
        return cls(place.rstrip("/").split(","))

    def encode(self) -> bytes:
        """All of them, secrets too, for another process; `decode` gives them back. Raises `InvalidEvent` where TLS is set by a
        context, which cannot leave its process.
        """
        if self.ssl_context is not None:
            raise _wrong("ssl_context", "another process needs these settings: give the TLS files instead")
        values = {name: getattr(self, name) for name in _names()}
        return msgspec.json.encode({name: value for name, value in values.items() if value is not None})

    @classmethod
    def decode(cls, data: bytes) -> KafkaLog:
        """Raises `InvalidEvent` for what `encode` did not write."""
        try:
            values = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise _wrong("kafka_config", f"the settings cannot be read: {error}") from error
        return cls._of(values, "what was handed over")

    @classmethod
    def from_file(cls, path: Path, environment: Mapping[str, str] | None = None, *, url: str = "") -> KafkaLog:
        """The settings in a TOML file, by their names here. The password may stand in the environment (of this process, unless
        one is given) instead, and the servers in a "kafka://" URL, which go before those in the file.

        Raises `InvalidEvent` where the file cannot be read or holds something else, or the URL is of another kind.
        """
        try:
            with open(path, "rb") as file:
                values = tomllib.load(file)
        except (OSError, ValueError, RecursionError) as error:  # A TOMLDecodeError is a ValueError, and so are others.
            raise _wrong("kafka_config", f"{path} cannot be read: {error}") from error
        password = (os.environ if environment is None else environment).get(PASSWORD_VARIABLE)
        if password is not None and "sasl_plain_username" in values:
            values.setdefault("sasl_plain_password", password)
        if url:
            values["bootstrap_servers"] = list(cls.from_url(url).bootstrap_servers)
        return cls._of(values, str(path))

    @classmethod
    def _of(cls, values: Mapping[str, Any], place: str) -> KafkaLog:
        """The settings that somebody else has written down."""
        known = _names()
        for name, value in values.items():
            if name not in known:
                raise _wrong(name, f"{place} holds an unknown setting; known ones are {', '.join(known)}")
            _check_type(name, value)
        if "bootstrap_servers" not in values:
            raise _wrong("bootstrap_servers", f"{place} names no server")
        return cls(**values)


def _names() -> list[str]:
    """Of the settings that can be written down."""
    return [each.name for each in fields(KafkaLog) if each.name != "ssl_context"]


def _check_server(server: str) -> None:
    match = _SERVER.fullmatch(server)
    if match is None or not 0 < int(match[2]) < 65536:
        raise _wrong("bootstrap_servers", f"{server!r} is not HOST:PORT")


def _check_type(name: str, value: object) -> None:
    """What a file gives for a setting; the values themselves are checked where they are used."""
    if name == "bootstrap_servers":
        right = isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(each, str) for each in cast("list[object]", value))
        )
    elif name == "replication_factor":
        right = isinstance(value, int) and not isinstance(value, bool)
    elif name.endswith("_s"):
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
    else:
        right = isinstance(value, str)
    if not right:
        raise _wrong(name, f"{value!r} is not what it takes" if name != "sasl_plain_password" else "no text")


def _wrong(name: str, problem: str) -> InvalidEvent:
    return InvalidEvent(f"the Kafka setting {name}: {problem}", item=name)
