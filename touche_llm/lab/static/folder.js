// A run that somebody else wrote: its settings that are not used, and the choice to use them.
import { alertBox, count, fill, get, h, post } from "/static/dom.js";

const rowsOf = (settings) => settings.map(({ name, value }) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "text" }, h("code", {}, value))));
const table = (settings) => h("div", { class: "scroll" }, h("table", { class: "data" }, h("tbody", {}, rowsOf(settings))));

// Show the settings of a run's folder in an element; `changed` is called after a choice.
export async function showFolder(element, run, changed) {
  const found = run == null ? null : await get("/api/folder", { run }).catch(() => null);
  const isOwn = !found?.reason;
  element.hidden = isOwn;
  if (isOwn) return fill(element);

  async function use(isAll) {
    try {
      await post("/api/folder", { run, hash: found.hash, are_all_used: isAll });
      changed();
    } catch (error) { element.append(alertBox(error.message)); }
  }
  const { inputs, others, used } = found;
  return fill(element,
    h("p", {}, h("b", {}, "This run was not written here. "),
      "Its texts and figures are shown; its settings start nothing, send nothing and read no other file, unless you have them used."),
    used.length > 0 && h("p", { class: "lead" }, `Used until the lab ends: ${used.join(", ")}.`),
    inputs.length > 0 && [
      h("p", {}, "Topics and corpus are not read, so that titles and texts are missing:"), table(inputs),
      h("p", {}, h("button", { type: "button", click: () => use(false) }, "Read topics and corpus"))],
    others.length > 0 && h("details", {},
      h("summary", {}, `${count(others.length)} ${others.length === 1 ? "setting is" : "settings are"} not used`),
      table(others),
      h("p", { class: "warn" }, "With these settings, the programs named here are started, requests and the keys of your environment go to these addresses, and these files are read and written. Use them only if you trust who wrote them."),
      h("p", {}, h("button", { type: "button", click: () => use(true) }, "Use all settings of this folder"))));
}
