// The frame of the lab: views by address, events of the server, keys and help.
import { byId, copy, fill, get, h, isTyping, say, alertBox, stream, takeToken } from "/static/dom.js";
import * as runs from "/static/runs.js";
import * as bench from "/static/bench.js";
import * as documents from "/static/documents.js";
import * as confirm from "/static/confirm.js";
import { showFolder } from "/static/folder.js";

const VIEWS = { runs, bench, documents, confirm };
const TITLES = { runs: "Runs", bench: "Bench", documents: "Documents", confirm: "Confirm" };

// Milliseconds after which a lost connection is tried again.
const RETRY = 1000;

export const lab = { state: null, view: "", params: {} };
let shown = null;

// The address of a view; parameters without a value are left out.
export function address(view, params) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value != null && value !== ""));
  return `#/${view}${query.size ? `?${query}` : ""}`;
}

export function go(view, params, { replace = false } = {}) {
  const target = address(view, params);
  if (target === location.hash) return;
  if (replace) {
    history.replaceState(null, "", target);
    lab.params = Object.fromEntries(Object.entries(params).filter(([, value]) => value != null && value !== ""));
  } else location.hash = target;
}

async function route() {
  takeToken();
  const [path, query] = location.hash.slice(2).split(/\?(.*)/s);
  const { state } = lab;
  const view = VIEWS[path] ? path : state.runs ? "runs" : "bench";
  const params = Object.fromEntries(new URLSearchParams(query ?? ""));
  if (view !== "runs" && params.run === undefined) params.run = state.default_run ?? "";
  // A view that stays keeps its elements, and with them the focus.
  const stays = shown && lab.view === view && lab.params.run === params.run && shown.update;
  Object.assign(lab, { view, params });
  if (params.run) state.default_run = params.run;
  document.title = `${TITLES[view]} · ${params.run || state.title} · touche-llm lab`;
  byId("place").textContent = view === "runs" || !params.run || params.run === "." ? state.title : `${state.title}/${params.run}`;
  links();
  if (stays) return shown.update(params);
  shown?.close?.();
  shown = null;
  const main = byId("main");
  main.className = view;
  fill(main, h("p", { class: "lead", role: "status" }, "Loading …"));
  byId("server").hidden = true;
  showFolder(byId("folder"), view === "runs" ? null : params.run, reopen);
  try {
    const opened = await VIEWS[view].open(main, params);
    if (lab.view === view && lab.params.run === params.run) shown = opened;
    else opened?.close?.();
  } catch (error) {
    fill(main, alertBox(error.message, h("button", { type: "button", click: route }, "Try again")));
  }
}

// Open the view again, with what is known of the run now.
function reopen() {
  shown?.close?.();
  shown = null;
  return route();
}

function links() {
  const { run } = lab.params;
  const names = Object.keys(VIEWS).filter((name) => (name === "runs" ? lab.state.runs : run !== undefined || lab.state.default_run != null));
  fill(byId("views"), names.map((name) =>
    h("a", {
      href: address(name, name === "runs" ? {} : { run: run ?? lab.state.default_run, prompt: name === "confirm" ? lab.params.prompt : null }),
      "aria-current": name === lab.view ? "page" : null,
    }, TITLES[name])));
}

const SERVER = {
  ok: "server ready", gone: "server gone", busy: "server busy", replay: "replay only", unknown: "no request yet",
};

export function showServer(found) {
  const element = byId("server");
  element.hidden = !found;
  if (!found) return;
  element.className = `state ${found.state}`;
  element.textContent = SERVER[found.state] ?? found.state;
  element.title = [found.model, found.url, found.problem].filter(Boolean).join("\n");
}

// Move the focus to what was chosen, and keep it in sight.
export function focusOn(element) {
  element?.focus({ preventScroll: true });
  element?.scrollIntoView({ block: "nearest" });
}

function onKey(event) {
  const control = event.ctrlKey || event.metaKey;
  const order = control && { s: "save", enter: "ask" }[event.key.toLowerCase()];
  if (order) {
    if (shown?.key?.(order)) event.preventDefault();
    return;
  }
  if (event.key === "Escape" && isTyping(event.target)) event.target.blur();
  if (control || event.altKey || isTyping(event.target) || byId("help").open) return;
  if (event.key === "?") openHelp();
  else if (event.key === "/") document.querySelector("[data-filter]")?.focus();
  else if (!shown?.key?.(event.key)) return;
  event.preventDefault();
}

function openHelp() {
  fill(byId("paths"), Object.entries(lab.state.paths).map(([name, path]) => [h("dt", {}, name), h("dd", {}, h("code", {}, path))]));
  byId("help").showModal();
}

// Hear of each run that changes, as long as the page is open.
async function follow() {
  let lost = false;
  for (;;) {
    try {
      for await (const run of stream("/api/events", { method: "GET" })) {
        if (lost) say("The lab is back.");
        lost = false;
        if (run) shown?.event?.(run);
      }
    } catch { /* The next lines say so. */ }
    lost = true;
    say("The lab does not answer; trying again.");
    await new Promise((resolve) => { setTimeout(resolve, RETRY); });
  }
}

async function start() {
  takeToken();
  lab.state = await get("/api/state");
  follow();
  addEventListener("hashchange", route);
  addEventListener("keydown", onKey);
  byId("help-button").addEventListener("click", openHelp);
  // The address holds the view, so that a link within the page must not change it.
  byId("skip").addEventListener("click", (event) => { event.preventDefault(); byId("main").focus(); });
  byId("command").addEventListener("click", async () => {
    try {
      copy((await get("/api/command", { view: lab.view, ...lab.params, ...(shown?.command?.() ?? {}) })).command);
    } catch (error) { say(error.message); }
  });
  await route();
}

start().catch((error) => {
  fill(byId("main"), alertBox(error.message));
  // Of the printed address, only the fragment is another one.
  addEventListener("hashchange", () => location.reload(), { once: true });
});
