// Elements, requests and numbers. Texts from outside are set as text, never as markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "value" || name === "checked" || name === "selected") element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(2).filter((child) => child != null && child !== false && child !== ""));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function fill(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child != null && child !== false && child !== ""));
  return element;
}

export function say(text) {
  byId("live").textContent = text;
}

export class RequestError extends Error {
  constructor(status, body) {
    super(body.error ?? `the lab answered ${status}`);
    this.status = status;
    this.body = body;
  }
}

const TOKEN = "touche-llm lab token";

// Take the token from the address, where it must not stay, and keep it for this tab.
export function takeToken() {
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (!token) return;
  sessionStorage.setItem(TOKEN, token);
  history.replaceState(null, "", "/");
}

const makeTokenError = () => new RequestError(401, {
  error: "This tab does not know the lab's token: open the address that `touche-llm lab` printed. Each tab is opened by it.",
});

async function send(path, { method = "GET", params = {}, body, signal } = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value != null));
  const token = sessionStorage.getItem(TOKEN);
  if (!token) throw makeTokenError();
  // Not a cookie, which the browser would send to every other port of this machine.
  const options = { method, signal, headers: { "X-Touche-Token": token } };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(query.size ? `${path}?${query}` : path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, { error: "The lab has stopped; start `touche-llm lab` again and open its new address." });
  }
  if (response.ok) return response;
  if (response.status === 401) throw makeTokenError();
  throw new RequestError(response.status, await response.json().catch(() => ({})));
}

export const get = async (path, params, signal) => (await send(path, { params, signal })).json();
export const post = async (path, body, signal) => (await send(path, { method: "POST", body, signal })).json();
export const put = async (path, body) => (await send(path, { method: "PUT", body })).json();

// Show a page about runs or prompts in a tab of its own, which has the policy of this page.
export async function openPage(title, request) {
  // Opened at once, since a browser allows that only soon after a click.
  const tab = open("", "_blank");
  if (!tab) return say("The browser refused to open a tab; allow it for this page.");
  tab.opener = null;
  tab.document.title = `${title} …`;
  try {
    const page = await (await send(request.path, request)).blob();
    tab.location.replace(URL.createObjectURL(page));
  } catch (error) {
    tab.close();
    throw error;
  }
}

export async function download(path, params, name) {
  const file = await (await send(path, { params })).blob();
  const address = URL.createObjectURL(file);
  h("a", { href: address, download: name }).click();
  URL.revokeObjectURL(address);
}

// Yield the records of a reply with one JSON value a line, as they come.
export async function* stream(path, { method = "POST", body, signal } = {}) {
  const reader = (await send(path, { method, body, signal })).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
  }
}

// Run the last of several calls, after a pause in which no other came.
export function debounce(action, milliseconds) {
  let timer = 0;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

export const isTyping = (target) => Boolean(target.closest?.("input:not([type=checkbox], [type=radio]), select, textarea"));
export const count = (value) => (value == null ? "–" : value.toLocaleString("en"));
export const number = (value, digits = 2) => (value == null ? "–" : value.toFixed(digits));
export const signed = (value, digits = 3) => (value == null ? "–" : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`);
export const percent = (value) => `${Math.round(value * 100)} %`;
export const seconds = (value) => (value >= 90 ? `${(value / 60).toFixed(1)} min` : `${value.toFixed(1)} s`);
export const show = (value) => (typeof value === "number" ? number(value) : String(value ?? "–"));
export const interval = (row, low = "low", high = "high") =>
  row[low] == null ? "" : `${number(row[low], 3)} to ${number(row[high], 3)}`;

export function age(time) {
  const minutes = Math.max(0, (Date.now() - Date.parse(time)) / 60_000);
  if (minutes < 1) return "now";
  if (minutes < 90) return `${Math.round(minutes)} min`;
  return minutes < 48 * 60 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} d`;
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    say("The browser refused to copy; select the text and copy it by hand.");
  }
}

export function alertBox(message, ...actions) {
  return h("div", { class: "alert", role: "alert" }, h("p", {}, message), actions.length ? h("p", {}, actions) : "");
}

const tint = (field, place) =>
  field.kind === "label" ? `stance${place % 8}` : `grade${Math.round((place / Math.max(field.labels.length - 1, 1)) * 4)}`;

// A bar of the probabilities of a field's labels, with the label of the assessors outlined, and its text.
export function bar(field, probabilities, gold) {
  const shares = field.labels.map((label) => [label, probabilities[label] ?? 0]);
  const text = shares.map(([label, share]) => `${label} ${percent(share)}`).join(", ");
  return h("div", { class: "bar", role: "img", "aria-label": `${field.name}: ${text}`, title: text },
    shares.map(([label, share], place) => {
      const part = h("span", { class: `${tint(field, place)}${String(gold) === label ? " gold" : ""}` }, share >= 0.12 ? label : "");
      part.style.flexGrow = share;
      return part;
    }));
}

// The fields of one answer: bar, value, change from `before`, and what the assessors say.
export function fieldRows(fields, answer, { before, assessors, differs = [], own } = {}) {
  return h("dl", { class: "fields" }, fields.filter((field) => answer[field.name]).map((field) => {
    const found = answer[field.name], old = before?.[field.name], gold = assessors?.[field.name];
    const isNumber = typeof found.value === "number";
    const changed = old !== undefined && (isNumber ? Math.abs(found.value - old.value) >= 0.005 : found.value !== old.value);
    const way = !changed ? "" : isNumber ? signed(found.value - old.value, 2) : `was ${old.value}`;
    const overruled = found.answered != null && !isNumber && found.answered !== found.value;
    return [
      h("dt", {}, field.name),
      h("dd", {},
        found.probabilities ? bar(field, found.probabilities, gold) : h("div", { class: "bar none" }, "no probabilities"),
        h("b", {}, show(found.value)),
        way && h("span", { class: `way ${isNumber ? (found.value > old.value ? "up" : "down") : "other"}` }, way),
        gold != null && h("span", { class: `people${differs.includes(field.name) ? " miss" : ""}` }, `assessors ${gold}`),
        own?.[field.name] != null && h("span", { class: "people own" }, `yours ${own[field.name]}`),
        overruled && h("span", { class: "people" }, `written ${found.answered}`),
        found.off_label >= 0.05 && h("span", { class: "warn" }, `${percent(found.off_label)} outside the labels`)),
    ];
  }));
}
