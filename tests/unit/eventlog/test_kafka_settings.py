"""What a user says of their Kafka: checked at once, secrets unseen."""

import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

import paramstream as ps
from paramstream.eventlog.kafka.settings import PASSWORD_VARIABLE
from paramstream.eventlog.kafka.topics import check_settings, kafka_name, new_topic_settings, topic_of
from paramstream.eventlog.kafka.wire import TopicSettings

SASL: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "sasl_plain_username": "trainer",
    "sasl_plain_password": "hunter2",
}


def test_a_url_stands_for_the_defaults() -> None:
    assert ps.KafkaLog.from_url("kafka://one:9092,two:9093") == ps.KafkaLog(["one:9092", "two:9093"])
    assert ps.KafkaLog.from_url("kafka://[::1]:9092").servers == "[::1]:9092"


def test_servers_may_be_given_as_one_text() -> None:
    assert ps.KafkaLog("one:9092").bootstrap_servers == ("one:9092",)
    assert ps.KafkaLog("one:9092,two:9093") == ps.KafkaLog(["one:9092", "two:9093"])


@pytest.mark.parametrize(
    ("setting", "changed"),
    [
        ("bootstrap_servers", {"bootstrap_servers": []}),
        ("bootstrap_servers", {"bootstrap_servers": ["kafka"]}),
        ("bootstrap_servers", {"bootstrap_servers": ["kafka:0"]}),
        ("bootstrap_servers", {"bootstrap_servers": ["user:secret@kafka:9092"]}),
        ("topic_prefix", {"topic_prefix": "a/b"}),
        ("topic_prefix", {"topic_prefix": ""}),
        ("replication_factor", {"replication_factor": 0}),
        ("request_timeout_s", {"request_timeout_s": 0.0}),
        ("session_timeout_s", {"session_timeout_s": 1e6}),
        ("security_protocol", {"security_protocol": "TLS"}),
        ("security_protocol", SASL | {"security_protocol": "SSL"}),
        ("security_protocol", {"ssl_cafile": "ca.pem"}),
        ("sasl_mechanism", SASL | {"sasl_mechanism": "GSSAPI"}),
        ("sasl_plain_username", SASL | {"sasl_plain_username": None}),
        ("ssl_certfile", {"security_protocol": "SSL", "ssl_certfile": "own.pem"}),
    ],
)
def test_a_wrong_setting_is_named(setting: str, changed: dict[str, Any]) -> None:
    given: dict[str, Any] = {"bootstrap_servers": ["kafka:9092"]}
    with pytest.raises(ps.InvalidEvent) as caught:
        ps.KafkaLog(**(given | changed))
    assert caught.value.item == setting


def test_secrets_are_never_shown() -> None:
    settings = ps.KafkaLog("kafka:9092", **SASL)
    assert "trainer" in repr(settings) and "hunter2" not in repr(settings) + str(settings)


def test_a_tls_context_is_made_of_the_files_or_taken_as_it_is(tmp_path: Path) -> None:
    assert ps.KafkaLog("kafka:9092").tls() is None
    context = ssl.create_default_context()
    assert ps.KafkaLog("kafka:9092", security_protocol="SSL", ssl_context=context).tls() is context
    assert ps.KafkaLog("kafka:9092", **SASL).tls() is not None
    with pytest.raises(ps.InvalidEvent, match="TLS files"):
        ps.KafkaLog("kafka:9092", security_protocol="SSL", ssl_cafile=str(tmp_path / "none.pem")).tls()


def test_a_file_holds_the_settings_and_the_environment_the_password(tmp_path: Path) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(
        'bootstrap_servers = ["one:9092"]\nsecurity_protocol = "SASL_SSL"\nsasl_plain_username = "trainer"\n'
        'replication_factor = 3\nsession_timeout_s = 10\ntopic_prefix = "team."\n'
    )
    settings = ps.KafkaLog.from_file(file, {PASSWORD_VARIABLE: "hunter2"})
    assert (settings.sasl_plain_password, settings.replication_factor, settings.topic_prefix) == ("hunter2", 3, "team.")
    assert settings.min_insync_replicas == 2
    assert ps.KafkaLog.from_file(file, {PASSWORD_VARIABLE: "x"}, url="kafka://two:1").servers == "two:1"
    file.write_text(file.read_text() + 'sasl_plain_password = "other"\n')
    assert ps.KafkaLog.from_file(file, {PASSWORD_VARIABLE: "hunter2"}).sasl_plain_password == "other"


@pytest.mark.parametrize(
    "text",
    [
        "bootstrap_servers = ",
        'topic_prefix = "a."',
        'bootstrap_servers = ["kafka:9092"]\nbrokers = 3',
        "bootstrap_servers = [1]",
        'bootstrap_servers = "kafka:9092"\nreplication_factor = "3"',
        'bootstrap_servers = "kafka:9092"\nssl_context = "x"',
        'bootstrap_servers = "kafka:9092"\nsession_timeout_s = true',
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "kafka.toml"
    file.write_text(text)
    with pytest.raises(ps.InvalidEvent):
        ps.KafkaLog.from_file(file, {})
    with pytest.raises(ps.InvalidEvent, match="cannot be read"):
        ps.KafkaLog.from_file(tmp_path / "none.toml", {})


@pytest.mark.parametrize("name", ["weights", "a/b c", "ünïcode", "x" * 400, "..", ""])
def test_a_kafka_topic_is_called_by_name_and_id_and_found_by_its_id(name: str) -> None:
    kafka = kafka_name("paramstream.", name, 0xABC)
    assert len(kafka) <= 249 and kafka.startswith("paramstream.") and kafka.endswith(".0000000000000abc")
    assert topic_of("paramstream.", kafka) == 0xABC
    assert topic_of("other.", kafka) is None


def test_strangers_and_the_slots_topic_are_no_topics_of_ours() -> None:
    for kafka in ("paramstream.slots", "paramstream.0000000000000abc", "paramstream.x.0000000000000ABC", "x"):
        assert topic_of("paramstream.", kafka) is None


def described(**changed: str) -> TopicSettings:
    ours = new_topic_settings(ps.KafkaLog("kafka:9092", replication_factor=3))
    return TopicSettings(4, 3, ours | {name.replace("_", "."): value for name, value in changed.items()})


def test_what_a_new_topic_gets_is_what_an_existing_one_must_have() -> None:
    check_settings("topic", described())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cleanup_policy", "compact"),
        ("cleanup_policy", "compact,delete"),
        ("retention_ms", "604800000"),
        ("retention_bytes", "1000000"),
        ("max_message_bytes", "1000000"),
        ("unclean_leader_election_enable", "true"),
        ("min_insync_replicas", "4"),
    ],
)
def test_a_setting_that_loses_or_refuses_events_is_refused_with_its_remedy(setting: str, value: str) -> None:
    with pytest.raises(ps.InvalidEvent) as caught:
        check_settings("topic", described(**{setting: value}))
    name = setting.replace("_", ".")
    assert caught.value.item == name
    assert f"{name}={value}" in caught.value.problem and f"{name}=" in caught.value.remedy


def test_without_aiokafka_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiokafka", None)
    with pytest.raises(ps.InvalidEvent, match="aiokafka") as caught:
        ps.Broker(log="kafka://127.0.0.1:1")
    assert "paramstream[kafka]" in caught.value.remedy
