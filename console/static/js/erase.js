// Erasing a person: whose records, where, what was found, a rehearsal, the erasure, and which brokers are clean.
// Keys go into the body of one request and are kept nowhere: not in the address, not in the browser's storage.
import * as api from "./api.js";
import { address, badge, field, figures, h, head, link, notice, panel, put, say, set } from "./dom.js";
import { receiptPanel } from "./receipt.js";
import { table } from "./table.js";
import { bytes, clock, count, duration, moment, plural } from "./units.js";
import { whomPanel } from "./whom.js";

const STEPS = [["person", "Whose records"], ["search", "Search"], ["found", "What was found"], ["rehearsal", "Rehearsal"], ["erased", "Erased"], ["clean", "Clean everywhere"]];
const AT = { searching: 1, found: 2, forgotten: 2, erasing: 4, cleaning: 5, clean: 6 };
const TABLE = { tall: false };

export function erasePage(main, given, { session }) {
  const live = h("span", { class: "live still" }, "Connecting");
  const steps = h("ol", { class: "steps six", "aria-label": "Steps" });
  const trouble = h("div", { role: "alert" });
  const place = h("div", { class: "stack" });
  main.append(head("Erase a person", { beside: live, actions: [h("a", { class: "button", href: "#/erasures" }, "All erasures")],
    under: "Single records, wherever they are, from the files of all brokers. Everything else stays. First a search and a rehearsal: nothing is erased until you say so." }),
  h("div", { class: "panel" }, h("div", { class: "body" }, steps)), trouble, place);
  let stop = () => {};
  let at = 0;

  function drawSteps(now, failed = false) {
    at = now;
    set(steps, STEPS.map(([key, words], index) => h("li", {
      class: index < at ? "done" : index === at ? (failed ? "failed" : "now") : "", "data-step": key, "data-done": index < at ? "yes" : "no",
      "aria-current": index === at && !failed ? "step" : null,
    }, h("b", {}, words))));
  }

  function ask() {
    live.hidden = true;
    drawSteps(0);
    set(place, whomPanel(trouble, (id) => {
      history.replaceState(null, "", address("erase", { id }));
      follow(id);
    }));
    api.view("erasures").then((value) => {
      if (value.trouble && !given.id) set(place, unable(value.trouble));
    }, () => {});
  }

  function follow(id) {
    live.hidden = false;
    set(trouble);
    stop();
    let rehearsed = false;
    const parts = jobParts(id, session, trouble, () => {
      rehearsed = true;
      if (at < 3) drawSteps(3);
    });
    set(place, parts.element);
    stop = api.watch("person", { id }, (job) => {
      live.className = "live";
      live.textContent = "Live";
      drawSteps(stepOf(job, rehearsed), job.stage === "ended" || job.stage === "forgotten");
      parts.show(job);
    }, (sentence) => {
      if (!sentence) return;
      live.className = "live away";
      live.textContent = "Not live";
      set(trouble, notice("trouble", sentence, " ", link("What the ledger says about this erasure", "erasures", { id })));
    });
  }

  if (given.id) follow(given.id);
  else ask();
  return () => stop();
}

/** The page of a cluster whose brokers can't erase. */
export function unable(sentence) {
  return notice("", sentence, " ", link("Delete records", "purge"), " deletes everything before an offset or a time.");
}

/** The step that is under way, or that has failed. */
function stepOf(job, rehearsed) {
  if (job.stage === "found" && rehearsed) return 3;
  if (job.stage !== "ended") return AT[job.stage];
  if (!job.erasure) return 1;
  return job.erasure.erased === null ? 4 : 5;
}

// ------------------------------------------------------------------ one erasure
function jobParts(id, session, trouble, rehearsing) {
  const element = h("div", { class: "stack" });
  const searchPart = searchPanel(id, trouble);
  const erasurePart = erasurePanel();
  let stage = null;
  let foundShown = false;
  let receipts = null;
  const foundPlace = h("div", { class: "stack" });
  put(element, foundPlace);

  async function showFound(selector) {
    foundShown = true;
    try {
      const found = await api.view("person_found", { id });
      set(foundPlace, foundPanels(found, rehearsalPanel(id, session, rehearsing, selector.kind === "keys")));
      say(`${plural(found.records, "record")} found.`);
      focusHeading(foundPlace);
    } catch (error) {
      foundShown = false;
      set(trouble, notice("trouble", error.message));
    }
  }

  return {
    element,
    show(job) {
      if (job.stage === "searching") {
        if (stage !== "searching") set(element, searchPart.element, foundPlace);
        searchPart.show(job);
      } else if (job.stage === "found") {
        if (stage !== "found") set(element, foundPlace);
        if (!foundShown) showFound(job.selector);
      } else if (job.erasure) {
        if (!erasurePart.element.isConnected) {
          set(element, erasurePart.element);
          focusHeading(element);
        }
        erasurePart.show(job);
        if (!receipts && job.erasure.erased !== null) {
          receipts = receiptPanel(id, session, { own: true });
          put(element, receipts);
        }
      } else {
        set(element, panel(job.stage === "forgotten" ? "This search is too old" : "This search has ended", {}, h("div", { class: "body" },
          notice("warning", job.error ?? "Nothing was erased. The keys were forgotten ten minutes after the search."),
          h("div", {}, h("a", { class: "button", href: "#/erase" }, "Search again")))));
      }
      stage = job.stage;
    },
  };
}

function focusHeading(part) {
  const heading = part.querySelector("h2");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus();
}

function whose(selector) {
  return selector.kind === "keys" ? plural(selector.count, "key") : "a header";
}

function searchPanel(id, trouble) {
  const bar = h("progress", { max: 1, "aria-label": "Bytes searched" });
  const said = h("p", { role: "status" });
  const cancel = h("button", { type: "button", click: async () => {
    try { await api.post("erase/cancel", { id }); } catch (error) { set(trouble, notice("trouble", error.message)); }
  } }, "Cancel the search");
  const rows = table({
    ...TABLE,
    caption: "Partitions that are searched now",
    empty: "The leaders begin.",
    rowKey: (row) => `${row.topic}-${row.partition}`,
    columns: [
      { title: "Partition", cell: (row) => `${row.topic} ${row.partition}` },
      { title: "Searched", number: true, cell: (row) => bytes(row.bytes) },
      { title: "Of", number: true, cell: (row) => bytes(row.total_bytes) },
    ],
  });
  return {
    element: panel("The brokers search", { aside: "it goes on if you close this page" }, h("div", { class: "body" }, bar, said, h("div", {}, cancel)), rows.element),
    show(job) {
      const { partitions, searched, bytes: done, total_bytes: total } = job.search;
      rows.show(job.search.running);
      if (Number(total)) bar.value = Math.min(1, Number(done) / Number(total));
      said.textContent = `${count(searched)} of ${plural(partitions, "partition")} of ${plural(job.topics, "topic")} searched for ${whose(job.selector)}: ${bytes(done)} of ${bytes(total)} so far.`;
    },
  };
}

function foundPanels(found, rehearsal) {
  const { reach } = found;
  const topics = table({
    ...TABLE,
    caption: "Topics that were searched",
    rowKey: (row) => row.topic,
    columns: [
      { title: "Topic", sort: (row) => row.topic, cell: (row) => link(row.topic, "topic", { topic: row.topic }, { class: "name" }) },
      { title: "Records", key: "records", number: true, sort: (row) => row.records, cell: (row) => count(row.records) },
      { title: "In partitions", number: true, cell: (row) => `${count(row.with_records)} of ${count(row.partitions)}` },
      { title: "Remark", wrap: true, cell: (row) => remarks(row, reach) },
    ],
  });
  const partitions = table({
    caption: "Partitions with records or troubles",
    empty: "No partition has such a record.",
    rowKey: (row) => `${row.topic}-${row.partition}`,
    columns: [
      { title: "Partition", sort: (row) => row.topic, cell: (row) => [link(row.topic, "topic", { topic: row.topic, partition: row.partition }, { class: "name" }), ` ${row.partition}`] },
      { title: "Records", number: true, sort: (row) => row.records, cell: (row) => count(row.records) },
      { title: "Searched", number: true, cell: (row) => (row.error ? "–" : `${count(row.searched_from)} to ${count(row.searched_to)}`) },
      { title: "Offsets", wrap: true, cell: (row) => (row.error ? row.error : h("span", { class: "mono" }, ranges(row.offsets, row.more_offsets))) },
      ...(found.partitions.some((row) => row.newest_count) ? [{ title: "Newest versions of keys", number: true, cell: (row) => (row.newest_count ? count(row.newest_count) : "–") }] : []),
    ],
  });
  topics.show(found.topics);
  partitions.show(found.partitions);
  const with_ = found.topics.filter((row) => row.records).length;
  const failed = found.topics.reduce((sum, row) => sum + row.failed, 0);
  return [
    panel("What was found", {}, h("div", { class: "body" }, figures([
      ["Records", count(found.records)], ["In topics", `${count(with_)} of ${count(found.topics.length)}`],
      ["Partitions not searched", count(failed), failed ? "warn" : ""], ["Held topics", count(reach.holds.length), reach.holds.length ? "warn" : ""],
    ]), reach.unknown.map((each) => notice("warning", each))), topics.element),
    panel("Where", { aside: found.left_out ? `${plural(found.left_out, "partition")} left out` : null }, partitions.element),
    reachPanel(reach),
    rehearsal,
  ];
}

function remarks(row, reach) {
  const hold = reach.holds.find((each) => each.topic === row.topic);
  const parts = [];
  if (hold) parts.push(badge("Held", "warn"), ` until ${moment(hold.until_ms)}${hold.reason ? `: ${hold.reason}` : ""}. Nothing is erased. `);
  if (reach.without_delete.includes(row.topic)) parts.push(badge("No right", "warn"), " You may not erase here. ");
  if (reach.compacted.includes(row.topic)) parts.push(badge("Compacted", "sea"), " All versions of the keys go, on every replica. ");
  if (row.failed) parts.push(badge(`${count(row.failed)} not searched`, "bad"), " ");
  return parts.length ? parts : "–";
}

function ranges(pairs, more) {
  return [...pairs.map(([first, last]) => (first === last ? `${first}` : `${first}-${last}`)), ...(more ? ["…"] : [])].join(", ");
}

function reachPanel(reach) {
  const readers = table({
    caption: "Groups that read these partitions",
    empty: "No group has committed offsets in these partitions.",
    rowKey: (row) => row.group,
    columns: [
      { title: "Group", cell: (row) => link(row.group, "group", { group: row.group }, { class: "name" }) },
      { title: "Kind", cell: (row) => row.kind },
      { title: "Of the records, it has read", number: true, cell: (row) => `${row.at_least ? "at least " : ""}${count(row.read)}` },
      { title: "Topics", wrap: true, cell: (row) => row.topics.join(", ") },
    ],
  });
  readers.show(reach.readers);
  const letters = reach.dead_letters.map((each) => h("li", {}, link(each.topic, "topic", { topic: each.topic }), ` gets the dead letters of ${each.group}. ${each.copies ? "They have copies of keys and values." : "They only say where the records are."} ${each.searched ? "It was searched." : "It was not searched: search it too."}`));
  return panel("Who has copies", { aside: "tell them" }, readers.element, h("div", { class: "body" },
    reach.readers_left_out ? h("p", {}, `${plural(reach.readers_left_out, "more group")} read these partitions.`) : null,
    letters.length ? h("ul", { class: "plain" }, letters) : null,
    h("h3", {}, "What can't be reached from here"), h("ul", { class: "plain" }, reach.beyond.map((each) => h("li", {}, each)))));
}

// ------------------------------------------------------------------ the rehearsal
function rehearsalPanel(id, session, rehearsing, byKeys) {
  const days = h("input", { type: "number", min: 0, max: 3650, value: "0", inputmode: "numeric" });
  const tombstone = h("input", { type: "checkbox", id: "tombstone" });
  const shown = h("div");
  const own = h("div", { role: "alert" });
  const form = h("form", { submit: async (event) => {
    event.preventDefault();
    set(own);
    try {
      const plan = await api.post("erase/rehearsal", { id, standing_days: Number(days.value) || 0, tombstone: tombstone.checked });
      rehearsing();
      set(shown, confirmation(plan, session, own));
      say(plan.sentences[0]);
      shown.querySelector("input, h3")?.focus();
    } catch (error) {
      set(shown);
      set(own, notice("trouble", error.message));
    }
  } }, h("div", { class: "body" },
    byKeys ? [h("div", { class: "fields start" }, field("Erase the keys again if they return, for so many days", days, "0 means never. Until the end, a keyed digest of the keys is in the metadata store.")),
    h("div", { class: "choice long" }, tombstone, h("label", { for: "tombstone" }, "Then write a record with each key and no value, so that tables that were made of the topics forget the person too"))] : null,
    h("div", {}, h("button", { class: "main" }, "Rehearse"))));
  return panel("Rehearsal", {}, form, h("div", { class: "body" }, own, shown));
}

function confirmation(plan, session, own) {
  const typed = h("input", { inputmode: "numeric", autocomplete: "off", maxlength: 20, input: () => { go.disabled = typed.value.replaceAll(",", "").trim() !== String(plan.records); } });
  const go = h("button", { class: "main danger" }, `Erase ${plural(plan.records, "record")}`);
  go.disabled = true;
  const sentences = h("ul", { class: "plain sentence" }, plan.sentences.map((each) => h("li", {}, each)));
  if (!session.write) return [sentences, notice("", "This console is read-only: nothing can be carried out.")];
  return h("form", { submit: async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      await api.post("erase", { plan: plan.plan, records: plan.records });
      say("The erasure has begun.");
    } catch (error) {
      set(own, notice("trouble", error.message));
    }
  } }, h("div", { class: "stack" }, sentences, h("div", { class: "fields" }, field(`Type ${count(plan.records)} to confirm`, typed), go)));
}

// ------------------------------------------------------------------ the erasure
function erasurePanel() {
  const said = h("p", { role: "status" });
  const numbers = h("div");
  const own = h("div", { role: "alert" });
  const brokers = table({
    ...TABLE,
    caption: "Brokers with replicas",
    empty: "The leaders erase.",
    rowKey: (row) => row.broker,
    columns: [
      { title: "Broker", cell: (row) => `Broker ${row.broker}` },
      { title: "Clean replicas", number: true, cell: (row) => `${count(row.clean)} of ${count(row.replicas)}` },
      { title: "State", cell: (row) => (row.clean === row.replicas ? badge("Clean", "good") : badge("Not yet", "warn")) },
      { title: "Why not yet", wrap: true, cell: (row) => (row.reasons.length ? row.reasons.join("; ") : "–") },
    ],
  });
  const failed = table({
    ...TABLE,
    caption: "Partitions that could not be erased",
    rowKey: (row) => `${row.topic}-${row.partition}`,
    columns: [{ title: "Partition", cell: (row) => `${row.topic} ${row.partition}` }, { title: "Error", wrap: true, cell: (row) => row.error }],
  });
  const failedPlace = h("div");
  return {
    element: h("div", { class: "stack" }, panel("This erasure", { aside: "it goes on if you close this page" }, h("div", { class: "body" }, said, own, numbers), brokers.element), failedPlace),
    show(job) {
      const { erasure, times } = job;
      const clean = erasure.brokers.filter((row) => row.clean === row.replicas).length;
      said.textContent = sentence(job);
      set(own, job.error && notice("trouble", job.error));
      set(numbers, figures([
        ["Records erased", erasure.erased === null ? "–" : count(erasure.erased)],
        ["Shown before", count(erasure.shown)],
        ["Clean brokers", `${count(clean)} of ${count(erasure.brokers.length)}`, clean < erasure.brokers.length ? "warn" : ""],
        ["Begun", clock(times.asked)],
        ["Unreadable after", times.named ? duration(times.named - times.asked) : "–"],
        ["Clean after", times.clean ? duration(times.clean - times.asked) : "–"],
      ]), h("p", {}, "Erasure ", h("code", {}, job.id)), erasure.standing_until_ms ? h("p", {}, `It stands until ${moment(erasure.standing_until_ms)}: keys that return are erased again.`) : null);
      if (erasure.tombstones) put(numbers, h("p", {}, `${plural(erasure.tombstones.written, "tombstone")} written.`), erasure.tombstones.error && notice("trouble", erasure.tombstones.error));
      brokers.show(erasure.brokers);
      if (erasure.failed_count) {
        if (!failedPlace.firstChild) set(failedPlace, panel("Not erased", {}, failed.element));
        failed.show(erasure.failed);
      }
    },
  };
}

function sentence(job) {
  const { erasure } = job;
  if (job.stage === "erasing") return "The leaders search again and erase. Then nobody can read the records.";
  if (job.stage === "clean") return "Done: no file of any broker has one of these records.";
  if (erasure.erased === null) return "The leaders did not erase.";
  const waiting = erasure.brokers.filter((row) => row.clean < row.replicas).map((row) => row.broker);
  if (!waiting.length) return "Nobody can read the records any more. The brokers remove them from their files.";
  return `Nobody can read the records any more. Not yet clean: broker ${waiting.join(", ")}.`;
}
