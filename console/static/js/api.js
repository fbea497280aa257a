// Questions to the console's server. Every one has the header that no other site can send.

const OWN = { "X-Lowtide-Console": "1" };
const RETRY_MS = 3000;

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

export function post(path, body = {}) {
  const headers = { ...OWN, "Content-Type": "application/json" };
  return answer(fetch(`api/${path}`, { method: "POST", headers, body: JSON.stringify(body), credentials: "same-origin" }));
}

/** A view that stays: `onValue` gets it now and whenever it has changed, `onTrouble` a sentence, or null when all is well again. */
export function watch(name, given, onValue, onTrouble = () => {}) {
  let source = null;
  let timer = 0;
  let over = false;
  const open = () => {
    source = new EventSource(`api/events/${encodeURIComponent(name)}${query(given)}`);
    source.addEventListener("value", (event) => {
      if (over) return;
      onTrouble(null);
      onValue(JSON.parse(event.data));
    });
    source.addEventListener("trouble", (event) => over || onTrouble(JSON.parse(event.data).error));
    source.addEventListener("error", () => {
      if (over || source.readyState !== EventSource.CLOSED) return;
      // Refused, which an event source does not explain: the same question without events does.
      view(name, given).then((value) => { if (!over) onValue(value); }, (trouble) => over || onTrouble(trouble.message));
      timer = setTimeout(open, RETRY_MS);
    });
  };
  open();
  return () => {
    over = true;
    clearTimeout(timer);
    source.close();
  };
}
