// Creating a topic: its name, its numbers, and settings that differ from the brokers' defaults.
import { change } from "./change.js";
import { address, field, figures, h, head } from "./dom.js";
import { count } from "./units.js";

export function createPage(main, given, { session }) {
  const name = h("input", { name: "topic", required: true, maxlength: 249, value: given.topic ?? "", autocomplete: "off", spellcheck: "false" });
  const partitions = h("input", { name: "partitions", inputmode: "numeric", maxlength: 6, placeholder: "default" });
  const replicas = h("input", { name: "replicas", inputmode: "numeric", maxlength: 5, placeholder: "default" });
  const settings = h("textarea", { name: "settings", rows: 5, maxlength: 20000, spellcheck: "false", class: "wide mono", placeholder: "retention.ms=86400000" });
  const form = change({
    title: "The new topic",
    path: "creation",
    write: session.write,
    fields: [
      h("div", { class: "fields start" }, field("Name", name, "Letters, digits, dots, underscores and minus signs."),
        field("Partitions", partitions, "Empty: the brokers' default."), field("Replicas", replicas, "Empty: the brokers' default.")),
      field("Settings", settings, "One KEY=VALUE in each line; all others have their defaults."),
    ],
    asked: () => ({ topic: name.value.trim(), partitions: partitions.value.trim(), replication_factor: replicas.value.trim(), settings: assignments(settings.value) }),
    shown: (plan) => [
      figures([["Topic", plan.topic], ["Partitions", count(plan.partitions)], ["Replicas of each", count(plan.replication_factor)], ["Replicas in total", count(plan.replicas)]]),
      plan.settings.length > 0 && h("dl", { class: "pairs" }, plan.settings.map((each) => [h("dt", { class: "mono" }, each.key), h("dd", { class: "mono" }, each.value)])),
    ],
    confirm: () => "Create the topic",
    done: (outcome) => { location.hash = address("topic", { topic: outcome.topic }); },
  });
  main.append(head("Create a topic", { under: "First a rehearsal: the brokers check the topic, and create nothing until you confirm." }), form.element);
}

/** Lines of KEY=VALUE as an object; a line without `=` has an empty value, which the brokers refuse. */
function assignments(text) {
  const lines = text.split("\n").map((each) => each.trim()).filter((each) => each && !each.startsWith("#"));
  return Object.fromEntries(lines.map((each) => {
    const at = each.indexOf("=");
    return at < 0 ? [each, ""] : [each.slice(0, at).trim(), each.slice(at + 1).trim()];
  }));
}
