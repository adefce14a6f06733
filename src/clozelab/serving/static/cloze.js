// Cloze: hide words, and see what models would put there, beside each other and step by step.
import { el, latest, say, settled } from "./dom.js";
import { guessPanel } from "./guesses.js";
import { models, NO_MODEL, text, textField } from "./texts.js";
import { wordStrip } from "./words.js";

const PANELS = 4;
const FIRST = 6; // the word of the example that is hidden at first
const kept = { words: [], hidden: null, models: [] }; // when the room is left

export function mountCloze(room, fetchJson) {
  const problem = el("p", { class: "problem", role: "alert" });
  const panels = el("div", { class: "side" });
  const open = [];
  let words = [], hidden = [], after = "", isRead = false;
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
      isRead = true;
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
    if (isRead) panel.ask();
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
