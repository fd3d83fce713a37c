// Confirm: the command that compares prompts on held-out topics, to be run on purpose, and the accesses before it.
import { copy, count, fill, get, h } from "/static/dom.js";
import { address, go, lab } from "/static/lab.js";

export async function open(main, params) {
  const { run } = params;
  const { prompts } = await get("/api/bench", { run });
  const name = params.prompt ?? prompts[0].name;
  const { command, accesses, recorded, topics } = await get("/api/confirm", { run, name });
  const choose = h("select", { change: () => go("confirm", { run, prompt: choose.value }) },
    prompts.map((prompt) => h("option", { value: prompt.name, selected: prompt.name === name }, prompt.label)));
  fill(main,
    h("h1", {}, "Confirm"),
    h("section", {},
      h("div", { class: "filters" }, h("label", {}, "Prompt", choose)),
      h("p", {}, `This command judges the ${topics === 1 ? "held-out topic" : `${count(topics)} held-out topics`} with the saved prompts and decides once. Run it in a terminal when you have chosen; each run is logged, and weakens the next.`),
      command ? h("pre", { class: "command", tabindex: 0 }, command) : h("p", { class: "warn" }, "This is the prompt of the run itself; choose one of yours to compare it with."),
      h("p", {}, command && h("button", { type: "button", class: "primary", click: () => copy(command) }, "Copy the command"), " ",
        h("a", { href: address("bench", { run, prompt: name }) }, "back to the bench"))),
    h("section", {},
      h("h2", {}, "Earlier accesses to the held-out topics"),
      h("p", { class: "lead" }, `${recorded}.`),
      accesses.length ? h("div", { class: "scroll" }, h("table", { class: "data" },
        h("thead", {}, h("tr", {}, ["time", "kind", "topics", "prompts or run", "counts"].map((title) => h("th", { scope: "col" }, title)))),
        h("tbody", {}, accesses.map((access) => h("tr", {},
          h("th", { scope: "row" }, new Date(access.time).toLocaleString()), h("td", {}, access.kind), h("td", {}, count(access.topics)),
          h("td", { class: "text" }, [access.run, ...access.prompts].filter(Boolean).join(", ")), h("td", {}, access.counted ? "yes" : "no")))))) : ""));
  return {
    async update(now) {
      if (lab.params.prompt !== name || now.prompt !== params.prompt) Object.assign(this, await open(main, now));
    },
    command: () => ({ prompt: name }),
  };
}
