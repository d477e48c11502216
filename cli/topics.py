"""`paramstream topics`: list, create, describe and delete the topics of a broker."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from ..client import PERSISTENCE, Client, TopicInfo, connect
from ..errors import UnknownTopic
from .options import add_connect, add_json, positive
from .output import print_json, print_table
from .versions import version_record

NAME: str = "topics"
HELP: str = "list, create, describe and delete topics"

HEADINGS = ("topic", "partitions", "persistence", "retained versions")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    for action, what in (
        ("list", "all topics of the broker"),
        ("create", "a new topic"),
        ("describe", "a topic's settings, its newest version and the replicas that follow it"),
        ("delete", "forget a topic and free its log"),
    ):
        child = actions.add_parser(action, help=what, description=what, allow_abbrev=False)
        add_connect(child)
        add_json(child)
        if action != "list":
            name = child.add_mutually_exclusive_group(required=True)
            name.add_argument("name", metavar="TOPIC", nargs="?", help="the topic's name")
            name.add_argument("--topic", metavar="T", help="the same, as other commands take it")
        if action == "create":
            _add_settings(child)


def run(arguments: argparse.Namespace) -> int:
    with connect(arguments.connect) as client:
        if arguments.action == "list":
            _list(client, arguments.json)
            return 0
        name: str = arguments.name or arguments.topic
        match arguments.action:
            case "create":
                _create(client, name, arguments)
            case "describe":
                _describe(client, name, arguments.json)
            case _:
                client.delete_topic(name)
                if arguments.json:
                    print_json({"deleted": name})
    return 0


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitions", type=positive, default=1, metavar="N", help="partitions of rows, gradients and KV (default 1)"
    )
    parser.add_argument("--persistence", choices=PERSISTENCE, default="write_back", help="default %(default)s")
    parser.add_argument(
        "--retain-versions", type=positive, default=8, metavar="N", help="newest versions kept restorable (default 8)"
    )
    parser.add_argument("--exist-ok", action="store_true", help="fine if it exists with the same settings")


def _list(client: Client, as_json: bool) -> None:
    topics = client.topics()
    if as_json:
        print_json({"topics": [asdict(topic) for topic in topics]})
    else:
        print_table(HEADINGS, [_row(topic) for topic in topics])


def _create(client: Client, name: str, arguments: argparse.Namespace) -> None:
    topic = client.create_topic(
        name,
        partitions=arguments.partitions,
        persistence=arguments.persistence,
        retain_versions=arguments.retain_versions,
        exist_ok=arguments.exist_ok,
    )
    if arguments.json:
        print_json(asdict(topic))


def _describe(client: Client, name: str, as_json: bool) -> None:
    topic = next((topic for topic in client.topics() if topic.name == name), None)
    if topic is None:
        raise UnknownTopic("the broker has no topic of that name", topic=name, remedy="See paramstream topics list")
    versions = client.versions(name)
    storage = client.storage(name)
    replicas = client.replicas(name)
    if as_json:
        newest = version_record(versions[-1]) if versions else None
        found = [
            {"name": replica.name, "version": replica.version, "error": replica.last_error} for replica in replicas
        ]
        print_json(
            {**asdict(topic), "newest": newest, "versions": len(versions), "replicas": found, "storage": storage}
        )
        return
    print_table(HEADINGS, [_row(topic)])
    if versions:
        print(f"version {versions[-1].version} is the newest of {len(versions)}, digest {versions[-1].digest}")
    if storage:
        print(f"in Kafka as {storage.pop('name')}: {', '.join(f'{name}={value}' for name, value in storage.items())}")
    for replica in replicas:
        served = "no version yet" if replica.version is None else f"version {replica.version}"
        heard = f", last heard {replica.age_s:.0f} s ago" if replica.stale else ""
        problem = f"; {replica.last_error}" if replica.last_error else ""
        print(f"replica {replica.name} serves {served}{heard}{problem}")


def _row(topic: TopicInfo) -> tuple[object, ...]:
    return topic.name, topic.partitions, topic.persistence, topic.retain_versions
