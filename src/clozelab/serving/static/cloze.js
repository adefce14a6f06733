// Cloze: hide words, and see what models would put there, beside each other and step by step.
import { el, latest, percent, say, settled, whole } from "./dom.js";
import { modelPicker, models, NO_MODEL, text, textField } from "./texts.js";
import { wordStrip } from "./words.js";

const TOP = 5;
const STEPS = 12; // of a run's checkpoints, beside each other
const PANELS = 4;
const FIRST = 6; // the word of the example that is hidden at first
const kept = { words: [], hidden: null, models: [] }; // when the room is left

export function mountCloze(room, fetchJson) {
  const problem = el("p", { class: "problem", role: "alert" });
  const panels = el("div", { class: "side" });
  const open = [];
  let words = [], hidden = [], after = "";
  let put = new Set();
  let replaced = false;

  const changed = (chosen) => {
    hidden = chosen;
    kept.hidden = new Set(chosen);
    for (const panel of open) panel.ask();
  };
  const strip = wordStrip(changed);

  const read = latest(
    (signal, written) => fetchJson("/api/words", { text: written }, signal),
    (found) => {
      const moved = carried(words, found.words);
      const first = kept.hidden === null ? new Set([Math.min(FIRST, found.words.length - 1)]) : null;
      const gone = first ?? (words.length ? moved(hidden) : new Set(kept.hidden));
      const old = moved([...put]);
      put = new Set([...found.words.keys()].filter((at) => old.has(at) || (replaced && moved.fresh(at))));
      replaced = false;
      words = found.words;
      after = found.after;
      found.words.forEach(({ blank }, at) => { if (blank) gone.add(at); });
      const chosen = [...gone].filter((at) => at >= 0 && at < words.length).sort((a, b) => a - b);
      strip.show(words, after, new Set(chosen), put);
      problem.textContent = "";
      changed(chosen);
    },
    (error) => { problem.textContent = error.message; },
  );
  const reread = settled(200, read);
  const field = textField(reread);

  // Put a guess into the text: the pieces of a word, of which the first may go on the word before.
  const replace = (at, pieces) => {
    const word = pieces.map((piece, n) => (n && !piece.joins ? ` ${piece.text}` : piece.text)).join("");
    const parts = words.flatMap(({ before, text: own }, n) => (n !== at ? [before, own]
      : [pieces[0].joins ? before.trimEnd() : before, word]));
    say(`${words[at].text} replaced by ${word}`);
    hidden = hidden.filter((n) => n !== at);
    replaced = true;
    field.set([...parts, after].join(""));
  };

  const more = el("button", { type: "button", class: "action" }, "Add a model");
  const context = { fetchJson, replace, state: () => ({ words, hidden }) };
  const add = (known, name) => {
    const close = () => {
      open.splice(open.indexOf(panel), 1);
      panel.element.remove();
      count();
    };
    const panel = guessPanel(known, name, context, close);
    open.push(panel);
    panels.append(panel.element);
    panel.ask();
    count();
  };
  const count = () => {
    kept.models = open.map(({ name }) => name());
    more.hidden = open.length >= PANELS;
    for (const panel of open) panel.alone(open.length === 1);
  };

  room.append(
    el("h1", {}, "Cloze"),
    el("p", { class: "lead" }, "Hide words of a text, and see what a model would put there. Click a word, or drag over"
      + " several; click a guess to put it into the text."),
    field.element, strip.element, problem, panels, el("div", { class: "row" }, more),
  );
  read(text.value);
  models(fetchJson).then((known) => {
    if (!known.length) {
      panels.replaceChildren(el("p", { class: "note" }, NO_MODEL));
      more.hidden = true;
      return;
    }
    const names = kept.models.filter((name) => known.some((each) => each.name === name));
    for (const name of names.length ? names : [known[0].name]) add(known, name);
    more.addEventListener("click", () => add(known, (known[open.length] ?? known[0]).name));
  }).catch((error) => { problem.textContent = error.message; });
}

// Where words of a text are after it was edited: what stands before and behind the change stays.
function carried(old, now) {
  const same = (a, b) => a !== undefined && b !== undefined && a.text === b.text && a.blank === b.blank;
  let first = 0, last = 0;
  while (same(old[first], now[first])) first++;
  while (last < Math.min(old.length, now.length) - first && same(old.at(-1 - last), now.at(-1 - last))) last++;
  const shift = now.length - old.length;
  const moved = (places) => new Set(places.filter((at) => at < first || at >= old.length - last)
    .map((at) => (at < first ? at : at + shift)));
  moved.fresh = (at) => at >= first && at < now.length - last;
  return moved;
}

// One model: its guesses for each hidden word, at a step or at many.
function guessPanel(known, name, { fetchJson, replace, state }, close) {
  const problem = el("p", { class: "problem", role: "alert" });
  const shown = el("div", { class: "shown" });
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
      if (answer === null) shown.replaceChildren(el("p", { class: "note" }, "Hide a word to see what this model would put there."));
      else {
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
  const again = settled(120, () => {
    if (state().words.length === 0) return;
    ask();
    if (all.getAttribute("aria-expanded") === "true") askAll();
  });
  all.addEventListener("click", () => {
    const open = all.getAttribute("aria-expanded") !== "true";
    all.setAttribute("aria-expanded", String(open));
    if (open) askAll(); else across.replaceChildren();
  });
  const remove = el("button", { type: "button", class: "quiet" }, "Remove");
  remove.addEventListener("click", close);
  const tools = el("div", { class: "row" }, all, remove);
  const picker = modelPicker(known, name, () => { all.hidden = picker.steps.length < 2; again(); });
  all.hidden = picker.steps.length < 2;
  return {
    element: el("section", { class: "panel", "aria-label": "Guesses of a model" }, picker.element, shown, problem, tools, across),
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
  place.replaceChildren(el("table", {}, el("caption", { class: "visually-hidden" }, "Guesses at each step"), el("thead", {}, head), body));
  for (const step of some) {
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
