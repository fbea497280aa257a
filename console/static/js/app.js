// The frame: who visits, which page is shown, and how pages end.
import * as api from "./api.js";
import { h, say, set } from "./dom.js";
import { searchBox } from "./search.js";

const PAGES = {
  cluster: { title: "Cluster", load: () => import("./cluster.js") },
  topics: { title: "Topics", load: () => import("./topics.js") },
  topic: { title: "Topic", load: () => import("./topic.js"), under: "topics" },
  create: { title: "Create a topic", load: () => import("./create.js"), under: "topics" },
  settings: { title: "Settings", load: () => import("./settings.js"), under: "topics" },
  produce: { title: "Write records", load: () => import("./produce.js"), under: "topics" },
  records: { title: "Records", load: () => import("./records.js") },
  groups: { title: "Groups", load: () => import("./groups.js") },
  group: { title: "Group", load: () => import("./groups.js"), under: "groups" },
  deletes: { title: "Deletes", load: () => import("./deletes.js") },
  access: { title: "Access", load: () => import("./access.js") },
  broker: { title: "Broker", load: () => import("./broker.js"), under: "cluster" },
  setting: { title: "Setting", load: () => import("./broker.js"), under: "cluster" },
  transactions: { title: "Transactions", load: () => import("./transactions.js"), under: "cluster" },
  purge: { title: "Delete records", load: () => import("./purge.js"), under: "deletes" },
  erase: { title: "Erase a person", load: () => import("./erase.js"), under: "erasures" },
  erasures: { title: "Erasures", load: () => import("./erasures.js") },
};
const SHOWN = ["cluster", "topics", "records", "groups", "deletes", "erasures", "access"];

const search = searchBox([...SHOWN, "transactions"].map((name) => [name, PAGES[name].title]));
const main = document.getElementById("main");
const pages = document.getElementById("pages");
const visitor = document.getElementById("visitor");

let session = null;
let leave = () => {};
let visit = 0;

/** What an address means: the name of a page, and what it is about. */
function parsed() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const name = Object.hasOwn(PAGES, path) ? path : "cluster";
  return { name, given: Object.fromEntries(new URLSearchParams(search)) };
}

async function show({ focus = true } = {}) {
  leave();
  leave = () => {};
  visit += 1;
  const own = visit;
  const { name, given } = parsed();
  const page = PAGES[name];
  const active = page.under ?? name;
  for (const each of pages.querySelectorAll("a")) {
    if (each.dataset.page === active) each.setAttribute("aria-current", "page");
    else each.removeAttribute("aria-current");
  }
  try {
    const module = await page.load();
    if (own !== visit) return;
    set(main);
    const show_page = module[`${name}Page`];
    leave = show_page(main, given, { session, title: (text) => { document.title = `${text} – Lowtide`; } }) ?? (() => {});
    const heading = main.querySelector("h1");
    document.title = `${heading?.textContent ?? page.title} – Lowtide`;
    if (focus) {
      window.scrollTo(0, 0);
      heading?.focus({ preventScroll: true });
    }
  } catch (error) {
    set(main, h("h1", { tabindex: "-1" }, page.title), h("div", { class: "notice trouble", role: "alert" }, error.message));
  }
}

function drawFrame() {
  const links = SHOWN.map((name) => h("li", {}, h("a", { href: `#/${name}`, "data-page": name }, PAGES[name].title)));
  set(pages, h("ul", {}, links));
  pages.hidden = !session?.in;
  if (session?.in) pages.after(search);
  else search.remove();
  set(visitor,
    session?.in && h("span", { class: "mode" }, session.write ? "May write" : "Read-only"),
    session?.user && h("span", {}, "User ", h("span", { class: "who" }, session.user)),
    themeButton(),
    session?.in && session.login !== "none" && h("button", { type: "button", click: logOut }, "Log out"));
}

function themeButton() {
  const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark"
    || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  const button = h("button", {
    type: "button",
    id: "theme",
    click: () => {
      const theme = dark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      try { localStorage.setItem("lowtide-theme", theme); } catch { /* it holds for this page */ }
      name();
      document.dispatchEvent(new Event("lowtide-theme"));
    },
  });
  const name = () => { button.textContent = dark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Use the ${dark() ? "light" : "dark"} theme`); };
  name();
  return button;
}

async function logOut() {
  await api.post("logout").catch(() => {});
  await begin();
}

async function askForLogin() {
  leave();
  leave = () => {};
  visit += 1;
  const { loginPage } = await import("./login.js");
  set(main);
  loginPage(main, session, begin);
  main.querySelector("input, h1")?.focus();
  document.title = "Log in – Lowtide";
}

async function begin() {
  try {
    session = await api.get("session");
    const token = new URLSearchParams(location.hash.split("?", 2)[1] ?? "").get("token");
    if (token) {
      history.replaceState(null, "", `${location.pathname}#/cluster`);
      if (!session.in) {
        await api.post("login", { token });
        session = await api.get("session");
      }
    }
  } catch (trouble) {
    if (session === null) session = { in: false, login: "none" };
    drawFrame();
    set(main, h("h1", { tabindex: "-1" }, "Lowtide"), h("div", { class: "notice trouble", role: "alert" }, trouble.message));
    return;
  }
  drawFrame();
  if (session.in) {
    await show({ focus: false });
    say(document.title);
  } else {
    await askForLogin();
  }
}

document.addEventListener("lowtide-login", () => {
  if (session?.in && session.login !== "none") begin();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  (main.querySelector("h1") ?? main).focus();
});
window.addEventListener("hashchange", () => { if (session?.in) show(); });
begin();
