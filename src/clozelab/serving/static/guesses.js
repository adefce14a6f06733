// One model: its guesses for each hidden word, at a step or at many.
import { el, latest, percent, say, settled, whole } from "./dom.js";
import { modelPicker, models, text } from "./texts.js";

const TOP = 5;
const STEPS = 12; // of a run's checkpoints, beside each other

export function guessPanel(known, name, { fetchJson, replace, state }, close) {
  const problem = el("p", { class: "problem", role: "alert" });
  const shown = el("div", { class: "shown" }, el("p", { class: "note" }, "Asking the model…"));
  const across = el("div", { class: "wide" });
  const request = (step) => {
    const { words, hidden } = state();
    return { model: picker.model, step, text: text.value, hidden, top: TOP, words };
  };
  const ask = latest(
    (signal) => {
      const { words, ...body } = request(picker.step);
      shown.classList.add("waiting");
      return body.hidden.length ? fetchJson("/api/fill", body, signal).then((found) => ({ found, words })) : null;
    },
    (answer) => {
      shown.classList.remove("waiting");
      problem.textContent = "";
      if (answer === null) {
        shown.replaceChildren(el("p", { class: "note" }, "Hide a word to see what this model would put there."));
      } else {
        shown.replaceChildren(...notes(answer.found), ...byWord(answer.found.blanks, answer.words, replace));
        const best = answer.found.blanks.map(({ guesses: [first] }) => `${first.text}, ${percent(first.probability)}`);
        say(`${picker.model}: ${best.join("; ")}`);
      }
    },
    (error) => {
      shown.classList.remove("waiting");
      shown.replaceChildren();
      problem.textContent = error.message;
      models(fetchJson).then((now) => picker.update(now), () => {}); // the server may be gone
    },
  );
  const askAll = latest(
    (signal) => stepTable(across, picker.steps, request, fetchJson, signal),
    () => {},
    (error) => { problem.textContent = error.message; },
  );
  const all = el("button", { type: "button", class: "quiet", "aria-expanded": "false" }, "All steps");
  const isOpen = () => all.getAttribute("aria-expanded") === "true";
  const setOpen = (open) => {
    all.setAttribute("aria-expanded", String(open));
    if (open) askAll(); else across.replaceChildren();
  };
  const again = settled(120, () => {
    ask();
    if (isOpen()) askAll();
  });
  all.addEventListener("click", () => setOpen(!isOpen()));
  const remove = el("button", { type: "button", class: "quiet" }, "Remove");
  remove.addEventListener("click", close);
  const tools = el("div", { class: "row" }, all, remove);
  const picker = modelPicker(known, name, () => {
    all.hidden = picker.steps.length < 2;
    if (all.hidden) setOpen(false);
    again();
  });
  all.hidden = picker.steps.length < 2;
  return {
    element: el("section", { class: "panel", "aria-label": "Guesses of a model" },
      picker.element, shown, problem, tools, across),
    ask: again,
    name: () => picker.model,
    alone: (only) => { remove.hidden = only; },
  };
}

function notes({ left_only: left, generator }) {
  const said = [];
  if (left) said.push("This model reads from the left: a blank is guessed from what stands before it alone.");
  if (generator) said.push("The generator answers: the encoder itself predicts no tokens.");
  return said.map((line) => el("p", { class: "note" }, line));
}

function byWord(blanks, words, replace) {
  const groups = new Map();
  for (const blank of blanks) groups.set(blank.word, [...(groups.get(blank.word) ?? []), blank]);
  return [...groups].map(([at, pieces]) => {
    const best = pieces.map(({ guesses }) => guesses[0]);
    const lists = pieces.map((piece, n) => list(piece, (guess) => {
      replace(at, best.map((other, m) => (m === n ? guess : other)));
    }));
    const name = words[at].blank ? "a blank" : words[at].text;
    const title = pieces.length > 1 ? `${name}, in ${pieces.length} pieces` : name;
    return el("section", { class: "blank" }, el("h3", {}, title),
      pieces.length > 1 ? el("div", { class: "pieces" }, lists) : lists);
  });
}

const mark = (guess) => (guess.joins ? `·${guess.text}` : guess.text || "␣");

function list({ guesses, hidden }, choose) {
  const stood = (guess) => hidden !== null && guess.text === hidden.text && guess.joins === hidden.joins;
  const rows = guesses.map((guess) => el("li", {}, bar(el("button", {
    type: "button", class: stood(guess) ? "guess stood" : "guess", onclick: () => choose(guess),
    "aria-label": `${guess.text || "a space"}, ${percent(guess.probability)}; put it into the text`,
  }), guess)));
  if (hidden !== null && !guesses.some(stood)) {
    rows.push(el("li", { class: "rest" }, bar(el("div", { class: "guess stood" }), hidden)));
  }
  return el("ol", { class: "guesses" }, rows);
}

function bar(element, guess) {
  element.style.setProperty("--p", String(guess.probability));
  element.append(el("b", {}, mark(guess)), el("span", {}, percent(guess.probability)));
  return element;
}

// The best guess, and how likely what stood there is, at checkpoints of a run.
async function stepTable(place, steps, request, fetchJson, signal) {
  const { words, ...first } = request(null);
  if (!first.hidden.length) { place.replaceChildren(); return; }
  const many = Math.min(STEPS, steps.length);
  const some = Array.from({ length: many }, (_, n) => steps[Math.round(n * (steps.length - 1) / Math.max(many - 1, 1))]);
  const body = el("tbody");
  const head = el("tr", {}, el("th", { class: "n", scope: "col" }, "step"));
  const caption = el("caption", { class: "visually-hidden" }, "Guesses at each step");
  place.replaceChildren(el("table", {}, caption, el("thead", {}, head), body));
  for (const step of some) {
    if (!body.isConnected) return; // the table was closed
    const { blanks } = await fetchJson("/api/fill", { ...first, step, top: 1 }, signal);
    if (!body.children.length) {
      head.append(...blanks.flatMap(({ word, hidden }) => [
        el("th", { scope: "col" }, "best guess"),
        el("th", { class: "n", scope: "col" }, hidden ? hidden.text : words[word].text),
      ]));
    }
    body.append(el("tr", {}, el("td", { class: "n" }, whole(step)), blanks.flatMap(({ guesses: [best], hidden }) => [
      el("td", {}, `${mark(best)} (${percent(best.probability)})`),
      el("td", { class: "n" }, hidden ? percent(hidden.probability) : "–"),
    ])));
  }
}
