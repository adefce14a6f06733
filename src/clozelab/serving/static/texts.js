// The text that all rooms are about, and models to choose from.
import { el, labelled, options, whole } from "./dom.js";

const EXAMPLES = {
  English: "It was a dark and stormy night, and the king of France slept in the castle of his father.",
  中文: "北京是中国的首都，很多人住在这里。",
};

export const text = {
  get value() { return sessionStorage.getItem("clozelab text") ?? EXAMPLES.English; },
  set value(written) { sessionStorage.setItem("clozelab text", written); },
};

// The field of the text, and buttons that put an example into it.
export function textField(changed) {
  const field = el("textarea", { rows: "2", spellcheck: "false", autocomplete: "off" });
  field.value = text.value;
  const set = (written) => {
    text.value = written;
    if (field.value !== written) field.value = written;
    changed(written);
  };
  field.addEventListener("input", () => set(field.value));
  const examples = Object.entries(EXAMPLES).map(([name, example]) => el("button", {
    type: "button", class: "quiet", onclick: () => set(example), lang: name === "中文" ? "zh" : "en",
  }, name));
  const row = el("div", { class: "row" }, el("span", { class: "note" }, "Examples:"), examples);
  return { element: el("div", {}, labelled("Text", field), row), set };
}

export const models = (fetchJson) => fetchJson("/api/models");

export const NO_MODEL = "No model was given. Start the server with one: clozelab serve RUN";

// A model, and where it has several checkpoints the step, by a slider.
export function modelPicker(given, chosen, changed) {
  let known = given;
  const select = el("select");
  options(select, known.map(({ name }) => ({ value: name, text: name })), chosen);
  const slider = el("input", { type: "range", min: "0", step: "1" });
  const told = el("output");
  const at = labelled("Step", slider, told);
  const model = () => known.find(({ name }) => name === select.value);
  const step = () => model().steps[Number(slider.value)] ?? null;
  const tell = () => {
    told.textContent = step() === null ? "" : `step ${whole(step())} of ${whole(model().steps.at(-1))}`;
    slider.setAttribute("aria-valuetext", told.textContent);
  };
  const refresh = (wanted) => { // the step that is wanted, or the next one, or the last
    const { steps } = model();
    const next = steps.findIndex((each) => each >= wanted);
    slider.max = String(Math.max(steps.length - 1, 0));
    slider.value = next < 0 ? slider.max : String(next);
    at.hidden = steps.length < 2;
    tell();
  };
  told.className = "note";
  select.addEventListener("change", () => { refresh(); changed(); });
  slider.addEventListener("input", () => { tell(); changed(); });
  refresh();
  return {
    element: el("div", { class: "picker" }, labelled("Model", select), at),
    get model() { return select.value; },
    get step() { return step(); },
    get steps() { return model().steps; },
    update(now) { // checkpoints come and go while a run goes on; a model that is gone stays named
      const wanted = step() ?? undefined; // without a step, the last that there is now
      known = known.map((old) => now.find(({ name }) => name === old.name) ?? old);
      refresh(wanted);
    },
  };
}
