"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const form = document.querySelector(".filters");
  const topics = [...document.querySelectorAll(".topic")];
  const documents = topics.flatMap((topic) =>
    [...topic.querySelectorAll(".doc")].map((element) => ({ element, topic, text: null })));
  const search = byId("search"), topicChoice = byId("topic");
  // Each other choice is among what stands in the attribute of its name.
  const choices = [...form.querySelectorAll("select")].filter((choice) => choice !== topicChoice);

  const textOf = (each) => (each.text ??= each.element.textContent.toLowerCase());

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const narrowed = words.length > 0 || choices.some((choice) => choice.value !== "");
    const left = new Set();
    let count = 0;
    for (const each of documents) {
      const fits = (!topicChoice.value || each.topic.id === topicChoice.value)
        && choices.every((choice) =>
          !choice.value || each.element.dataset[choice.id].split(" ").includes(choice.value))
        && words.every((word) => textOf(each).includes(word));
      each.element.hidden = !fits;
      if (fits) {
        left.add(each.topic);
        count += 1;
      }
    }
    for (const topic of topics) {
      topic.hidden = !left.has(topic);
      for (const rest of topic.querySelectorAll(".rest")) rest.hidden = narrowed;
      if (left.has(topic) && (narrowed || topicChoice.value)) topic.open = true;
    }
    byId("nothing").hidden = count > 0;
    byId("found").textContent =
      `${count.toLocaleString("en")} of ${documents.length.toLocaleString("en")} documents, `
      + `${left.size} of ${topics.length} ${form.dataset.groups ?? "topics"}`;
  }

  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(apply, 120);
  });
  for (const each of [topicChoice, ...choices]) each.addEventListener("change", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  byId("open").addEventListener("click", () => {
    for (const topic of topics) topic.open = !topic.hidden;
  });
  byId("close").addEventListener("click", () => {
    for (const each of document.querySelectorAll("#topics details")) each.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      search.focus();
    }
  });

  // A link to a topic opens it.
  function follow() {
    const target = byId(location.hash.slice(1));
    if (target?.classList.contains("topic")) {
      target.open = true;
      target.scrollIntoView();
    }
  }
  addEventListener("hashchange", follow);

  form.hidden = false;
  apply();
  follow();
})();
