// Erasures: those of this session, the ledger, what stands, and holds.
import * as api from "./api.js";
import { dialog } from "./dialog.js";
import { badge, field, h, head, link, notice, panel, put, say, set } from "./dom.js";
import { unable } from "./erase.js";
import { liveMark } from "./page.js";
import { download, receiptPanel } from "./receipt.js";
import { table } from "./table.js";
import { ago, clock, count, duration, moment, plural } from "./units.js";

const STAGES = {
  searching: ["Searching", "sea"], found: ["Searched, nothing erased", ""], forgotten: ["Too old", ""], erasing: ["Erasing", "sea"],
  cleaning: ["Not yet clean everywhere", "warn"], clean: ["Clean everywhere", "good"], ended: ["Ended", "bad"],
};

export function erasuresPage(main, given, { session }) {
  const live = liveMark();
  const one = h("div", { class: "stack" });
  const own = ownTable();
  const ownPlace = h("div");
  const ledger = ledgerPart(session, one, given.id);
  const standing = standingPart(session, live.trouble);
  const holds = holdsPart(session, live.trouble);
  main.append(head("Erasures", { beside: live.mark, actions: [h("a", { class: "button danger", href: "#/erase" }, session.write ? "Erase a person" : "Search a person")] }),
    live.trouble, ownPlace, one, ledger.element, standing.element, holds.element);
  const lowtide = [ledger.element, standing.element, holds.element];
  let loaded = false;

  return api.watch("erasures", {}, (value) => {
    for (const each of lowtide) each.hidden = Boolean(value.trouble);
    if (value.trouble) {
      set(one, unable(value.trouble));
      return;
    }
    if (!loaded) {
      loaded = true;
      ledger.load();
      holds.load();
    }
    if (value.own.length) {
      if (!ownPlace.firstChild) set(ownPlace, panel("Of this session", { aside: "live" }, own.element));
      own.show(value.own);
    }
    standing.show(value.standing);
  }, live.mood);
}

function ownTable() {
  return table({
    caption: "Erasures of this session",
    tall: false,
    rowKey: (row) => row.id,
    columns: [
      { title: "Begun", cell: (row) => link(clock(row.times.begun), "erase", { id: row.id }, { "aria-label": `Open the erasure of ${clock(row.times.begun)}` }) },
      { title: "State", cell: (row) => badge(...STAGES[row.stage]) },
      { title: "Topics", wrap: true, cell: (row) => topicsOf(row.topic_names, row.topics) },
      { title: "Found", number: true, cell: (row) => count(row.found) },
      { title: "Erased", number: true, cell: (row) => count(row.erasure?.erased) },
      { title: "Not yet clean", cell: (row) => missingOf(row.erasure?.brokers.length ? row.erasure.brokers.filter((each) => each.clean < each.replicas).map((each) => each.broker) : null) },
    ],
  });
}

function topicsOf(names, number) {
  return `${names.join(", ")}${number > names.length ? ` and ${count(number - names.length)} more` : ""}`;
}

function missingOf(brokers) {
  if (brokers === null) return "–";
  return brokers.length ? badge(`Broker ${brokers.join(", ")}`, "warn") : badge("None", "good");
}

// ------------------------------------------------------------------ the ledger
function ledgerPart(session, one, wanted) {
  const said = h("div", { class: "body", role: "status" });
  const rows = table({
    caption: "The ledger",
    filter: "Filter by topic, user or id",
    empty: "Nothing was erased yet.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Erased", sort: (row) => row.named_ms ?? row.changed_ms, text: (row) => row.id, cell: (row) => h("button", { type: "button", class: "plain", title: ago(row.changed_ms), "aria-label": `${clock(row.named_ms ?? row.changed_ms)}: details of the erasure ${row.id}`, click: () => details(row) }, clock(row.named_ms ?? row.changed_ms)) },
      { title: "By", text: (row) => row.principals.join(" "), sort: (row) => row.principals[0] ?? "", cell: (row) => h("span", { class: "name" }, row.principals.join(", ") || "–") },
      { title: "What", sort: (row) => row.kinds[0], cell: (row) => [kindOf(row), row.replay ? [" ", badge("replay")] : null] },
      { title: "Topics", wrap: true, text: (row) => row.topics.join(" "), cell: (row) => topicsOf(row.topics, row.topic_count) },
      { title: "Partitions", number: true, sort: (row) => row.partitions, cell: (row) => count(row.partitions) },
      { title: "Records", number: true, sort: (row) => row.records, cell: (row) => (row.named_ms === null ? "–" : count(row.records)) },
      { title: "Not yet clean", sort: (row) => row.missing.length, cell: (row) => missingOf(row.missing) },
    ],
  });
  const again = h("button", { type: "button", click: () => load() }, "Reload");
  const save = h("button", { type: "button", click: async () => {
    try {
      const found = await api.post("erasures/export");
      download("ledger.jsonl", found.export);
      say(`${plural(found.records, "record")} of the ledger saved.`);
    } catch (error) {
      set(said, notice("trouble", error.message));
    }
  } }, "Export");

  function details(row) {
    const answer = h("div", { role: "alert" });
    const ask = h("button", { type: "button", click: async () => {
      ask.disabled = true;
      try {
        const found = await api.post("erase/confirm", { id: row.id });
        const left = found.brokers.filter((each) => each.clean < each.replicas);
        set(answer, left.length ? left.map((each) => notice("warning", `Broker ${each.broker} is not clean yet: ${each.reasons.join("; ")}.`)) : notice("good", "Every broker is clean. The ledger says so too."));
        await load();
      } catch (error) {
        set(answer, notice("trouble", error.message));
      } finally {
        ask.disabled = false;
      }
    } }, "Ask the brokers again");
    set(one, panel(`Erasure of ${clock(row.named_ms ?? row.changed_ms)}`, { aside: row.id, actions: [session.write && row.missing.length ? ask : null, h("button", { type: "button", click: () => { set(one); again.focus(); } }, "Close")] },
      h("div", { class: "body" }, answer, h("dl", { class: "pairs" }, [
        ["Records", row.named_ms === null ? "–" : count(row.records)], ["Topics", topicsOf(row.topics, row.topic_count)], ["Partitions", count(row.partitions)],
        ["By", row.principals.join(", ") || "–"], ["Named", moment(row.named_ms)], ["Last report", moment(row.changed_ms)],
        ["Not yet clean", row.missing.length ? `Broker ${row.missing.join(", ")}` : "None"],
      ].map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))), receiptPanel(row.id, session));
    const heading = one.querySelector("h2");
    heading.setAttribute("tabindex", "-1");
    heading.focus();
  }

  async function load() {
    set(said, "Reading the ledger");
    try {
      const value = await api.view("ledger");
      rows.show(value.erasures);
      set(said, value.trouble ? notice("", value.trouble) : null, value.is_cut ? notice("warning", "The ledger is large: only its newest part was read.") : null,
        value.left_out ? notice("warning", `${plural(value.left_out, "older erasure")} left out.`) : null);
      rows.element.hidden = !value.known;
      const found = value.erasures.find((row) => row.id === wanted);
      if (wanted && found && !one.firstChild) details(found);
      else if (wanted && !found) put(said, notice("warning", `The ledger has no record of the erasure ${wanted}.`));
    } catch (error) {
      set(said, notice("trouble", error.message));
    }
    said.hidden = !said.firstChild;
  }

  return { element: panel("Ledger", { aside: "what brokers have erased, and who asked", actions: [again, save] }, said, rows.element), load };
}

function kindOf(row) {
  return row.kinds.map((kind) => ({ keys: "By key", header: "By header", offsets: "By offset", beginning: "The beginning" })[kind] ?? kind).join(", ");
}

// ------------------------------------------------------------------ standing erasures
function standingPart(session, trouble) {
  const said = h("div", { class: "body" });
  const rows = table({
    caption: "Standing erasures",
    tall: false,
    empty: "None stands.",
    rowKey: (row) => row.id,
    columns: [
      { title: "Begun", sort: (row) => row.begun_ms, cell: (row) => clock(row.begun_ms) },
      { title: "Ends", sort: (row) => row.ends_ms, cell: (row) => moment(row.ends_ms) },
      { title: "By", cell: (row) => row.principal },
      { title: "Keys", number: true, cell: (row) => count(row.keys) },
      { title: "Topics", wrap: true, cell: (row) => [...row.topics, ...row.patterns].join(", ") },
      { title: "Action", cell: (row) => h("button", { type: "button", class: "danger", "aria-label": `${session.write ? "End" : "Rehearse the end of"} the standing erasure of ${clock(row.begun_ms)}`, click: () => end(row) }, session.write ? "End" : "Rehearse the end") },
    ],
  });
  async function end(row) {
    const done = await dialog("End a standing erasure", (close) => rehearsed({
      close, write: session.write, words: "End it", rehearse: () => api.post("standing/rehearsal", { id: row.id }), carry: (plan) => api.post("standing/end", { plan }),
    }));
    if (done) set(trouble, notice("good", "The standing erasure was ended."));
  }
  return {
    element: panel("Standing", { aside: "keys that are erased again when they return" }, said, rows.element),
    show(value) {
      set(said, value.trouble && notice("", value.trouble));
      said.hidden = !value.trouble;
      rows.element.hidden = Boolean(value.trouble);
      rows.show(value.rows);
    },
  };
}

// ------------------------------------------------------------------ holds
function holdsPart(session, trouble) {
  const said = h("div", { class: "body" });
  const rows = table({
    caption: "Topics that are held",
    tall: false,
    empty: "No topic is held.",
    rowKey: (row) => row.topic,
    columns: [
      { title: "Topic", sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic }, { class: "name" }) },
      { title: "Until", sort: (row) => row.until_ms, cell: (row) => moment(row.until_ms) },
      { title: "For another", number: true, sort: (row) => row.until_ms, cell: (row) => duration(Number(row.until_ms) - Date.now()) },
      { title: "Reason", wrap: true, cell: (row) => row.reason || "–" },
      { title: "Action", cell: (row) => h("button", { type: "button", class: "danger", "aria-label": `${session.write ? "End" : "Rehearse the end of"} the hold of ${row.topic}`, click: () => end(row) }, session.write ? "End" : "Rehearse the end") },
    ],
  });
  const place = h("button", { type: "button", click: () => hold() }, session.write ? "Hold topics" : "Rehearse a hold");

  async function hold() {
    const done = await dialog("Hold topics", (close) => holdForm(session, close));
    if (done) finished(done, "The topics are held.");
  }
  async function end(row) {
    const done = await dialog(`End the hold of ${row.topic}`, (close) => rehearsed({
      close, write: session.write, words: "End the hold", rehearse: () => api.post("hold/rehearsal", { topics: [row.topic], remove: true }), carry: (plan) => api.post("hold", { plan }),
    }));
    if (done) finished(done, "The hold was ended.");
  }
  function finished(done, words) {
    const failed = done.topics.filter((row) => row.error);
    set(trouble, failed.length ? notice("trouble", `${failed[0].topic}: ${failed[0].error}`) : notice("good", words));
    load();
  }
  async function load() {
    try {
      const value = await api.view("holds");
      rows.show(value.holds);
      set(said, value.unknown.map((each) => notice("warning", each)), value.left_out ? notice("warning", `${plural(value.left_out, "held topic")} left out.`) : null);
    } catch (error) {
      set(said, notice("trouble", error.message));
    }
    said.hidden = !said.firstChild;
  }
  return { element: panel("Holds", { aside: "topics of which nothing is deleted", actions: [place] }, said, rows.element), load };
}

function holdForm(session, close) {
  const topics = h("input", { required: true, maxlength: 20_000, autocomplete: "off", spellcheck: "false" });
  const until = h("input", { type: "datetime-local", required: true, step: 1 });
  const reason = h("input", { maxlength: 1000 });
  return rehearsed({
    close,
    write: session.write,
    words: "Hold",
    fields: h("div", { class: "fields start" }, field("Topics", topics, "Names, or patterns with * and ?, with commas between."), field("Until", until), field("Reason", reason, "Shown to everyone whose deletes are refused.")),
    rehearse: () => api.post("hold/rehearsal", {
      topics: topics.value.split(",").map((each) => each.trim()).filter(Boolean), until: until.value ? new Date(until.value).toISOString() : "", reason: reason.value.trim(),
    }),
    carry: (plan) => api.post("hold", { plan }),
  });
}

/** A form that rehearses, shows the sentences, and carries that out. Without fields it rehearses at once. */
function rehearsed({ fields = null, rehearse, carry, words, write, close }) {
  const trouble = h("div", { role: "alert" });
  const shown = h("div");
  const go = h("button", { type: "button", class: "main danger", hidden: true }, words);
  const ask = h("button", { class: "main", hidden: !fields }, "Rehearse");
  const once = async () => {
    set(trouble);
    go.hidden = true;
    try {
      const plan = await rehearse();
      set(shown, h("ul", { class: "plain sentence" }, plan.sentences.map((each) => h("li", {}, each))));
      say(plan.sentences[0]);
      go.hidden = !write;
      if (!write) set(trouble, notice("", "This console is read-only: nothing can be carried out."));
      go.onclick = async () => {
        go.disabled = true;
        try { close(await carry(plan.plan)); } catch (error) { set(trouble, notice("trouble", error.message)); go.hidden = true; } finally { go.disabled = false; }
      };
    } catch (error) {
      set(shown);
      set(trouble, notice("trouble", error.message));
    }
  };
  if (!fields) once();
  return h("form", { submit: (event) => { event.preventDefault(); once(); } }, fields, trouble, shown,
    h("div", { class: "actions" }, h("button", { type: "button", click: () => close() }, "Cancel"), ask, go));
}
