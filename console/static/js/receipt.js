// What the ledger says about one erasure, to keep: a document, and an export from which a receipt is signed.
import * as api from "./api.js";
import { h, notice, panel, say, set } from "./dom.js";

/** Give a text to the visitor as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/octet-stream" }));
  const anchor = h("a", { href: url, download: name });
  document.body.append(anchor);
  anchor.click();
  anchor.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A panel with the downloads for an erasure. `own`: this session has begun it, and may know its nonce. */
export function receiptPanel(id, session, { own = false } = {}) {
  const trouble = h("div", { role: "alert" });
  const nonce = h("input", { type: "checkbox", id: "with-nonce" });
  const fetched = async (path, give) => {
    set(trouble);
    try {
      const found = await api.post(path, { id, nonce: own && nonce.checked });
      give(found);
      if (!found.clean) set(trouble, notice("warning", "Not all brokers were clean when this was made: the file names them."));
      say("The file is made.");
    } catch (error) {
      set(trouble, notice("trouble", error.message));
    }
  };
  const signs = session.signs && session.write;
  const save = [
    signs && h("button", { type: "button", class: "main", click: () => fetched("erase/sign", (found) => download(`receipt-${id}.json`, found.receipt)) }, "Sign and download the receipt"),
    h("button", { type: "button", class: signs ? "" : "main", click: () => fetched("erase/receipt", (found) => download(`erasure-${id}.json`, found.document)) }, "Download the document"),
    !signs && h("button", { type: "button", click: () => fetched("erase/receipt", (found) => download(`erasure-${id}.jsonl`, found.export)) }, "Download for signing"),
  ];
  return panel("Receipt", { aside: "what the ledger says" }, h("div", { class: "body" }, trouble,
    h("p", {}, "The document says which records were erased, when, who asked, which brokers are clean, and what is not covered. It has no key."),
    own ? h("div", { class: "choice long" }, nonce, h("label", { for: "with-nonce" }, "With the nonce: whoever has it can test whether a key was the erased one")) : null,
    h("div", { class: "fields" }, save),
    h("h3", {}, signs ? "Verify" : "Sign and verify"),
    signs ? h("p", {}, "The receipt is signed with the key of this console. It is the next one in the chain of the key: if one is missing, that is found.")
      : h("p", {}, "This console has no signing key. Whoever has it makes the signed receipt, from the cluster or from the second file:"),
    h("pre", { class: "command", tabindex: "0" }, signs ? `lowtide erasures verify receipt-${id}.json --public-key audit.key.pub`
      : `lowtide erasures receipt ${id} --from-export erasure-${id}.jsonl --signing-key audit.key > receipt.json\nlowtide erasures verify receipt.json --public-key audit.key.pub`)));
}
