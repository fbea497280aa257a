// Open transactions: how old they are, what they hold back, and what to do.
import * as api from "./api.js";
import { address, badge, figures, h, head, link, notice, panel, select, set } from "./dom.js";
import { liveMark } from "./page.js";
import { table } from "./table.js";
import { count, duration, moment, plural } from "./units.js";

const AGES = [["0", "All open transactions"], ["late", "Over their timeout"], ["60000", "Older than 1 min"], ["300000", "Older than 5 min"], ["900000", "Older than 15 min"], ["3600000", "Older than 1 h"]];

export function transactionsPage(main, given) {
  const live = liveMark();
  const chosen = AGES.some(([value]) => value === given.age) ? given.age : "0";
  const age = select(AGES, chosen, { id: "age", "aria-label": "Which transactions", change: () => { location.hash = address("transactions", { age: age.value }); } });
  const numbers = h("div");
  const lost = h("div", { class: "stack" });
  const open = table({
    caption: "Transactions that are open",
    filter: "Filter by transactional id",
    empty: chosen === "0" ? "No transaction is open." : "No open transaction is so old.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Transactional id", text: (row) => row.id, sort: (row) => row.id, cell: (row) => h("span", { class: "name mono" }, row.id) },
      { title: "State", sort: (row) => row.state, cell: (row) => [badge(row.state, row.late ? "bad" : ""), row.late && [" ", badge("over its timeout", "bad")]] },
      { title: "Open for", number: true, sort: (row) => row.age_ms, cell: (row) => h("span", { title: moment(row.started_ms) }, duration(row.age_ms)) },
      { title: "Timeout", number: true, sort: (row) => row.timeout_ms, cell: (row) => duration(row.timeout_ms) },
      { title: "Producer", number: true, sort: (row) => row.producer, cell: (row) => h("span", { title: `epoch ${row.epoch}` }, count(row.producer)) },
      { title: "Coordinator", number: true, sort: (row) => row.coordinator, cell: (row) => link(row.coordinator, "broker", { broker: row.coordinator }) },
      { title: "Partitions", wrap: true, cell: (row) => partitionsOf(row.partitions) },
      { title: "What to do", wrap: true, cell: (row) => row.what_to_do },
    ],
  });
  const orphans = table({
    caption: "Transactions that no coordinator knows",
    tall: false,
    rowKey: (row) => `${row.producer} ${row.epoch}`,
    columns: [
      { title: "Producer", number: true, cell: (row) => count(row.producer) },
      { title: "Epoch", number: true, cell: (row) => count(row.epoch) },
      { title: "Last wrote", number: true, cell: (row) => `${duration(row.age_ms)} ago` },
      { title: "Partitions", wrap: true, cell: (row) => partitionsOf(row.partitions) },
    ],
  });
  main.append(head("Transactions", { beside: live.mark, actions: [h("a", { class: "button", href: address("cluster") }, "Cluster")], under: "Consumers that read committed records stop at the first record of the oldest open transaction of a partition." }),
    live.trouble, numbers, lost, panel("Open transactions", { actions: [age] }, open.element));

  return api.watch("transactions", {}, (value) => {
    const rows = value.transactions.filter((row) => (chosen === "late" ? row.late : Number(row.age_ms ?? 0) >= Number(chosen)));
    const held = new Set([...value.transactions, ...value.orphans].flatMap((row) => row.partitions.filter((each) => each.holds).map((each) => `${each.topic} ${each.partition}`)));
    const late = value.transactions.filter((row) => row.late).length;
    open.show(rows);
    orphans.show(value.orphans);
    set(lost, value.orphans.length ? panel("Transactions that no coordinator knows", { aside: "they never end by themselves" },
      h("div", { class: "body" }, notice("critical", "Consumers that read committed records wait at them for ever. Check that their producers have ended, then abort each with kafka-transactions.sh abort --topic … --partition … --start-offset …, which comes with Apache Kafka.")), orphans.element) : null);
    set(numbers, figures([
      ["Open transactions", count(value.transactions.length + value.left_out)],
      ["Over their timeout", count(late), late ? "bad" : ""],
      ["Partitions that they hold back", count(held.size), ""],
      ["Without a coordinator", value.complete || value.orphans.length ? count(value.orphans.length) : "–", value.orphans.length ? "bad" : ""],
    ]));
    live.warn([...value.errors, value.left_out && `The page leaves out ${plural(value.left_out, "open transaction")}: there are too many.`,
      value.partitions_left_out && `The page leaves out ${plural(value.partitions_left_out, "partition")}: there are too many.`]);
  }, live.mood);
}

function partitionsOf(partitions) {
  const some = partitions.slice(0, 5).map((each) => h("li", {}, link(`${each.topic}, partition ${each.partition}`, "topic", { topic: each.topic, partition: each.partition }),
    each.holds && h("small", {}, ` holds readers at ${count(each.last_stable)} of ${count(each.high_watermark)}`)));
  return h("ul", { class: "bare" }, some, partitions.length > 5 && h("li", {}, `and ${count(partitions.length - 5)} more`));
}
