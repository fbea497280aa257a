// Who may do what: ACLs, users, quotas and delegation tokens. No secrets come here.
import * as api from "./api.js";
import { address, badge, field, h, head, link, notice, panel, select, set } from "./dom.js";
import { liveMark, tabs } from "./page.js";
import { table } from "./table.js";
import { bytes, count, moment, plural } from "./units.js";

const TYPES = [["topic", "Topic"], ["group", "Group"], ["cluster", "Cluster"], ["transactional_id", "Transactional id"], ["delegation_token", "Delegation token"], ["user", "User"]];
const NAMES = Object.fromEntries(TYPES);
const PARTS = { acls: aclsPart, users: usersPart, quotas: quotasPart, tokens: tokensPart };
const TITLES = [["acls", "ACLs"], ["users", "Users"], ["quotas", "Quotas"], ["tokens", "Delegation tokens"]];

export function accessPage(main, given) {
  const shown = Object.hasOwn(PARTS, given.show) ? given.show : "acls";
  const live = liveMark();
  main.append(head("Access", { beside: live.mark }), tabs("Kinds of access", TITLES.map(([name, title]) => [name, title, address("access", { show: name })]), shown), live.trouble);
  return PARTS[shown](main, given, live);
}

function aclsPart(main, given, live) {
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
    ],
  });
  const place = h("div", { class: "stack" });
  main.append(panel("Who may do what", { aside: "by the ACLs that apply to one resource" }, h("div", { class: "body" }, form, given.name && h("p", {}, "A denial is stronger than a permission. Super users may do everything, and are not listed."), given.name && rights.element)), place);
  set(place, panel(given.name ? "ACLs that apply to it" : "All ACLs", {}, acls.element));
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

function quotasPart(main, given, live) {
  const quotas = table({
    caption: "All quotas",
    filter: "Filter by user, client or address",
    empty: "No quota is set.",
    rowKey: (row) => JSON.stringify([row.user, row.client, row.address]),
    columns: [
      { title: "User", text: (row) => row.user?.name ?? "", sort: (row) => row.user?.name ?? "", cell: (row) => whom(row.user, "every other user") },
      { title: "Client id", text: (row) => row.client?.name ?? "", sort: (row) => row.client?.name ?? "", cell: (row) => whom(row.client, "every other client id") },
      { title: "Address", text: (row) => row.address?.name ?? "", sort: (row) => row.address?.name ?? "", cell: (row) => whom(row.address, "every other address") },
      { title: "Limits", wrap: true, text: (row) => row.limits.map((each) => each.key).join(" "), cell: (row) => h("ul", { class: "plain" }, row.limits.map(limitOf)) },
    ],
  });
  main.append(panel("Quotas", { aside: "of users, client ids and addresses, for each broker" }, quotas.element));
  return api.watch("access.quotas", {}, (value) => {
    quotas.show(value.quotas);
    live.warn([value.left_out && `The page leaves out ${plural(value.left_out, "quota")}: there are too many.`]);
  }, live.mood);
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
