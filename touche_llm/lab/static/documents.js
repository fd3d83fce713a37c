// Documents: topics, the ranking of one, and one document with what the model and the assessors said of it.
import {
  alertBox, count, debounce, download, fieldRows, fill, get, h, number, post, put, say,
} from "/static/dom.js";
import { address, focusOn, go, lab } from "/static/lab.js";

// Rows that are drawn at once; more follow as the last one comes in sight.
const CHUNK = 120, LOW_CONFIDENCE = 0.5;

// A letter for each stance: the first of its own that no other label and no other key has.
export function assignKeys(labels) {
  const taken = new Set("jka");
  return new Map(labels.map((label) => {
    const key = [...label.toLowerCase()].find((letter) => /[a-z]/.test(letter) && !taken.has(letter)) ?? "";
    taken.add(key);
    return [key, label];
  }));
}

export async function open(main, params) {
  const run = params.run;
  const about = await get("/api/topics", { run });
  const stanceKeys = assignKeys(about.stances);
  const aspects = about.fields.filter((field) => field.kind === "grade");
  let focused = aspects[0]?.name, rows = [], visible = [], drawn = 0, opened = null, loadedTopic = null;

  const topics = h("ul", { class: "topics" });
  const title = h("h2");
  const list = h("ol", { class: "ranking" });
  const end = h("li", { class: "end", "aria-hidden": "true" });
  const found = h("p", { class: "found", role: "status" });
  const detail = h("section", { class: "document", "aria-label": "Document" });
  const search = h("input", { type: "search", "data-filter": "", value: params.filter ?? "", placeholder: "id or text", "aria-label": "Filter by id or text" });
  const pick = (name, label, values) => {
    const element = h("select", { change: () => change({ [name]: element.value, document: null }) },
      [["", "all"], ...values].map(([value, text]) => h("option", { value, selected: value === (params[name] ?? "") }, text ?? value)));
    return [name, h("label", {}, label, element), element];
  };
  const picks = [
    pick("differs", "Unlike the assessors", [["any", "in any field"], ...about.fields.map((field) => [field.name])]),
    about.stances.length ? pick("stance", "Stance", about.stances.map((label) => [label])) : null,
    pick("with", "With", [["failure", "a failure"], ["low", "low confidence"], ["truncated", "truncation"], ["own", "labels of mine"], ["unlabelled", "no label of mine"]]),
  ].filter(Boolean);

  search.addEventListener("input", debounce(() => change({ filter: search.value }), 150));
  const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && drawMore(), { rootMargin: "600px" });
  observer.observe(end);

  function change(values) {
    go("documents", { ...lab.params, ...values }, { replace: true });
    filter();
  }

  const FILTERS = {
    filter: (row, text) => text.toLowerCase().split(/\s+/).every((word) => `${row.document} ${row.title} ${row.snippet}`.toLowerCase().includes(word)),
    differs: (row, field) => (field === "any" ? row.differs.length > 0 : row.differs.includes(field)),
    stance: (row, label) => row.stance === label,
    with: (row, what) => ({
      failure: row.failure, low: row.confidence != null && row.confidence < LOW_CONFIDENCE, truncated: row.truncated,
      own: Object.keys(row.own).length, unlabelled: !Object.keys(row.own).length,
    })[what],
  };

  function filter() {
    visible = rows.filter((row) => Object.entries(FILTERS).every(([name, fits]) => !lab.params[name] || fits(row, lab.params[name])));
    drawn = 0;
    fill(list);
    drawMore();
    countFound();
  }

  function countFound() {
    const labelled = rows.filter((row) => Object.keys(row.own).length).length;
    found.textContent = `${count(visible.length)} of ${count(rows.length)} documents${labelled ? `, ${count(labelled)} with labels of yours` : ""}`;
  }

  function drawMore() {
    const next = visible.slice(drawn, drawn + CHUNK);
    end.remove();
    list.append(...next.map(line));
    drawn += next.length;
    if (drawn < visible.length) list.append(end);
  }

  const stanceClass = (label) => `chip c${Math.max(about.stances.indexOf(label), 0) % 8}`;

  function line(row) {
    const way = row.first == null ? "" : h("span", { class: `way ${row.rank < row.first ? "up" : row.rank > row.first ? "down" : ""}`, title: "rank in the first stage" }, String(row.first));
    const gold = row.assessors && Object.keys(row.assessors).length
      ? h("span", { class: `people${row.differs.length ? " miss" : ""}` }, `assessors ${Object.values(row.assessors).join(" ")}`) : "";
    const own = Object.keys(row.own).length ? h("span", { class: "people own" }, `yours ${Object.values(row.own).join(" ")}`) : "";
    return h("li", {}, h("a", {
      href: address("documents", { ...lab.params, topic: loadedTopic, document: row.document }),
      "data-document": row.document, "aria-current": row.document === lab.params.document ? "true" : null,
    }, h("span", { class: "rank" }, String(row.rank)), way,
    h("span", { class: "grades" }, Object.entries(row.grades).map(([name, value]) => h("span", { title: name }, number(value), " "))),
    row.stance && h("span", { class: stanceClass(row.stance), title: row.p == null ? "" : `probability ${number(row.p)}` }, row.stance),
    row.failure && h("span", { class: "warn" }, row.failure), gold, own,
    h("span", { class: "start" }, h("span", { class: "id" }, row.document), ` ${row.title ? `${row.title}: ` : ""}${row.snippet}`)));
  }

  function drawTopics() {
    fill(topics, about.topics.map((topic) => h("li", {}, h("a", {
      href: address("documents", { ...lab.params, topic: topic.id, document: null }), "aria-current": topic.id === loadedTopic ? "true" : null,
    }, h("span", { class: "id" }, topic.id), ` ${topic.title} `, h("small", {}, `${count(topic.documents)}${topic.failures ? `, ${count(topic.failures)} failed` : ""}${topic.half === "hold-out" ? ", held out" : ""}`)))));
    topics.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
  }

  async function load() {
    const id = lab.params.topic ?? about.topics[0]?.id;
    if (id === undefined) return fill(title, "This run has no ranking yet.");
    const reply = await get("/api/documents", { run, topic: id });
    if (id !== (lab.params.topic ?? about.topics[0].id)) return;
    [rows, loadedTopic] = [reply.rows, id];
    fill(title, about.topics.find((topic) => topic.id === id)?.title ?? id);
    const isTitleRead = about.topics.find((topic) => topic.id === id)?.half !== "";
    if (reply.hidden && !isTitleRead) fill(banner, alertBox("The assessors’ labels are hidden: without its title, nobody knows whether a topic is held out. Read the topics first."));
    else fill(banner, reply.hidden ? alertBox("The assessors’ labels of this held-out topic are hidden. Showing them is an access that the log counts.",
      h("button", { type: "button", click: () => reveal([id]) }, "Show those of this topic"),
      h("button", { type: "button", click: () => reveal(about.topics.filter((topic) => topic.half === "hold-out").map((topic) => topic.id)) }, "Show all held-out ones")) : "");
    drawTopics();
    filter();
  }

  async function reveal(ids) {
    await post("/api/reveal", { run, topics: ids });
    say("The access is in the log.");
    await load();
    await openDocument();
  }

  async function openDocument() {
    const id = lab.params.document;
    list.querySelector("[aria-current]")?.removeAttribute("aria-current");
    const link = list.querySelector(`[data-document="${CSS.escape(id ?? "")}"]`);
    link?.setAttribute("aria-current", "true");
    if (!id) { opened = null; return fill(detail, h("p", { class: "lead" }, "Choose a document; j and k go through the ranking.")); }
    try {
      const reply = await get("/api/document", { run, topic: loadedTopic, document: id });
      if (id === lab.params.document) { opened = reply; drawDocument(); }
    } catch (error) { fill(detail, alertBox(error.message)); }
  }

  function drawDocument() {
    const row = rows.find((each) => each.document === opened.document);
    fill(detail,
      h("h2", {}, opened.title || opened.document),
      opened.title && h("p", { class: "lead" }, h("span", { class: "id" }, opened.document)),
      opened.text != null && notes(),
      opened.comparisons.map((line) => h("p", { class: "lead" }, line)),
      opened.failures.map((failure) => h("p", { class: "warn" }, `No usable answer (${failure.kind}): ${failure.reason} `, failure.text && h("code", {}, failure.text))),
      fieldRows(about.fields, opened.fields, opened),
      h("h3", {}, "Your labels"),
      h("div", { class: "labels" }, about.fields.map(labelRow)),
      noteField(),
      h("h3", {}, "Text"),
      opened.text == null ? notes() || h("p", { class: "lead" }, "not available") : h("blockquote", {}, textParts()),
      opened.truncation && h("p", { class: "warn" }, `Truncated: ${opened.truncation}.`),
      opened.requests.map((request) => h("details", { class: "request" }, h("summary", {}, `Request and answer, ${request.prompt}`),
        request.messages.map((message) => [h("h4", {}, message.role), h("pre", {}, message.text)]),
        h("h4", {}, "answer"), h("pre", {}, request.answer || "not in the cache"), request.thought ? [h("h4", {}, "reasoning"), h("pre", {}, request.thought)] : "",
        request.key && h("p", { class: "raw" }, "key ", h("code", {}, request.key)))));
  }

  // What limits the view of the document; without a text, the reasons stand in its place.
  function notes() {
    return opened.notes.length > 0 && h("ul", { class: "warn" }, opened.notes.map((note) => h("li", {}, note)));
  }

  // The text, with what the model did not see marked.
  function textParts() {
    const { text, seen } = opened;
    if (!seen) return text;
    const parts = [];
    let end = 0;
    for (const [from, to] of [...seen, [text.length, text.length]]) {
      if (from > end) parts.push(h("span", { class: "unseen", title: "The model did not see this part" }, text.slice(end, from)));
      parts.push(text.slice(from, to));
      end = Math.max(end, to);
    }
    return parts;
  }

  function labelRow(field) {
    const values = field.kind === "label" ? field.labels : Array.from({ length: field.high - field.low + 1 }, (_, place) => field.low + place);
    const keys = new Map([...stanceKeys].map(([key, label]) => [label, key]));
    const mine = opened.own[field.name];
    return h("fieldset", { class: field.name === focused ? "focused" : null, focusin: () => focus(field), "data-field": field.name },
      h("legend", {}, field.name), values.map((value) => h("button", {
        type: "button", "aria-pressed": String(mine === value), class: mine != null && mine === value ? "chosen" : null,
        click: () => label(field.name, mine === value ? null : value),
      }, String(value), field.kind === "label" && keys.get(value) ? [" ", h("kbd", {}, keys.get(value))] : "")));
  }

  function focus(field) {
    if (field.kind !== "grade") return;
    focused = field.name;
    detail.querySelectorAll("fieldset").forEach((each) => each.classList.toggle("focused", each.dataset.field === focused));
  }

  // Store labels and note together, one request after the other: keys can be faster than they are.
  let storing = Promise.resolve();
  async function store(labels, note) {
    const of = opened, row = rows.find((each) => each.document === of.document);
    Object.assign(of, { own: labels, note });
    if (row) {
      row.own = labels;
      countFound();
      list.querySelector(`[data-document="${CSS.escape(row.document)}"]`)?.closest("li").replaceWith(line(row));
    }
    const body = { run, topic: loadedTopic, document: of.document, labels, note };
    storing = storing.then(() => put("/api/labels", body)).then(() => true, (error) => { detail.prepend(alertBox(error.message)); return false; });
    return storing;
  }

  function noteField() {
    const area = h("textarea", { class: "note", rows: 2, value: opened.note });
    area.addEventListener("change", async () => { if (await store(opened.own, area.value)) say("Note saved."); });
    return h("label", {}, "Note", area);
  }

  async function label(name, value) {
    const of = opened, labels = { ...of.own, [name]: value };
    if (value == null) delete labels[name];
    const stored = store(labels, of.note), pressed = document.activeElement?.closest("fieldset")?.dataset.field;
    drawDocument();
    if (pressed) detail.querySelector(`[data-field="${CSS.escape(pressed)}"] button[aria-pressed=true], [data-field="${CSS.escape(pressed)}"] button`)?.focus();
    if (await stored) say(value == null ? `${name}: no label` : `${name}: ${value}`);
  }

  function step(by) {
    const place = visible.findIndex((row) => row.document === lab.params.document);
    const next = visible[place < 0 ? (by > 0 ? 0 : visible.length - 1) : place + by];
    if (!next) return;
    while (drawn < visible.length && visible.indexOf(next) >= drawn) drawMore();
    go("documents", { ...lab.params, topic: loadedTopic, document: next.document }, { replace: true });
    openDocument();
    focusOn(list.querySelector(`[data-document="${CSS.escape(next.document)}"]`));
  }

  async function exportLabels(field) {
    try { await download("/api/qrels", { run, field }, `${field}.qrels`); } catch (error) { say(error.message); }
  }

  const banner = h("div");
  const exports = about.fields.map((field) => [h("button", { type: "button", class: "link", click: () => exportLabels(field.name) }, field.name), " "]);
  fill(main, h("h1", { class: "hidden" }, "Documents"), h("div", { class: "panes" },
    h("nav", { "aria-label": "Topics" }, topics, h("p", { class: "lead" }, "Export your labels as qrels: ", exports)),
    h("section", { "aria-label": "Ranking" }, title, banner, h("div", { class: "filters" }, h("label", {}, "Search", search), picks.map(([, element]) => element), found), list),
    detail));
  await load();
  await openDocument();

  return {
    close: () => observer.disconnect(),
    async update(now) {
      if ((now.topic ?? about.topics[0]?.id) !== loadedTopic) await load();
      await openDocument();
      // Where there is one column, the document is below the ranking.
      if (now.document && matchMedia("(max-width: 63.9rem)").matches) detail.scrollIntoView();
    },
    key(key) {
      if (key === "j" || key === "k") step(key === "j" ? 1 : -1);
      else if (key === "[" || key === "]") {
        const next = about.topics[about.topics.findIndex((topic) => topic.id === loadedTopic) + (key === "]" ? 1 : -1)];
        if (next) go("documents", { ...lab.params, topic: next.id, document: null });
      } else if (!opened) return false;
      else if (key === "a") {
        focus(aspects[(aspects.findIndex((field) => field.name === focused) + 1) % aspects.length]);
        say(`Digits grade ${focused}.`);
      } else if (/^[0-9]$/.test(key)) {
        const field = aspects.find((each) => each.name === focused);
        if (!field || Number(key) < field.low || Number(key) > field.high) return false;
        label(focused, Number(key));
      } else if (stanceKeys.has(key)) label(about.fields.find((field) => field.kind === "label").name, stanceKeys.get(key));
      else return false;
      return true;
    },
    command: () => ({ topic: loadedTopic }),
  };
}
