// Runs: a table that is sorted, filtered and live; two or more are compared.
import { age, count, fill, get, h, interval, number, openPage, post, say, seconds, debounce } from "/static/dom.js";
import { address, focusOn, go, lab } from "/static/lab.js";

const FIXED = [
  { name: "run", text: true, value: (row) => row.run },
  { name: "model", text: true, value: (row) => row.model },
  { name: "prompt", text: true, value: (row) => row.prompt },
  { name: "topics", value: (row) => row.topics },
];
const COSTS = [
  { name: "requests", value: (row) => row.requests, cell: (row) => [count(row.requests), row.cached ? h("small", {}, ` + ${count(row.cached)} cached`) : ""] },
  { name: "tokens", value: (row) => row.prompt_tokens + row.completion_tokens, cell: (row) => count(row.prompt_tokens + row.completion_tokens) },
  { name: "failed", value: (row) => row.failures, cell: (row) => (row.failures ? count(row.failures) : "") },
  { name: "time", value: (row) => row.seconds, cell: (row) => (row.seconds ? seconds(row.seconds) : "") },
  { name: "age", value: (row) => -Date.parse(row.changed), cell: (row) => h("time", { datetime: row.changed }, age(row.changed)) },
];

export async function open(main, params) {
  const half = params.all ? "all" : "choice";
  let { rows } = await get("/api/runs", { all: params.all });
  let isOpen = true;
  const selected = new Set((params.select ?? "").split("\n").filter(Boolean));
  let current = 0;

  const measure = (name) => ({
    name, measured: true, value: (row) => row.measures[name]?.value,
    cell: (row) => {
      const found = row.measures[name];
      return found?.value == null ? "–" : [h("b", {}, number(found.value, 3)), h("small", {}, interval(found))];
    },
  });
  const columns = () => [...FIXED, ...new Set(rows.flatMap((row) => Object.keys(row.measures)))].map((each) => (typeof each === "string" ? measure(each) : each)).concat(COSTS);

  const search = h("input", { type: "search", id: "run-filter", "data-filter": "", value: params.filter ?? "", placeholder: "name, model, prompt, task, state" });
  search.addEventListener("input", debounce(() => change({ filter: search.value }), 150));
  const all = h("input", { type: "checkbox", checked: half === "all", change: () => go("runs", { ...lab.params, all: all.checked ? 1 : null }) });
  const compare = h("button", { type: "button", click: () => openComparison() });
  const found = h("p", { class: "found", role: "status" });
  const table = h("table", { class: "data grid" });

  function change(values) {
    go("runs", { ...lab.params, ...values }, { replace: true });
    draw();
  }

  function sorted() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (row) => words.every((word) => `${row.run} ${row.model} ${row.prompt} ${row.task} ${row.state}`.toLowerCase().includes(word));
    const name = lab.params.sort ?? "age";
    const column = columns().find((each) => each.name === name.replace(/^-/, "")) ?? COSTS.at(-1);
    const sign = name.startsWith("-") ? -1 : 1;
    const order = (a, b) => {
      const [x, y] = [column.value(a), column.value(b)];
      // Runs without a value come last in either direction.
      if (x == null || y == null) return (x == null) - (y == null);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
    };
    return rows.filter(fits).sort(order);
  }

  function head(column) {
    const [name, isDown] = [(lab.params.sort ?? "age").replace(/^-/, ""), (lab.params.sort ?? "age").startsWith("-")];
    const isSorted = name === column.name;
    const next = isSorted && isDown ? column.name : isSorted || !column.text ? `-${column.name}` : column.name;
    return h("th", { scope: "col", class: column.text ? "text" : null, "aria-sort": isSorted ? (isDown ? "descending" : "ascending") : "none" },
      h("button", { type: "button", class: "sort", click: () => change({ sort: isSorted && !isDown ? `-${column.name}` : next }) }, column.name));
  }

  function line(row) {
    const check = h("input", { type: "checkbox", "aria-label": `Select ${row.run}`, checked: selected.has(row.run) });
    check.addEventListener("change", () => {
      selected[check.checked ? "add" : "delete"](row.run);
      change({ select: [...selected].join("\n") });
    });
    const state = row.state === "complete" ? "" : h("span", { class: `state ${row.state}`, title: row.problem }, row.state);
    const links = row.state === "broken" ? h("small", {}, row.problem) : h("span", { class: "links" },
      h("a", { href: address("documents", { run: row.run }) }, "documents"),
      h("a", { href: address("bench", { run: row.run }) }, "bench"));
    const cells = columns().map((column) => {
      if (column.name === "run") return h("th", { scope: "row", class: "text" }, h("b", {}, row.run), " ", state, h("br"), links, row.note && h("small", {}, row.note));
      return h("td", { class: column.text ? "text" : null, "data-label": column.name }, column.cell?.(row) ?? String(column.value(row) ?? "–"));
    });
    return h("tr", { tabindex: -1, "data-run": row.run }, h("td", {}, check), cells);
  }

  function draw() {
    const view = sorted();
    const focused = table.querySelector(":focus")?.closest("th")?.cellIndex;
    fill(table, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "hidden" }, "select")), columns().map(head))), h("tbody", {}, view.map(line)));
    if (focused != null) table.tHead.rows[0].cells[focused].querySelector("button")?.focus();
    found.textContent = `${count(view.length)} of ${count(rows.length)} runs${rows.some((row) => row.pending) ? ", measuring …" : ""}`;
    const { length } = chosen();
    compare.textContent = length < 2 ? "Select two runs to compare" : `Compare ${length} runs`;
    compare.disabled = length < 2;
  }

  const chosen = () => rows.filter((row) => selected.has(row.run)).map((row) => row.run);

  async function openComparison() {
    const request = { path: "/api/compare", method: "POST", body: { run: chosen(), all: half === "all" } };
    try { await openPage("Comparison", request); } catch (error) { say(error.message); }
  }

  fill(main,
    h("h1", {}, "Runs"),
    h("p", { class: "lead" }, half === "all"
      ? "Measures over all judged topics. Opening this table was logged as an access to the held-out ones."
      : "Measures over the topics of the choosing half, so that the held-out topics stay unseen."),
    h("div", { class: "filters bar-of-tools" },
      h("label", {}, "Filter", search), h("label", { class: "check" }, all, "all topics (logged as an access)"), compare, found),
    rows.length ? h("div", { class: "scroll" }, table) : h("p", {}, "No runs in this folder; `touche-llm run --out FOLDER` makes one."));
  draw();
  const ages = setInterval(() => table.querySelectorAll("time").forEach((time) => { time.textContent = age(time.dateTime); }), 30_000);

  // Measures are computed one run after the other.
  async function read(run) {
    const row = await post("/api/run", { run, all: half === "all" }).catch(() => null);
    if (!row || !isOpen) return;
    rows = [row, ...rows.filter((other) => other.run !== row.run)];
    draw();
    table.querySelector(`[data-run="${CSS.escape(row.run)}"]`)?.classList.add("fresh");
  }
  (async () => { for (const row of rows) if (row.pending && isOpen) await read(row.run); })();

  return {
    close: () => { isOpen = false; clearInterval(ages); },
    update(now) {
      if ((now.all === "1") === (half === "all")) return draw();
      this.close();
      return open(main, now).then((opened) => Object.assign(this, opened));
    },
    event: read,
    key(key) {
      if (key !== "j" && key !== "k") return false;
      const lines = [...table.tBodies[0]?.rows ?? []];
      current = Math.max(0, lines.indexOf(document.activeElement?.closest("tr")) + (key === "j" ? 1 : -1));
      focusOn(lines[Math.min(current, lines.length - 1)]);
      return true;
    },
    command: () => ({ select: [...selected].join("\n") }),
  };
}
