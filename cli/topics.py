"""`lowtide topics`: list, describe, make, change and delete topics, and say what keeps their oldest segments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.configs import ConfigResource, ResourceType
from lowtide.admin.errors import AdminError, code_name
from lowtide.admin.topics import BROKERS_DEFAULT, CreatedTopic, NewTopic
from lowtide.cli.call import NetworkCall, network
from lowtide.cli.cluster_questions import fitting
from lowtide.cli.config_changes import SetOption, UnsetOption, ValidateOnlyOption, alter, assignments_of
from lowtide.cli.confirmation import confirm
from lowtide.cli.explain import explain
from lowtide.cli.outcome import ExitCode
from lowtide.cli.printing import Output, plural, print_json, print_table
from lowtide.cli.results import error_value, report_each
from lowtide.protocol.types import topic_id_text

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List, describe, create, change and delete topics.")
app.command("explain")(explain)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC…")]


@app.command("list")
@network
async def list_topics(
    call: NetworkCall,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN…", help="names, with * and ? for any characters")
    ] = None,
    *,
    internal: Annotated[bool, typer.Option("--internal", help="those of coordinators, too")] = False,
) -> ExitCode:
    """List the topics, with their partitions and replicas."""
    known = await call.client.list_topics(include_internal=internal, timeout=call.timeout_ms / 1000)
    names = fitting(patterns or ["*"], known)
    if call.output is Output.JSON:
        print_json({"topics": [_value(known[name]) for name in names]})
    else:
        rows = [
            (name, len(known[name].partitions), _replicas(known[name]), known[name].topic_id_text) for name in names
        ]
        print_table(("topic", "partitions", "replicas", "id"), rows)
    return ExitCode.DONE


@app.command()
@network
async def describe(call: NetworkCall, topics: Topics) -> ExitCode:
    """Show the partitions of topics, their leaders and replicas, and what is configured for the topics."""
    described = await call.client.describe_topics(topics, timeout=call.timeout_ms / 1000)
    found = {name: topic for name, topic in described.items() if isinstance(topic, TopicDescription)}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
    configs = await call.client.describe_configs(resources, timeout=call.timeout_ms / 1000)
    settings: dict[str, dict[str, str | None]] = {}
    for resource, entries in configs.items():
        if not isinstance(entries, AdminError):
            settings[resource.name] = {key: entry.value for key, entry in entries.items() if entry.source == 1}
    if call.output is Output.JSON:
        print_json(
            {
                "topics": [_value(topic) | {"configs": settings.get(name)} for name, topic in found.items()],
                "errors": _errors(described),
            }
        )
    else:
        for name, topic in found.items():
            print(f"{name}: {plural(len(topic.partitions), 'partition')}, id {topic.topic_id_text or 'not known'}")
            if settings.get(name):
                print("set: " + ", ".join(f"{key}={value}" for key, value in settings[name].items()))
            print_table(
                ("partition", "leader", "epoch", "replicas", "in sync", "remark"), map(_row, topic.partitions.values())
            )
    return report_each(
        {name: each if isinstance(each, AdminError) else None for name, each in described.items()},
        call.output,
        quiet=True,
    )


@app.command()
@network
async def create(
    call: NetworkCall,
    topics: Topics,
    *,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="without it what the brokers are set to"),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", "--replication-factor", "-r", min=1, metavar="N", help="of each partition; likewise"
        ),
    ] = None,
    config: SetOption = None,
    validate_only: ValidateOnlyOption = False,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="a topic that exists already is not a failure")
    ] = False,
) -> ExitCode:
    """Create topics."""
    settings = assignments_of(config or [])
    wanted = [
        NewTopic(
            name=name,
            partitions=partitions or BROKERS_DEFAULT,
            replication_factor=replicas or BROKERS_DEFAULT,
            configs=settings,
        )
        for name in dict.fromkeys(topics)
    ]
    made = await call.client.create_topics(wanted, validate_only=validate_only, timeout=call.timeout_ms / 1000)
    outcomes = {name: _unless(each, "TOPIC_ALREADY_EXISTS" if if_not_exists else None) for name, each in made.items()}
    said = {name: _created(each) for name, each in made.items() if isinstance(each, CreatedTopic)}
    return report_each(outcomes, call.output, done="could be created" if validate_only else "created", more=said)


@app.command()
@network
async def partitions(
    call: NetworkCall,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[
        int, typer.Argument(metavar="COUNT", min=1, help="how many it is to have; they can't become fewer")
    ],
    *,
    validate_only: ValidateOnlyOption = False,
) -> ExitCode:
    """Give a topic more partitions. Keys are spread over all of them from then on."""
    outcomes = await call.client.create_partitions(
        {topic: count}, validate_only=validate_only, timeout=call.timeout_ms / 1000
    )
    return report_each(
        outcomes, call.output, done=f"{'could have' if validate_only else 'has'} {plural(count, 'partition')}"
    )


@app.command("alter")
@network
async def alter_topics(
    call: NetworkCall,
    topics: Topics,
    *,
    settings: SetOption = None,
    unset: UnsetOption = None,
    validate_only: ValidateOnlyOption = False,
) -> ExitCode:
    """Change what is set for topics; `lowtide configs` does it for brokers and groups, too."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
    return await alter(call, resources, settings or [], unset or [], validate_only=validate_only)


@app.command()
@network
async def delete(
    call: NetworkCall,
    topics: Topics,
    *,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="topics that aren't there are no failure")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="don't ask")] = False,
) -> ExitCode:
    """Delete topics with all their records."""
    if not yes:
        confirm(f"Delete {plural(len(topics), 'topic')} with all records: {', '.join(topics)}?", rehearsal="")
    outcomes = await call.client.delete_topics(topics, timeout=call.timeout_ms / 1000)
    passed = "UNKNOWN_TOPIC_OR_PARTITION" if if_exists else None
    return report_each({name: _unless(each, passed) for name, each in outcomes.items()}, call.output, done="deleted")


def _unless(outcome: object, passed: str | None) -> AdminError | None:
    """The error of an outcome, but for one that is none here."""
    if not isinstance(outcome, AdminError) or (passed is not None and getattr(outcome, "name", None) == passed):
        return None
    return outcome


def _created(topic: CreatedTopic) -> dict[str, Any]:
    topic_id = None if topic.topic_id is None else topic_id_text(topic.topic_id)
    counts = {"partitions": topic.partitions, "replicas": topic.replication_factor}
    return {"id": topic_id} | {key: None if count < 0 else count for key, count in counts.items()}


def _errors(described: Mapping[str, TopicDescription | AdminError]) -> dict[str, dict[str, Any]]:
    return {name: error_value(each) for name, each in described.items() if isinstance(each, AdminError)}


def _replicas(topic: TopicDescription) -> str:
    """How many replicas partitions have: one number, or the smallest and the largest."""
    counts = sorted({len(partition.replicas) for partition in topic.partitions.values()})
    return "-" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _value(topic: TopicDescription) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": topic.topic_id_text,
        "internal": topic.is_internal,
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader,
                "leader_epoch": None if each.leader_epoch < 0 else each.leader_epoch,
                "replicas": each.replicas,
                "isr": each.isr,
                "offline": each.offline,
                "error": code_name(each.error) if each.error else None,
            }
            for each in topic.partitions.values()
        ],
    }


def _row(each: PartitionDescription) -> tuple[object, ...]:
    remarks = []
    if each.leader is None:
        remarks.append("no broker leads it")
    if len(each.isr) < len(each.replicas):
        remarks.append(f"{plural(len(each.replicas) - len(each.isr), 'replica')} behind")
    if each.offline:
        remarks.append(f"offline on {_ids(each.offline)}")
    epoch = None if each.leader_epoch < 0 else each.leader_epoch
    return each.partition, each.leader, epoch, _ids(each.replicas), _ids(each.isr), ", ".join(remarks)


def _ids(brokers: Iterable[int]) -> str:
    return " ".join(map(str, brokers))
