// Masks: what recipes would hide of a text, epoch after epoch, side by side.
import { counted, el, labelled, latest, options, settled } from "./dom.js";
import { text, textField } from "./texts.js";

const kept = { recipes: ["bert", "spanbert"], corpus: "", epochs: "3", seed: "0", changes: ["", ""] };

export function mountMasks(room, fetchJson) {
  const problem = el("p", { class: "problem", role: "alert" });
  const sides = [0, 1].map((n) => side(n, fetchJson));
  const again = settled(250, () => { for (const each of sides) each.ask(); });
  const field = textField(again);

  const corpus = el("select");
  const epochs = el("input", { type: "range", min: "1", max: "8", step: "1", value: kept.epochs });
  const told = el("output", { class: "note" });
  const seed = el("input", { type: "number", min: "0", max: "1000000", step: "1", value: kept.seed });
  const tell = () => { told.textContent = kept.epochs === "1" ? "1 epoch" : `${kept.epochs} epochs`; };
  corpus.addEventListener("change", () => { kept.corpus = corpus.value; again(); });
  epochs.addEventListener("input", () => { kept.epochs = epochs.value; tell(); again(); });
  seed.addEventListener("input", () => { kept.seed = seed.value; again(); });
  tell();

  room.append(
    el("h1", {}, "Masks"),
    el("p", { class: "lead" }, "What a recipe would hide of this text, epoch after epoch, and what the encoder would"
      + " see instead."),
    field.element,
    el("div", { class: "fields" }, labelled("Tokenizer and known units of", corpus), labelled("Epochs", epochs, told),
      labelled("Seed", seed)),
    keys(), problem, el("div", { class: "side" }, sides.map(({ element }) => element)),
  );
  fetchJson("/api/recipes").then(({ recipes, corpora }) => {
    const known = corpora.map((name) => ({ value: name, text: name }));
    options(corpus, [{ value: "", text: "the embedded ones" }, ...known], kept.corpus);
    kept.corpus = corpus.value;
    for (const each of sides) each.fill(recipes, again);
    again();
  }).catch((error) => { problem.textContent = error.message; });
}

function keys() {
  const key = (kind, word, meaning) => el("span", {},
    el("span", { class: `hide opens closes ${kind}` }, word), ` ${meaning}`);
  return el("p", { class: "keys" },
    key("mask", "hidden", "[MASK] in its place"),
    key("random", "word", "another token in its place"),
    key("same", "kept", "predicted, but left"),
    el("span", {}, "· inside a word"), el("span", {}, "‿ inside a unit"));
}

function side(n, fetchJson) {
  const name = n === 0 ? "First recipe" : "Second recipe";
  const select = el("select");
  const changes = el("input", {
    type: "text", placeholder: "masking.mask_rate=0.4", autocomplete: "off", spellcheck: "false",
  });
  const problem = el("p", { class: "problem", role: "alert" });
  const shown = el("div");
  changes.value = kept.changes[n];
  const ask = latest(
    (signal) => {
      shown.classList.add("waiting");
      const set = kept.changes[n].split(/[\s;]+/).filter(Boolean);
      return fetchJson("/api/masks", {
        recipe: select.value, text: text.value, corpus: kept.corpus || null, epochs: Number(kept.epochs),
        seed: Number(kept.seed), set,
      }, signal);
    },
    (found) => {
      shown.classList.remove("waiting");
      problem.textContent = "";
      shown.replaceChildren(...drawn(found));
    },
    (error) => {
      shown.classList.remove("waiting");
      shown.replaceChildren();
      problem.textContent = error.message;
    },
  );
  return {
    element: el("section", { class: "panel", "aria-label": name },
      labelled(name, select), labelled("Changes", changes), shown, problem),
    ask,
    fill(recipes, again) {
      options(select, recipes.map((each) => ({ value: each.name, text: each.name })), kept.recipes[n]);
      select.addEventListener("change", () => { kept.recipes[n] = select.value; again(); });
      changes.addEventListener("input", () => { kept.changes[n] = changes.value; again(); });
    },
  };
}

function drawn(found) {
  const lines = [];
  const note = (line) => lines.push(el("p", { class: "note" }, line));
  note(found.title);
  if (!found.hides) note("Nothing is hidden: the objective predicts every token.");
  if (found.ordered) note("Tokens are predicted in the order of the small numbers; the input is left as it is.");
  for (const { name, texts, remedy } of found.units) {
    const known = texts === null ? `none: it takes ${remedy}` : texts.join(", ") || "none";
    note(`Known ${name}: ${known}`);
  }
  return [...lines, ...found.epochs.map((epoch) => drawnEpoch(epoch, found))];
}

function drawnEpoch({ epoch, copy, hidden, spans, levels, blocks }, { free, copies }) {
  const head = `epoch ${epoch}${copy === null ? "" : `, copy ${copy} of ${copies}`}: ${hidden} of ${counted(free, "token")} in`
    + ` ${counted(spans, "span")}`;
  return el("section", { class: "epoch" }, el("h3", {}, head), blocks.map((block, n) => el("p", { class: "masked" },
    levels[n] ? el("span", { class: "special" }, `${levels[n]}: `) : null, block.flatMap(drawnToken))));
}

function drawnToken(token) {
  const kind = [token.special && "special", token.gap === "·" && "piece", token.gap === "‿" && "joined"].filter(Boolean);
  const gap = token.gap === " " ? [" "] : [];
  if (!token.decision) return [...gap, el("span", { class: kind.join(" ") }, token.text)];
  kind.push("hide", token.decision);
  if (token.opens) kind.push("opens");
  if (token.closes) kind.push("closes");
  const told = { mask: "hidden", random: "another token in its place", same: "kept" }[token.decision];
  const inside = el("span", { class: kind.join(" "), title: told }, token.text,
    token.replacement ? el("span", { class: "becomes" }, ` → ${token.replacement}`) : null,
    token.rank ? el("sub", {}, String(token.rank)) : null,
    el("span", { class: "visually-hidden" }, ` (${told})`));
  return [...(gap.length && !token.opens ? [el("span", { class: "hide between" }, " ")] : gap), inside];
}
