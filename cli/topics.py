"""`lowtide topics`: lists, describes, creates, changes, holds and deletes topics, and explains their retention.

`explain` asks the leaders, with a request that only Lowtide has (docs/adr/0008-requests-of-our-own.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.configs import ConfigChange, ConfigOperation, ConfigResource
from lowtide.admin.errors import AdminError, BrokerAnsweredError, code_name
from lowtide.admin.retained import as_value, duration, known, line
from lowtide.admin.retention import Explanation, NotAnsweredError, explain_retention
from lowtide.admin.topics import BROKERS_DEFAULT, CreatedTopic, NewTopic
from lowtide.admin.wanted_offsets import parse_time
from lowtide.cli.call import NetworkCall, Yes, network
from lowtide.cli.cluster_questions import fitting
from lowtide.cli.config_changes import SetOption, UnsetOption, ValidateOnlyOption, alter, assignments_of
from lowtide.cli.confirmation import confirm
from lowtide.cli.outcome import CommandError, ExitCode, misused
from lowtide.cli.printing import Output, moment, plural, print_json, print_table
from lowtide.cli.results import error_values, errors_of, report_each
from lowtide.cli.table_status import kept_line, table_positions
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import UNKNOWN
from lowtide.protocol.types import topic_id_text

_HOLD_UNTIL, _HOLD_REASON = "lowtide.hold.until", "lowtide.hold.reason"

app = typer.Typer(add_completion=False, no_args_is_help=True)

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC…")]


@app.command()
@network
async def explain(
    call: NetworkCall,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    *,
    catalog: Annotated[
        str | None, typer.Option("--catalog", metavar="URI|NAME", help="of a table that has the topic, with --table")
    ] = None,
    table: Annotated[
        str | None, typer.Option("--table", metavar="NAMESPACE.NAME", help="say also up to where this table has it")
    ] = None,
    catalog_property: Annotated[
        list[str] | None, typer.Option("--catalog-property", metavar="KEY=VALUE", help="may be repeated")
    ] = None,
) -> ExitCode:
    """Show why the oldest segment of each partition of a topic is kept, and when which rule will delete it.

    Only Lowtide's brokers answer.
    """
    if (catalog is None) != (table is None):
        raise misused("--catalog and --table belong together.")
    until = None if catalog is None or table is None else table_positions(catalog, catalog_property, table, topic)
    described = (await call.client.describe_topics([topic]))[topic]
    if not isinstance(described, TopicDescription):
        unknown = isinstance(described, BrokerAnsweredError) and described.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise misused(f"there is no topic {topic}.") if unknown else CommandError(f"{described}.")
    try:
        explanation = await explain_retention(call.client, described)
    except NotAnsweredError as error:
        raise CommandError(f"{error}.") from error
    if call.output is Output.JSON:
        value = _explanation_value(topic, explanation)
        print_json(value if until is None else value | {"table": {"name": table, "offsets": until}})
    else:
        _print_explanation(topic, explanation)
        for row in explanation.rows if until is not None else ():
            print(kept_line(str(table), row, (until or {}).get(row.partition_index, 0)))
    return ExitCode.FAILED if any(row.error_code != ErrorCode.NONE for row in explanation.rows) else ExitCode.DONE


@app.command("list")
@network
async def list_topics(
    call: NetworkCall,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="PATTERN…", help="names, with * and ? for any characters")
    ] = None,
    *,
    internal: Annotated[bool, typer.Option("--internal", help="internal topics too")] = False,
) -> ExitCode:
    """List the topics, with their partitions and replicas."""
    existing = await call.client.list_topics(include_internal=internal)
    names = fitting(patterns or ["*"], existing)
    topics = [existing[name] for name in names]
    rows = [(each.name, len(each.partitions), _replicas(each), each.topic_id_text) for each in topics]
    call.show({"topics": [_value(each) for each in topics]}, ("topic", "partitions", "replicas", "id"), rows)
    return ExitCode.DONE


@app.command()
@network
async def describe(call: NetworkCall, topics: Topics) -> ExitCode:
    """Show topics: their partitions, leaders, replicas and configuration."""
    described = await call.client.describe_topics(topics)
    found = {name: topic for name, topic in described.items() if isinstance(topic, TopicDescription)}
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in found]
    configs = await call.client.describe_configs(resources)
    settings: dict[str, dict[str, str | None]] = {}
    for resource, entries in configs.items():
        if not isinstance(entries, AdminError):
            settings[resource.name] = {key: entry.value for key, entry in entries.items() if entry.source == 1}
    if call.output is Output.JSON:
        values = [_value(topic) | {"configs": settings.get(name)} for name, topic in found.items()]
        print_json({"topics": values, "errors": error_values(errors_of(described))})
    else:
        for name, topic in found.items():
            print(f"{name}: {plural(len(topic.partitions), 'partition')}, id {topic.topic_id_text or 'not known'}")
            if settings.get(name):
                print("set: " + ", ".join(f"{key}={value}" for key, value in settings[name].items()))
            print_table(
                ("partition", "leader", "epoch", "replicas", "in sync", "remark"), map(_row, topic.partitions.values())
            )
    return report_each(errors_of(described), call.output, quiet=True)


@app.command()
@network
async def create(
    call: NetworkCall,
    topics: Topics,
    *,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, metavar="N", help="default: that of the brokers"),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "--replication-factor",
            "-r",
            min=1,
            metavar="N",
            help="replicas of each partition; default: that of the brokers",
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
    made = await call.client.create_topics(wanted, validate_only=validate_only)
    outcomes = {name: _unless(each, "TOPIC_ALREADY_EXISTS" if if_not_exists else None) for name, each in made.items()}
    said = {name: _created(each) for name, each in made.items() if isinstance(each, CreatedTopic)}
    return report_each(outcomes, call.output, done="could be created" if validate_only else "created", more=said)


@app.command()
@network
async def partitions(
    call: NetworkCall,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    count: Annotated[int, typer.Argument(metavar="COUNT", min=1, help="the new number of partitions; it can't fall")],
    *,
    validate_only: ValidateOnlyOption = False,
) -> ExitCode:
    """Add partitions to a topic. From then on, keys are distributed over all of them."""
    outcomes = await call.client.create_partitions({topic: count}, validate_only=validate_only)
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
    """Change the configuration of topics; `lowtide configs` does it for brokers and groups too."""
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
    return await alter(call, resources, settings or [], unset or [], validate_only=validate_only)


@app.command()
@network
async def delete(
    call: NetworkCall,
    topics: Topics,
    *,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="a topic that does not exist is not a failure")
    ] = False,
    yes: Yes = False,
) -> ExitCode:
    """Delete topics with all their records."""
    if not yes:
        confirm(f"Delete {plural(len(topics), 'topic')} with all records: {', '.join(topics)}?", rehearsal="")
    outcomes = await call.client.delete_topics(topics)
    passed = "UNKNOWN_TOPIC_OR_PARTITION" if if_exists else None
    return report_each({name: _unless(each, passed) for name, each in outcomes.items()}, call.output, done="deleted")


@app.command()
@network
async def hold(
    call: NetworkCall,
    topics: Topics,
    *,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="a date or time as for `records delete --before`")
    ] = None,
    reason: Annotated[str, typer.Option(help="shown to everyone whose deletes are refused")] = "",
    remove: Annotated[bool, typer.Option("--remove", help="end the hold now; needs ALTER on the cluster")] = False,
) -> ExitCode:
    """Keep all records of topics until a time: no delete, retention, compaction or erasing, and no topic deletion.

    A later time extends the hold. To shorten it needs ALTER on the cluster.
    """
    if remove == (until is not None):
        raise misused("give either --until or --remove.")
    if remove and reason:
        raise misused("--remove takes no --reason.")
    try:
        until_ms = None if until is None else parse_time(until)
    except ValueError as error:
        raise misused(f"--until: {error}.") from error
    changes = [ConfigChange(key, operation=ConfigOperation.DELETE) for key in (_HOLD_UNTIL, _HOLD_REASON)]
    if until_ms is not None:
        changes = [ConfigChange(_HOLD_UNTIL, str(until_ms)), ConfigChange(_HOLD_REASON, reason)]
    resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in dict.fromkeys(topics)]
    outcomes = await call.client.alter_configs(dict.fromkeys(resources, changes))
    done = "no longer held" if until_ms is None else f"held until {moment(until_ms)}"
    return report_each({each.name: error for each, error in outcomes.items()}, call.output, done=done)


def _unless(outcome: object, passed: str | None) -> AdminError | None:
    """Returns the error of an outcome, except for the `passed` one."""
    if not isinstance(outcome, AdminError) or (passed is not None and getattr(outcome, "name", None) == passed):
        return None
    return outcome


def _created(topic: CreatedTopic) -> dict[str, Any]:
    topic_id = None if topic.topic_id is None else topic_id_text(topic.topic_id)
    counts = {"partitions": topic.partitions, "replicas": topic.replication_factor}
    return {"id": topic_id} | {key: None if count < 0 else count for key, count in counts.items()}


def _replicas(topic: TopicDescription) -> str:
    """Formats the numbers of replicas: one number, or the smallest and the largest."""
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
        remarks.append("no leader")
    if len(each.isr) < len(each.replicas):
        remarks.append(f"{plural(len(each.replicas) - len(each.isr), 'replica')} behind")
    if each.offline:
        remarks.append(f"offline on {_ids(each.offline)}")
    epoch = None if each.leader_epoch < 0 else each.leader_epoch
    return each.partition, each.leader, epoch, _ids(each.replicas), _ids(each.isr), ", ".join(remarks)


def _ids(brokers: Iterable[int]) -> str:
    return " ".join(map(str, brokers))


def _print_explanation(topic: str, explanation: Explanation) -> None:
    now_ms, next_ms = explanation.checked_at_ms, explanation.next_check_at_ms
    when = f"; the next check is in {duration(next_ms - now_ms)}" if next_ms != UNKNOWN else ""
    print(f"Topic {topic}, {plural(len(explanation.rows), 'partition')}{when}.")
    for row in explanation.rows:
        print(line(row, now_ms))


def _explanation_value(topic: str, explanation: Explanation) -> dict[str, Any]:
    return {
        "topic": topic,
        "checked_at_ms": known(explanation.checked_at_ms),
        "next_check_at_ms": known(explanation.next_check_at_ms),
        "partitions": [as_value(row, explanation.checked_at_ms) for row in explanation.rows],
    }
