// Erasing a person: whose records, where, what was found, a rehearsal, the erasure, and which brokers are clean.
// Keys go into the body of one request and are kept nowhere: not in the address, not in the browser's storage.
import * as api from "./api.js";
import { address, badge, field, figures, h, head, link, notice, panel, put, say, select, set } from "./dom.js";
import { receiptPanel } from "./receipt.js";
import { table } from "./table.js";
import { bytes, clock, count, duration, moment, plural } from "./units.js";

const STEPS = [["person", "Whose records"], ["search", "Search"], ["found", "What was found"], ["rehearsal", "Rehearsal"], ["erased", "Erased"], ["clean", "Clean everywhere"]];
const AT = { searching: 1, found: 2, forgotten: 2, erasing: 4, cleaning: 5, clean: 6 };
const BODY_MAX = 60_000;
const KEYS_MAX = 1000;
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
      live.textContent = "Not connected";
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

// ------------------------------------------------------------------ whose records, and where
function whomPanel(trouble, begun) {
  const keys = h("textarea", { rows: 4, autocomplete: "off", autocapitalize: "off", spellcheck: "false", class: "mono", name: "keys" });
  const format = select([["text", "Text"], ["hex", "Hexadecimal"], ["base64", "Base64"]], "text");
  const file = h("input", { type: "file", change: () => take() });
  const taken = h("span", { class: "hint", role: "status" });
  const header = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 8192, placeholder: "person=4711" });
  const topics = h("input", { autocomplete: "off", spellcheck: "false", maxlength: 20_000, list: "erase-topics" });
  const names = h("datalist", { id: "erase-topics" });
  let fromFile = [];

  async function take() {
    set(trouble);
    fromFile = [];
    const [chosen] = file.files;
    if (!chosen) {
      taken.textContent = "";
      return;
    }
    if (chosen.size > BODY_MAX) {
      set(trouble, notice("trouble", `The file has more than ${bytes(BODY_MAX)}: use lowtide records erase --keys-from for so many keys.`));
      file.value = "";
      return;
    }
    fromFile = lines(await chosen.text());
    taken.textContent = `${plural(fromFile.length, "key")} from the file.`;
  }

  const by = radios("by", [["keys", "By key"], ["header", "By header"]], () => fit());
  const where = radios("where", [["some", "These topics"], ["all", "All topics that you may read"]], () => fit());
  const keyFields = h("div", { class: "fields start" }, field("Keys, one in each line", keys, "At most 1,000. They are sent once, and kept in the console's memory until they are erased."),
    field("Written as", format), h("div", {}, field("Or a file with a key in each line", file), taken));
  const headerFields = h("div", { class: "fields start" }, field("Header, as NAME=VALUE", header, "Records that have this header with this value."));
  const topicFields = h("div", { class: "fields start" }, field("Topics", topics, "Names, or patterns with * and ?, with commas between: orders, clicks-*"));
  const fit = () => {
    keyFields.hidden = by.value() !== "keys";
    headerFields.hidden = !keyFields.hidden;
    topicFields.hidden = where.value() !== "some";
  };
  fit();
  const go = h("button", { class: "main" }, "Search");
  api.view("topics").then((value) => set(names, value.topics.map((each) => h("option", { value: each.name }))), () => {});

  async function search(event) {
    event.preventDefault();
    set(trouble);
    const asked = {};
    if (by.value() === "keys") {
      asked.keys = [...lines(keys.value), ...fromFile];
      asked.key_format = format.value;
      if (asked.keys.length > KEYS_MAX) return fail(`These are ${count(asked.keys.length)} keys, and a search has at most ${count(KEYS_MAX)}.`);
    } else {
      asked.header = header.value;
    }
    const words = topics.value.split(",").map((each) => each.trim()).filter(Boolean);
    if (where.value() === "all") asked.all = true;
    else Object.assign(asked, { topics: words.filter((each) => !/[*?[]/.test(each)), patterns: words.filter((each) => /[*?[]/.test(each)) });
    if (JSON.stringify(asked).length > BODY_MAX) return fail("The keys are too large together: use lowtide records erase --keys-from for so many.");
    go.disabled = true;
    try {
      const { id } = await api.post("erase/search", asked);
      keys.value = "";
      header.value = "";
      fromFile = [];
      begun(id);
    } catch (error) {
      fail(error.message);
    } finally {
      go.disabled = false;
    }
    return null;
  }

  function fail(sentence) {
    set(trouble, notice("trouble", sentence));
    return null;
  }

  return panel("Whose records, and where", {}, h("form", { submit: search, autocomplete: "off" }, h("div", { class: "body" },
    h("fieldset", {}, h("legend", {}, "Whose"), by.elements, keyFields, headerFields),
    h("fieldset", {}, h("legend", {}, "Where"), where.elements, topicFields),
    h("div", {}, go)), names));
}

function radios(name, options, changed) {
  const inputs = options.map(([value], index) => h("input", { type: "radio", name, value, id: `${name}-${value}`, checked: index === 0, change: changed }));
  return {
    elements: h("div", { class: "fields" }, inputs.map((input, index) => h("div", { class: "choice" }, input, h("label", { for: input.id }, options[index][1])))),
    value: () => inputs.find((each) => each.checked).value,
  };
}

function lines(text) {
  return text.split("\n").map((each) => each.replace(/\r$/, "")).filter(Boolean);
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

  async function showFound() {
    foundShown = true;
    try {
      const found = await api.view("person_found", { id });
      set(foundPlace, foundPanels(found, id, session, rehearsing));
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
        if (!foundShown) showFound();
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
  return {
    element: panel("The brokers search", { aside: "it goes on if you close this page" }, h("div", { class: "body" }, bar, said, h("div", {}, cancel))),
    show(job) {
      const { partitions, searched, bytes: done, total_bytes: total } = job.search;
      if (Number(total)) bar.value = Math.min(1, Number(done) / Number(total));
      said.textContent = `${count(searched)} of ${plural(partitions, "partition")} of ${plural(job.topics, "topic")} searched for ${whose(job.selector)}: ${bytes(done)} of ${bytes(total)} so far.`;
    },
  };
}

function foundPanels(found, id, session, rehearsing) {
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
    rehearsalPanel(id, session, rehearsing),
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
function rehearsalPanel(id, session, rehearsing) {
  const days = h("input", { type: "number", min: 0, max: 3650, value: "0", inputmode: "numeric" });
  const shown = h("div");
  const own = h("div", { role: "alert" });
  const form = h("form", { submit: async (event) => {
    event.preventDefault();
    set(own);
    try {
      const plan = await api.post("erase/rehearsal", { id, standing_days: Number(days.value) || 0 });
      rehearsing();
      set(shown, confirmation(plan, session, own));
      say(plan.sentences[0]);
      shown.querySelector("input, h3")?.focus();
    } catch (error) {
      set(shown);
      set(own, notice("trouble", error.message));
    }
  } }, h("div", { class: "body" },
    h("div", { class: "fields start" }, field("Erase the keys again if they return, for so many days", days, "0 means never. Until the end, a keyed digest of the keys is in the metadata store.")),
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
