// Who may do what: ACLs, users, quotas and delegation tokens. No secrets come here.
import * as api from "./api.js";
import { change } from "./change.js";
import { dialog } from "./dialog.js";
import { address, badge, field, h, head, link, notice, panel, say, select, set } from "./dom.js";
import { liveMark, tabs } from "./page.js";
import { table } from "./table.js";
import { bytes, count, moment, plural } from "./units.js";

const TYPES = [["topic", "Topic"], ["group", "Group"], ["cluster", "Cluster"], ["transactional_id", "Transactional id"], ["delegation_token", "Delegation token"], ["user", "User"]];
const NAMES = Object.fromEntries(TYPES);
const PARTS = { acls: aclsPart, users: usersPart, quotas: quotasPart, tokens: tokensPart };
const TITLES = [["acls", "ACLs"], ["users", "Users"], ["quotas", "Quotas"], ["tokens", "Delegation tokens"]];

export function accessPage(main, given, { session }) {
  const shown = Object.hasOwn(PARTS, given.show) ? given.show : "acls";
  const live = liveMark();
  main.append(head("Access", { beside: live.mark }), tabs("Kinds of access", TITLES.map(([name, title]) => [name, title, address("access", { show: name })]), shown), live.trouble);
  return PARTS[shown](main, given, live, session.write);
}

function aclsPart(main, given, live, write) {
  const type = select(TYPES, given.type ?? "topic");
  const name = h("input", { maxlength: 4096, value: given.name ?? "", placeholder: "flights", autocomplete: "off" });
  const form = h("form", {
    class: "fields",
    submit: (event) => {
      event.preventDefault();
      location.hash = address("access", { show: "acls", type: type.value, name: type.value === "cluster" ? "kafka-cluster" : name.value.trim() || null });
    },
  }, field("Type", type), field("Name", name), h("button", { class: "main" }, "Who may do what"), given.name && h("a", { class: "button", href: address("access") }, "Show all ACLs"));
  const rights = table({
    caption: `Rights on ${given.name ?? ""}`,
    empty: "No ACL applies to it. Only super users have access, unless allow.everyone.if.no.acl.found is true.",
    rowKey: (row) => `${row.principal} ${row.host}`,
    tall: false,
    columns: [
      { title: "Principal", sort: (row) => row.principal, cell: (row) => h("span", { class: "name mono" }, row.principal) },
      { title: "From", sort: (row) => row.host, cell: (row) => hostOf(row.host) },
      { title: "May", wrap: true, cell: (row) => (row.may.length ? row.may.map((each) => [badge(wordsOf(each), "good"), " "]) : "Nothing") },
      { title: "Is denied", wrap: true, cell: (row) => (row.may_not.length ? row.may_not.map((each) => [badge(wordsOf(each), "bad"), " "]) : "–") },
    ],
  });
  const acls = table({
    caption: "List of ACLs",
    filter: "Filter by principal, resource or operation",
    empty: given.name ? "No ACL applies to it." : "There is no ACL.",
    rowKey: (row) => Object.values(row).join(" "),
    sorted: { key: "principal" },
    columns: [
      { title: "Principal", key: "principal", text: (row) => row.principal, sort: (row) => row.principal, cell: (row) => h("span", { class: "name mono" }, row.principal) },
      { title: "Effect", sort: (row) => row.allows, cell: (row) => (row.allows ? badge("Allow", "good") : badge("Deny", "bad")) },
      { title: "Operation", text: (row) => row.operation, sort: (row) => row.operation, cell: (row) => wordsOf(row.operation) },
      { title: "Resource", text: (row) => `${row.type} ${row.name}`, sort: (row) => `${row.type} ${row.name}`, cell: resourceOf },
      { title: "From", text: (row) => row.host, sort: (row) => row.host, cell: (row) => hostOf(row.host) },
      { title: "Change", cell: (row) => h("button", { type: "button", class: "plain", "aria-label": `Remove ${wordsOf(row.operation)} of ${row.principal} on ${row.name}`, click: () => aclDialog("remove", row, write, outcomes) }, write ? "Remove" : "Rehearse") },
    ],
  });
  const outcomes = h("div", { role: "status" });
  const add = h("button", { type: "button", click: () => aclDialog("add", { type: given.type ?? "topic", name: given.name ?? "", principal: "User:", host: "*", operation: "READ", allows: true, prefixed: false }, write, outcomes) }, write ? "Add an ACL" : "Rehearse an ACL");
  const place = h("div", { class: "stack" });
  main.append(panel("Who may do what", { aside: "by the ACLs that apply to one resource" }, h("div", { class: "body" }, form, given.name && h("p", {}, "A denial is stronger than a permission. Super users may do everything, and are not listed."), given.name && rights.element)), outcomes, place);
  set(place, panel(given.name ? "ACLs that apply to it" : "All ACLs", { actions: [add] }, acls.element));
  return api.watch("access.acls", { type: given.type, name: given.name }, (value) => {
    if (!value.secured) {
      set(place, notice("warning", "The brokers have no authorizer: everybody who can connect may do everything."));
      return;
    }
    acls.show(value.acls);
    if (value.rights) rights.show(value.rights);
    live.warn([value.left_out && `The page leaves out ${plural(value.left_out, "ACL")}: there are too many.`]);
  }, live.mood);
}

const OPERATIONS = ["ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "CLUSTER_ACTION", "IDEMPOTENT_WRITE", "CREATE_TOKENS", "DESCRIBE_TOKENS", "TWO_PHASE_COMMIT"];

/** Adds or removes an ACL: what its principal may do before and afterwards is shown first. */
async function aclDialog(act, row, write, outcomes) {
  const adds = act === "add";
  const done = await dialog(adds ? "Add an ACL" : "Remove an ACL", (close) => {
    const controls = {
      principal: h("input", { value: row.principal, maxlength: 249, required: true, disabled: !adds }),
      allows: select([["yes", "Allow"], ["no", "Deny"]], row.allows ? "yes" : "no", { disabled: !adds }),
      operation: select(OPERATIONS.map((each) => [each, wordsOf(each)]), row.operation, { disabled: !adds }),
      type: select(TYPES, row.type, { disabled: !adds }),
      name: h("input", { value: row.name, maxlength: 249, required: true, disabled: !adds }),
      prefixed: select([["no", "This name"], ["yes", "Names that begin so"]], row.prefixed ? "yes" : "no", { disabled: !adds }),
      host: h("input", { value: row.host, maxlength: 249, disabled: !adds }),
    };
    const form = change({
      title: adds ? "Which" : "This ACL",
      path: "acl",
      fields: h("div", { class: "fields start" }, field("Principal", controls.principal, "Such as User:alice; User:* is everybody."), field("Effect", controls.allows), field("Operation", controls.operation), field("Resource", controls.type),
        field("Name", controls.name, "* is every name; the cluster is kafka-cluster."), field("Applies to", controls.prefixed), field("From", controls.host, "An address; * is everywhere.")),
      asked: () => ({ act, principal: controls.principal.value.trim(), allows: controls.allows.value === "yes", operation: controls.operation.value, type: controls.type.value, name: controls.name.value.trim(), prefixed: controls.prefixed.value === "yes", host: controls.host.value.trim() }),
      shown: (plan) => h("dl", { class: "pairs" }, h("dt", {}, "Principal"), h("dd", { class: "mono" }, plan.acl.principal), h("dt", {}, "May now"), h("dd", {}, listOf(plan.before.may)), h("dt", {}, "May afterwards"), h("dd", {}, listOf(plan.after.may)),
        (plan.before.may_not.length > 0 || plan.after.may_not.length > 0) && [h("dt", {}, "Is denied now"), h("dd", {}, listOf(plan.before.may_not)), h("dt", {}, "Is denied afterwards"), h("dd", {}, listOf(plan.after.may_not))]),
      confirm: (plan) => (plan.adds ? "Add this ACL" : "Remove this ACL"),
      done: close,
      danger: !adds,
      write,
    });
    return [form.element, h("div", { class: "actions" }, h("button", { type: "button", click: () => close() }, "Cancel"))];
  });
  if (!done) return;
  const words = done.adds ? "The ACL was added." : "The ACL was removed.";
  set(outcomes, notice("good", words));
  say(words);
}

function listOf(operations) {
  return operations.length ? operations.map(wordsOf).join(", ") : "Nothing";
}

function resourceOf(row) {
  const name = row.name === "*" ? "every name" : row.prefixed ? `names that begin with ${row.name}` : row.name;
  const exact = row.name !== "*" && !row.prefixed;
  const shown = exact && row.type === "topic" ? link(name, "topic", { topic: row.name }, { class: "name" }) : exact && row.type === "group" ? link(name, "group", { group: row.name }, { class: "name" }) : h("span", { class: "name" }, name);
  return [h("span", { class: "quiet" }, NAMES[row.type] ?? row.type), " ", shown];
}

function hostOf(host) {
  return host === "*" ? "Everywhere" : host;
}

/** DESCRIBE_CONFIGS as Describe configs. */
function wordsOf(operation) {
  const words = operation.toLowerCase().replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function usersPart(main, given, live) {
  const users = table({
    caption: "All users",
    filter: "Filter by name",
    words: given.user,
    empty: "No user has a SCRAM password.",
    rowKey: (row) => row.user,
    sorted: { key: "user" },
    columns: [
      { title: "User", key: "user", text: (row) => row.user, sort: (row) => row.user, cell: (row) => h("span", { class: "name" }, row.user) },
      { title: "Mechanisms", text: (row) => row.mechanisms.map((each) => each.name).join(" "), cell: (row) => (row.error ?? row.mechanisms.map((each) => [badge(each.name), " "])) },
      { title: "Iterations", number: true, sort: (row) => Math.min(...row.mechanisms.map((each) => each.iterations)), cell: (row) => row.mechanisms.map((each) => count(each.iterations)).join(", ") },
    ],
  });
  main.append(panel("Users with SCRAM passwords", { aside: "certificates and OAuth tokens name users that are not listed" }, users.element));
  return api.watch("access.users", {}, (value) => {
    users.show(value.users);
    live.warn([value.left_out && `The page leaves out ${plural(value.left_out, "user")}: there are too many.`]);
  }, live.mood);
}

const LIMITS = {
  producer_byte_rate: ["Producers", (value) => `${bytes(value)} a second`],
  consumer_byte_rate: ["Consumers", (value) => `${bytes(value)} a second`],
  request_percentage: ["Requests", (value) => `${value} % of a thread's time`],
  controller_mutation_rate: ["Changes of topics", (value) => `${value} partitions a second`],
  connection_creation_rate: ["New connections", (value) => `${value} a second`],
};

function quotasPart(main, given, live, write) {
  const quotas = table({
    caption: "All quotas",
    filter: "Filter by user, client or address",
    empty: "No quota is set.",
    rowKey: (row) => JSON.stringify([row.user, row.client, row.address]),
    columns: [
      { title: "User", text: (row) => row.user?.name ?? "", sort: (row) => row.user?.name ?? "", cell: (row) => whom(row.user, "every other user") },
      { title: "Client id", text: (row) => row.client?.name ?? "", sort: (row) => row.client?.name ?? "", cell: (row) => whom(row.client, "every other client id") },
      { title: "Address", text: (row) => row.address?.name ?? "", sort: (row) => row.address?.name ?? "", cell: (row) => whom(row.address, "every other address") },
      { title: "Limits", wrap: true, text: (row) => row.limits.map((each) => each.key).join(" "), cell: (row) => h("ul", { class: "bare" }, row.limits.map(limitOf)) },
    ],
  });
  const outcomes = h("div", { role: "status" });
  const add = h("button", { type: "button", click: () => quotaDialog(write, outcomes) }, write ? "Set a quota" : "Rehearse a quota");
  main.append(outcomes, panel("Quotas", { aside: "of users, client ids and addresses, for each broker", actions: [add] }, quotas.element));
  return api.watch("access.quotas", {}, (value) => {
    quotas.show(value.quotas);
    live.warn([value.left_out && `The page leaves out ${plural(value.left_out, "quota")}: there are too many.`]);
  }, live.mood);
}

/** Sets or removes a quota: what it is now and what it will be is shown first. */
async function quotaDialog(write, outcomes) {
  const done = await dialog("Set a quota", (close) => {
    const parts = [["user", "User"], ["client_id", "Client id"], ["ip", "Address"]].map(([part, title]) => {
      const name = h("input", { maxlength: 249 });
      const kind = select([["", "None"], ["name", "This name"], ["default", "Every other"]], part === "user" ? "name" : "", { "aria-label": `${title}: which`, change: () => { name.hidden = kind.value !== "name"; } });
      name.hidden = kind.value !== "name";
      name.setAttribute("aria-label", `${title}: name`);
      return { part, value: () => (kind.value === "default" ? { default: true } : kind.value === "name" ? name.value.trim() : null), element: h("fieldset", {}, h("legend", {}, title), h("div", { class: "choice" }, kind, name)) };
    });
    const key = select(Object.entries(LIMITS).map(([each, [title]]) => [each, title]), "producer_byte_rate");
    const limit = h("input", { maxlength: 32, inputmode: "decimal" });
    const form = change({
      title: "Which",
      path: "quota",
      fields: [h("div", { class: "fields start" }, parts.map((each) => each.element)), h("div", { class: "fields start" }, field("Limits", key), field("Limit", limit, "Bytes, percent or a number a second. Without a number the quota is removed."))],
      asked: () => ({ ...Object.fromEntries(parts.map((each) => [each.part, each.value()])), key: key.value, limit: limit.value.trim() }),
      shown: (plan) => h("dl", { class: "pairs" }, h("dt", {}, "Whose"), h("dd", { class: "mono" }, plan.entity), h("dt", {}, "Quota"), h("dd", { class: "mono" }, plan.key), h("dt", {}, "Limit now"), h("dd", {}, limitText(plan.key, plan.old)), h("dt", {}, "Limit afterwards"), h("dd", {}, limitText(plan.key, plan.new))),
      confirm: (plan) => (plan.new === null ? "Remove this quota" : "Set this quota"),
      done: close,
      write,
    });
    return [form.element, h("div", { class: "actions" }, h("button", { type: "button", click: () => close() }, "Cancel"))];
  });
  if (!done) return;
  const words = done.new === null ? "The quota was removed." : "The quota was set.";
  set(outcomes, notice("good", words));
  say(words);
}

function limitText(key, value) {
  return value === null ? "No limit" : (LIMITS[key]?.[1] ?? String)(value);
}

function whom(part, others) {
  if (!part) return "–";
  return part.default ? h("i", {}, others) : h("span", { class: "name mono" }, part.name);
}

function limitOf({ key, value }) {
  const [name, text] = LIMITS[key] ?? [key, String];
  return h("li", { title: key }, `${name}: ${text(value)}`);
}

function tokensPart(main, given, live) {
  const tokens = table({
    caption: "All delegation tokens",
    filter: "Filter by owner or id",
    empty: "There is no token that you may see.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Token", text: (row) => row.id, cell: (row) => h("span", { class: "name mono" }, row.id) },
      { title: "Owner", text: (row) => row.owner, sort: (row) => row.owner, cell: (row) => h("span", { class: "name mono" }, row.owner) },
      { title: "Requested by", text: (row) => row.requester, sort: (row) => row.requester, cell: (row) => row.requester || "–" },
      { title: "May be renewed by", wrap: true, cell: (row) => row.renewers.join(", ") || "Its owner" },
      { title: "Expires", sort: (row) => row.expires_ms, cell: (row) => moment(row.expires_ms) },
      { title: "Ends at the latest", sort: (row) => row.ends_ms, cell: (row) => moment(row.ends_ms) },
    ],
  });
  main.append(panel("Delegation tokens", { aside: "that you may see" }, tokens.element));
  return api.watch("access.tokens", {}, (value) => {
    tokens.show(value.tokens);
    live.warn([value.trouble, value.left_out && `The page leaves out ${plural(value.left_out, "token")}: there are too many.`]);
  }, live.mood);
}
