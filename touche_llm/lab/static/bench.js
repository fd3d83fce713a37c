// The bench: a template at the left; its rendering, answers and measures at the right.
import {
  alertBox, byId, count, debounce, fieldRows, fill, get, h, interval, number, openPage, post, put, RequestError, say, seconds, signed, stream,
} from "/static/dom.js";
import { makeEditor } from "/static/editor.js";
import { go, lab, showServer } from "/static/lab.js";

const MAX_PINNED = 8, PAUSE = 400, RETRY = 4000;
const SHARED = { all: "shared by all requests", topic: "shared by the topic", nobody: "this document" };
// Tabs of the lab tell each other which template they edit.
const TABS = new BroadcastChannel("touche-llm lab");

export async function open(main, params) {
  const run = params.run;
  const about = await get("/api/bench", { run });
  const name = params.prompt ?? about.prompts[0].name;
  let template = await get("/api/template", { run, name });
  // Answers of the text before, by document; the drawn ones; and those known for the present text.
  let before = {}, answers = new Map(), previous = {}, findings = [], diff = "", tokens = null;
  let asking = null, sampling = null, retrying = 0, source = "", server = about.server, seenDisk = template.hash;
  const body = (more) => ({ run, name, text: editor.text, ...more });

  const editor = makeEditor(() => { drawState(); later(); });
  // In the header, so that it stays in sight.
  const state = h("span", { class: "state", id: "draft", role: "status" });
  byId("server").before(state);
  // Errors of a request, which the next one clears; and what stays true.
  const notice = h("div"), remark = h("div");
  const list = h("ul", { id: "findings", class: "findings" });
  const size = h("p", { class: "lead" });
  const difference = h("pre", { class: "diff" });
  const live = h("input", { type: "checkbox", checked: sessionStorage.live ? sessionStorage.live === "1" : about.local });
  live.addEventListener("change", () => { sessionStorage.live = live.checked ? "1" : "0"; if (live.checked) ask(); });
  const askButton = h("button", { type: "button", click: () => ask(true) }, "Request answers");
  const saveButton = h("button", { type: "button", class: "primary", click: () => save() }, "Save as next version");
  const discardButton = h("button", { type: "button", click: discard }, "Discard draft");

  const choose = (label, values, chosen, change) => h("label", {}, label,
    h("select", { change: (event) => change(event.target.value) }, values.map(([value, text]) => h("option", { value, selected: value === chosen }, text))));
  const topicsOf = (half) => about.topics.filter((topic) => topic.half === half).map((topic) => h("option", { value: topic.id }, `${topic.id} ${topic.title}`));
  const topicSelect = h("select", { change: () => setTopic(topicSelect.value) },
    h("optgroup", { label: "Choosing half" }, topicsOf("choice")), h("optgroup", { label: "Held out" }, topicsOf("hold-out")));

  const panel = h("div", { class: "answers" });
  const progress = h("p", { class: "lead", role: "status" });
  const pins = h("div", { class: "pins" });
  const finder = h("input", { type: "search", "data-filter": "", "aria-label": "Search the candidates of the topic", placeholder: "id, title or text" });
  const candidates = h("ul", { class: "candidates" });
  const picker = h("details", { class: "picker" }, h("summary", {}, "Choose documents"), finder, candidates);
  const rendered = h("div", { class: "rendered" });
  const renderedBox = h("details", { class: "box" }, h("summary", {}, h("h2", {}, "Rendered")), rendered);
  const measures = h("div", { class: "measures" });

  const topic = () => lab.params.topic ?? about.topics.find((each) => each.half === "choice")?.id ?? about.topics[0]?.id;
  const pinned = () => (lab.params.documents ?? "").split("\n").filter(Boolean).slice(0, MAX_PINNED);
  const isDraft = () => editor.text !== template.text;
  const isInvalid = () => findings.some((finding) => finding.level === "error");
  const set = (values) => go("bench", { ...lab.params, ...values }, { replace: true });

  function drawState() {
    const words = asking || sampling ? "asking" : isInvalid() ? "invalid" : isDraft() ? "draft" : template.confirmed ? "confirmed" : "clean";
    state.className = `state ${words}`;
    const origin = !asking && source ? `, ${source}` : "";
    state.textContent = ({ asking: "requesting answers …", invalid: "invalid template", draft: "draft", confirmed: "saved, confirmed", clean: "saved" })[words] + origin;
    saveButton.disabled = !isDraft() || isInvalid();
    discardButton.disabled = !isDraft();
    askButton.disabled = isInvalid() || !pinned().length;
    showServer(server);
  }

  // Check, render and answers start together after a pause: each says by itself that a template is invalid.
  const later = debounce(async () => {
    const text = editor.text;
    put("/api/draft", { run, name, text: isDraft() ? text : null, base: template.hash }).catch(fail);
    if (live.checked) ask();
    if (renderedBox.open) render();
    await check();
    countLater();
  }, PAUSE);
  const countLater = debounce(() => !sampling && estimate(), 1500);

  async function check() {
    const text = editor.text;
    try {
      const found = await post("/api/check", body());
      if (text !== editor.text) return;
      ({ findings, tokens, diff } = found);
      if (found.disk !== template.hash && found.disk !== seenDisk) await takeDisk(found.disk);
    } catch (error) { return fail(error); }
    editor.mark(findings);
    fill(list, findings.map((finding) => h("li", { class: finding.level },
      finding.line ? h("button", { type: "button", class: "link", click: () => editor.goTo(finding.line) }, `line ${finding.line}`) : "", ` ${finding.message}`)));
    size.textContent = tokens
      ? `about ${count(tokens)} tokens shared by all requests, then the topic and the document` : "";
    fill(difference, diff.split("\n").map((line) => h("span", { class: { "+": "plus", "-": "minus", "@": "at" }[line[0]] ?? "" }, `${line}\n`)));
    difference.parentElement.hidden = !diff;
    drawState();
  }

  async function render() {
    const [document] = pinned();
    if (!document) return fill(rendered, h("p", { class: "lead" }, "Pin a document to render the prompt about it."));
    try {
      const { messages, problem } = await post("/api/render", body({ topic: topic(), document }));
      if (problem) return fill(rendered, h("p", { class: "warn" }, problem));
      fill(rendered, messages.map((message) => [h("h3", {}, message.role), h("pre", {}, message.parts.map((part) =>
        h("span", { class: `share-${part.shared}`, title: `${SHARED[part.shared]}, ${count(part.tokens)} tokens` }, part.text)))]),
      h("p", { class: "legend" }, Object.entries(SHARED).map(([kind, text]) => h("span", { class: `share-${kind}` }, text)).flatMap((each) => [each, " "])));
    } catch (error) { fill(rendered, alertBox(error.message)); }
  }

  async function ask(isWanted = false) {
    asking?.abort();
    asking = null;
    clearTimeout(retrying);
    const documents = pinned(), text = editor.text;
    if (!documents.length) return drawState();
    const mine = asking = new AbortController();
    drawState();
    const found = new Map();
    try {
      for await (const line of stream("/api/answers", { body: body({ topic: topic(), documents }), signal: mine.signal })) {
        if (line.error) throw new RequestError(line.state, line);
        if (line.done) {
          source = line.requests ? `${count(line.requests)} answers in ${seconds(line.seconds)}` : "answers from the cache";
          if (line.state === "replay" || line.requests) server = { ...server, state: line.state, problem: "" };
        } else {
          found.set(line.document, line);
          draw(found);
        }
        progress.textContent = `${found.size} of ${documents.length} answers`;
      }
      if (answers.text !== text) { previous = before; answers.text = text; }
      before = Object.fromEntries([...found].map(([id, line]) => [id, line.fields]));
      fill(notice);
    } catch (error) {
      if (error.name === "AbortError") return;
      source = "";
      if (error.body?.state === "invalid") { if (isWanted) fail(error); } else {
        server = { ...server, state: error.body?.state ?? "gone", problem: error.message };
        fail(error);
        if (live.checked) retrying = setTimeout(() => asking || ask(), RETRY);
      }
    }
    if (asking === mine) asking = null;
    progress.textContent = source;
    drawState();
  }

  function fail(error) {
    fill(notice, alertBox(error.message, h("button", { type: "button", click: () => { fill(notice); check(); ask(true); } }, "Try again")));
  }

  // Until a new answer comes, a document keeps its last one, greyed.
  function draw(found) {
    for (const [id, line] of found) answers.set(id, line);
    const old = answers.text === editor.text ? previous : before;
    fill(panel, pinned().map((id) => {
      const line = answers.get(id);
      if (!line) return h("article", { class: "answer stale" }, h("h3", { class: "id" }, id), h("p", { class: "lead" }, "no answer yet"));
      const isNew = found.has(id);
      return h("article", { class: isNew ? "answer" : "answer stale", "aria-label": id },
        h("h3", {}, h("span", { class: "id" }, id), line.cached ? h("small", {}, " from the cache") : ""),
        line.failure ? h("p", { class: "warn" }, `No usable answer (${line.failure.kind}): ${line.failure.reason}`) : fieldRows(about.fields, line.fields, { ...line, before: old[id] }),
        line.hidden && h("p", { class: "lead" }, "Assessors’ labels of held-out topics are hidden; Documents can show them."),
        line.truncated && h("p", { class: "warn" }, `Truncated: ${line.truncated}.`),
        line.thought && h("details", {}, h("summary", {}, "reasoning"), h("pre", {}, line.thought)),
        line.answer && h("p", { class: "raw" }, h("code", {}, line.answer), ` ${count(line.prompt_tokens)} + ${count(line.completion_tokens)} tokens`));
    }));
    if (!pinned().length) fill(panel, h("p", { class: "lead" }, `Choose up to ${MAX_PINNED} documents of the topic; their answers appear here while you type.`));
  }

  async function loadCandidates() {
    try {
      const { documents } = await get("/api/candidates", { run, topic: topic(), query: finder.value || null });
      if (!pinned().length && !finder.value && lab.params.documents === undefined) {
        const judged = documents.filter((each) => each.judged);
        setPinned([...judged, ...documents.filter((each) => !each.judged)].slice(0, 5).map((each) => each.id));
      }
      fill(candidates, documents.map((each) => {
        const box = h("input", { type: "checkbox", checked: pinned().includes(each.id) });
        box.addEventListener("change", () => {
          setPinned(box.checked ? [...pinned(), each.id] : pinned().filter((id) => id !== each.id));
          if (box.checked && !pinned().includes(each.id)) { box.checked = false; say(`At most ${MAX_PINNED} documents.`); }
        });
        return h("li", {}, h("label", {}, box, h("span", { class: "id" }, each.id), each.judged ? h("small", {}, " judged") : "", ` ${each.title ? `${each.title}: ` : ""}${each.text}`));
      }));
    } catch (error) { fill(candidates, h("li", {}, error.message)); }
  }

  function setPinned(ids) {
    set({ documents: ids.slice(0, MAX_PINNED).join("\n") });
    drawPins();
    draw(new Map());
    drawState();
    if (live.checked) ask();
    if (renderedBox.open) render();
  }

  function drawPins() {
    fill(pins, pinned().map((id) => h("button", { type: "button", class: "pin", title: "Remove", "aria-label": `Remove ${id}`, click: () => { setPinned(pinned().filter((other) => other !== id)); loadCandidates(); } }, id, " ×")));
  }

  function setTopic(id) {
    go("bench", { ...lab.params, topic: id, documents: null });
  }

  async function applyTopic() {
    topicSelect.value = topic();
    answers = new Map();
    before = {};
    previous = {};
    drawPins();
    draw(answers);
    await loadCandidates();
    if (renderedBox.open) render();
    if (live.checked && pinned().length && !asking) ask();
  }

  async function save(file = null) {
    try {
      const saved = await post("/api/save", body({ hash: template.hash, file }));
      if (saved.conflict) return offerName(saved);
      template = saved;
      editor.text = template.text;
      fill(notice);
      fill(remark);
      say(`Saved ${template.path} as version ${template.version}.`);
      if (template.name !== name) return go("bench", { ...lab.params, prompt: template.name });
      check();
      estimate();
    } catch (error) { return fail(error); }
    drawState();
  }

  function offerName({ conflict, disk, hash }) {
    seenDisk = hash;
    const path = h("input", { "aria-label": "Name of the new template", value: template.path.split("/").at(-1).replace(/[.]jinja$/, "-2.jinja") });
    fill(remark, alertBox(conflict,
      path, h("button", { type: "button", click: () => save(path.value) }, "Save mine under this name"),
      h("button", { type: "button", click: discard }, "Discard mine"),
      h("details", {}, h("summary", {}, "The version on disk"), h("pre", {}, disk))));
  }

  async function discard() {
    await put("/api/draft", { run, name, text: null, base: template.hash }).catch(fail);
    template = await get("/api/template", { run, name });
    editor.text = template.text;
    fill(notice);
    fill(remark);
    later();
    drawState();
  }

  // Someone else changed the template: a page without a draft follows, one with a draft says so.
  async function takeDisk(hash) {
    seenDisk = hash;
    if (!isDraft()) { say("The template changed on disk and was read again."); return discard(); }
    fill(remark, alertBox("The template changed on disk; your draft is kept, and saving asks for another name."));
  }

  async function estimate() {
    if (about.problem) return fill(measures, h("p", { class: "lead" }, about.problem));
    const text = editor.text;
    const found = await post("/api/estimate", body()).catch((error) => ({ problem: error.message }));
    if (text !== editor.text || sampling || measures.querySelector("table")) return;
    if (found.problem) return fill(measures, h("p", { class: "lead" }, found.problem));
    fill(measures,
      h("p", {}, h("button", { type: "button", click: judgeSample }, `Judge the sample: ${count(found.requests)} requests, about ${count(found.tokens)} tokens`)),
      h("p", { class: "lead" }, `Compares ${found.compared.join(" with ")} on documents that people judged, of the choosing half; ${count(found.known)} answers are in the cache.`));
  }

  async function judgeSample() {
    const mine = sampling = new AbortController();
    const meter = h("progress", { max: 1, value: 0, "aria-label": "Progress of the sample" }), words = h("p", { class: "lead", role: "status" }, "Starting …");
    fill(measures, h("p", {}, meter, " ", h("button", { type: "button", click: () => mine.abort() }, "Cancel")), words);
    drawState();
    try {
      for await (const line of stream("/api/sample", { body: body(), signal: mine.signal })) {
        if (line.error) throw new RequestError(line.state, line);
        if (line.total) {
          meter.max = line.total;
          meter.value = line.done;
          words.textContent = `${line.stage}: ${count(line.done)} of ${count(line.total)}; ${count(line.requests)} requests, ${count(line.cached)} from the cache, ${count(line.failed)} failed`;
        } else fill(measures, measureTable(line), h("p", {}, h("button", { type: "button", click: () => { fill(measures); estimate(); } }, "Judge again")));
      }
    } catch (error) {
      sampling = null;
      fill(measures);
      await estimate();
      measures.append(error.name === "AbortError" ? h("p", { class: "lead" }, "Cancelled; the answers that came are in the cache.") : alertBox(error.message));
    }
    sampling = null;
    drawState();
  }

  function measureTable(line) {
    const failures = Object.entries(line.failures).map(([kind, n]) => `${count(n)} ${kind}`).join(", ");
    return [
      h("div", { class: "scroll" }, h("table", { class: "data" },
        h("thead", {}, h("tr", {}, ["measure", ...line.names, "difference", "95 % interval", "p", "topics"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, line.measures.map((row) => h("tr", {},
          h("th", { scope: "row" }, row.measure), h("td", {}, number(row.baseline, 3)), h("td", {}, h("b", {}, number(row.value, 3))),
          h("td", { class: `way ${row.difference > 0 ? "up" : row.difference < 0 ? "down" : ""}` }, signed(row.difference)),
          h("td", {}, interval(row) || "–"), h("td", {}, number(row.p, 3)), h("td", {}, count(row.n))))))),
      h("p", { class: "lead" }, `${count(line.documents)} documents of ${count(line.topics)} topics; a random order has an nDCG@5 of ${number(line.chance, 3)}. `,
        h("button", { type: "button", class: "link", click: () => openPage("Documents by prompt", { path: line.page }).catch((error) => say(error.message)) }, "Documents by prompt, disagreements first")),
      failures && h("p", { class: "warn" }, `Failures: ${failures}`),
      line.notes.length > 0 && h("details", {}, h("summary", {}, `${count(line.notes.length)} notes`), h("ul", { class: "lead" }, line.notes.map((note) => h("li", {}, note)))),
    ];
  }

  fill(main,
    h("h1", { class: "hidden" }, "Bench"),
    h("div", { class: "filters bar-of-tools" },
      choose("Prompt", about.prompts.map((prompt) => [prompt.name, prompt.label]), name, (value) => go("bench", { run, prompt: value, topic: lab.params.topic })),
      h("label", {}, "Topic", topicSelect),
      h("p", { class: "buttons" }, saveButton, discardButton, askButton, h("label", { class: "check" }, live, "live"))),
    remark, notice,
    h("div", { class: "columns" },
      h("section", { "aria-label": "Template" }, h("p", { class: "kind" }, template.path, template.writable ? "" : " (comes with the program; saving makes a copy)"),
        editor.element, size, list, h("details", { hidden: true }, h("summary", {}, "Difference to the saved version"), difference)),
      h("div", {},
        h("section", { "aria-labelledby": "answers" }, h("h2", { id: "answers" }, "Answers"), pins, picker, progress, panel),
        h("section", { "aria-labelledby": "measures" }, h("h2", { id: "measures" }, "Measures"), measures),
        h("section", {}, renderedBox))));
  renderedBox.addEventListener("toggle", () => renderedBox.open && render());
  finder.addEventListener("input", debounce(loadCandidates, 250));
  editor.text = template.draft?.text ?? template.text;
  if (template.draft && template.draft.base !== template.hash) fill(remark, alertBox("The template changed on disk after this draft was begun; saving asks for another name.", h("button", { type: "button", click: discard }, "Discard draft")));
  drawState();
  check();
  estimate();
  addEventListener("focus", check);
  await applyTopic();

  TABS.onmessage = ({ data }) => {
    if (data.path !== template.path) return;
    if (data.asks) TABS.postMessage({ path: template.path });
    else fill(remark, alertBox("This template is open in another tab too; whichever saves second is asked for another name."));
  };
  TABS.postMessage({ path: template.path, asks: true });

  return {
    close() { asking?.abort(); sampling?.abort(); clearTimeout(retrying); TABS.onmessage = null; removeEventListener("focus", check); state.remove(); },
    async update(now) {
      if ((now.prompt ?? about.prompts[0].name) !== name) { this.close(); Object.assign(this, await open(main, now)); } else await applyTopic();
    },
    key(key) {
      if (key === "save") saveButton.disabled || save();
      else if (key === "ask") askButton.disabled || ask(true);
      else if (key === "[" || key === "]") {
        const ids = about.topics.map((each) => each.id), place = ids.indexOf(topic()) + (key === "]" ? 1 : -1);
        if (ids[place]) setTopic(ids[place]);
      } else return false;
      return true;
    },
    command: () => ({ prompt: name, topic: topic(), documents: pinned().join("\n") }),
  };
}
