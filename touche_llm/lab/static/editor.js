// A textarea over a copy of its text, which carries line numbers, colours of the template language, and marks.
import { fill, h } from "/static/dom.js";

const SYNTAX = /(\{#[\s\S]*?#\}|\{%[\s\S]*?%\}|\{\{[\s\S]*?\}\})/;
const KINDS = { "{#": "comment", "{%": "tag", "{{": "value" };

export function makeEditor(onInput) {
  const area = h("textarea", {
    class: "text", spellcheck: "false", autocapitalize: "off", wrap: "soft", "aria-label": "Template", "aria-describedby": "findings",
  });
  const copy = h("div", { class: "copy", "aria-hidden": "true" });
  let marks = new Map();

  function draw() {
    // A line may begin within a tag that an earlier line opened.
    const lines = [[]];
    for (const piece of area.value.split(SYNTAX)) {
      const kind = KINDS[piece.slice(0, 2)];
      piece.split("\n").forEach((text, place) => {
        if (place) lines.push([]);
        if (text) lines.at(-1).push(kind ? h("span", { class: `j-${kind}` }, text) : text);
      });
    }
    fill(copy, lines.map((parts, place) => {
      const mark = marks.get(place + 1);
      return h("div", { class: mark ? `line ${mark.level}` : "line", title: mark?.message }, parts, "\u200b");
    }));
  }

  area.addEventListener("input", () => { draw(); onInput(area.value); });
  return {
    element: h("div", { class: "editor" }, copy, area),
    get text() { return area.value; },
    set text(text) {
      if (text === area.value) return;
      area.value = text;
      draw();
    },
    mark(findings) {
      marks = new Map();
      for (const finding of findings) {
        if (finding.line && marks.get(finding.line)?.level !== "error") marks.set(finding.line, finding);
      }
      draw();
    },
    goTo(line) {
      const start = area.value.split("\n").slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
      area.focus();
      area.setSelectionRange(start, start);
      copy.children[line - 1]?.scrollIntoView({ block: "center" });
    },
  };
}
