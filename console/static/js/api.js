// Questions to the console's server. Every one has the header that no other site can send.

import { LiveStream, keyOf } from "./live.js";

const OWN = { "X-Lowtide-Console": "1" };
const TELL_MS = 15_000;
const BODY_BYTES_MAX = 64 * 1024; // The server reads no more.

/** An answer that is an error: a sentence for the visitor, and the status. */
export class Trouble extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status;
  }
}

async function answer(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Trouble("The console does not answer: is it still running?", 0);
  }
  let value = null;
  try {
    value = await response.json();
  } catch { /* no JSON: the status says enough */ }
  if (response.ok) return value;
  if (response.status === 401) document.dispatchEvent(new Event("lowtide-login"));
  const slow = response.status === 429 ? "Too many requests: wait a moment." : `The console answers ${response.status}.`;
  throw new Trouble(value?.error ?? slow, response.status);
}

function query(given) {
  const search = new URLSearchParams(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
  return search.size ? `?${search}` : "";
}

export function get(path, given = {}) {
  return answer(fetch(`api/${path}${query(given)}`, { headers: OWN, credentials: "same-origin", cache: "no-store" }));
}

export function view(name, given = {}) {
  return get(`view/${encodeURIComponent(name)}`, given);
}

export async function post(path, body = {}) {
  const headers = { ...OWN, "Content-Type": "application/json" };
  const text = JSON.stringify(body);
  if (new Blob([text]).size > BODY_BYTES_MAX) throw new Trouble("This is too large: a request has at most 64 KiB.", 413);
  return answer(fetch(`api/${path}`, { method: "POST", headers, body: text, credentials: "same-origin" }));
}

// What this tab watches. While it is hidden, it watches nothing.
const watches = new Set();
const channel = openChannel();

function openChannel() {
  const onEvent = (key, event) => {
    for (const each of watches) if (each.key === key) each.take(event);
  };
  if (typeof SharedWorker === "undefined") {
    const stream = new LiveStream(onEvent);
    return (views) => stream.set(new Map(views.map((view) => [keyOf(view), view])));
  }
  const address = new URL("./live.js", import.meta.url).href;
  const trusted = globalThis.trustedTypes?.createPolicy("lowtide-live", { createScriptURL: () => address }).createScriptURL("") ?? address;
  const worker = new SharedWorker(trusted, { type: "module", name: "lowtide-live" });
  worker.port.onmessage = ({ data }) => onEvent(data.key, data.event);
  return (views) => worker.port.postMessage(views);
}

function tell() {
  channel(document.hidden ? [] : [...watches].map((each) => each.view));
}

document.addEventListener("visibilitychange", tell);
window.addEventListener("pagehide", () => channel([]));
window.addEventListener("pageshow", tell);
setInterval(() => { if (watches.size && !document.hidden) tell(); }, TELL_MS);

/** A view that stays: `onValue` gets it now and whenever it has changed, `onTrouble` a sentence, or null when all is well again. */
export function watch(name, given, onValue, onTrouble = () => {}) {
  const asked = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined).map(([key, value]) => [key, String(value)]));
  const own = {
    view: [name, asked],
    key: keyOf([name, asked]),
    take(event) {
      if (event.closed) {
        view(name, given).then((value) => watches.has(own) && onValue(value), (trouble) => watches.has(own) && onTrouble(trouble.message));
      } else if ("trouble" in event) {
        onTrouble(event.trouble);
      } else {
        onTrouble(null);
        onValue(event.value);
      }
    },
  };
  watches.add(own);
  tell();
  return () => {
    watches.delete(own);
    tell();
  };
}
