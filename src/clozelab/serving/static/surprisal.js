// Surprisal: a text coloured by how unexpected each token is, and which of two texts is likelier.
import { counted, el, labelled, latest, settled, signed, whole } from "./dom.js";
import { modelPicker, models, NO_MODEL, text, textField } from "./texts.js";

const PAIR = ["The cats sleep on the bed.", "The cats sleeps on the bed."];
const METHODS = {
  original: "pseudo-log-likelihood: each token is hidden alone",
  within_word_l2r: "pseudo-log-likelihood: each token is hidden with the rest of its word",
  causal: "log-likelihood from the left",
  permutation: "log-likelihood in the order of the text",
  two_directions: "mean of the log-likelihoods from both sides",
};
const TOGETHER = "\u2060"; // no line ends here
const kept = { pair: PAIR, by: "tokens", numbers: false };

export function mountSurprisal(room, fetchJson) {
  const problem = el("p", { class: "problem", role: "alert" });
  const shown = el("div", {}, el("p", { class: "note" }, "Asking the model…"));
  const compared = el("div");
  const pairProblem = el("p", { class: "problem", role: "alert" });
  let picker = null;
  let last = null, lastPair = null;

  const draw = () => {
    if (last) shown.replaceChildren(...wholeText(last));
    if (lastPair) compared.replaceChildren(...pair(lastPair));
  };
  // Asks for the scores of texts: the place shows the answer, which is kept, or the sentence says why there is none.
  const scoring = (texts, place, sentence, keep) => latest(
    (signal) => {
      place.classList.add("waiting");
      return fetchJson("/api/score", { model: picker.model, step: picker.step, ...texts() }, signal);
    },
    (found) => {
      place.classList.remove("waiting");
      sentence.textContent = "";
      keep(found);
      draw();
    },
    (error) => {
      keep(null);
      place.classList.remove("waiting");
      place.replaceChildren();
      sentence.textContent = error.message;
      models(fetchJson).then((now) => picker.update(now), () => {}); // the server may be gone
    },
  );
  const score = scoring(() => ({ text: text.value }), shown, problem, (found) => { last = found; });
  const compare = scoring(
    () => ({ text: kept.pair[0], other: kept.pair[1] }), compared, pairProblem, (found) => { lastPair = found; },
  );
  const rescore = settled(350, () => picker && score());
  const recompare = settled(350, () => picker && compare());
  const field = textField(rescore);

  const by = el("input", { type: "checkbox", checked: kept.by === "words" });
  by.addEventListener("change", () => { kept.by = by.checked ? "words" : "tokens"; draw(); });
  const numbers = el("input", { type: "checkbox", checked: kept.numbers });
  numbers.addEventListener("change", () => { kept.numbers = numbers.checked; draw(); });
  const inputs = ["First sentence", "Second sentence"].map((name, n) => {
    const input = el("input", { type: "text", autocomplete: "off" });
    input.value = kept.pair[n];
    input.addEventListener("input", () => {
      kept.pair = kept.pair.map((old, m) => (m === n ? input.value : old));
      recompare();
    });
    return labelled(name, input);
  });
  const place = el("div");

  room.append(
    el("h1", {}, "Surprisal"),
    el("p", { class: "lead" }, "How unexpected each token of a text is to a model: the negative log-likelihood, in nats."),
    field.element, place,
    el("div", { class: "row" }, el("label", { class: "check" }, by, "whole words"),
      el("label", { class: "check" }, numbers, "show the nats")),
    shown, problem,
    el("h2", {}, "A minimal pair"),
    el("p", { class: "note" }, "Two sentences that differ in little: which is better?"),
    el("div", { class: "fields" }, inputs), compared, pairProblem,
  );
  models(fetchJson).then((known) => {
    if (!known.length) {
      place.append(el("p", { class: "note" }, NO_MODEL));
      shown.replaceChildren();
      return;
    }
    picker = modelPicker(known, known[0].name, () => { rescore(); recompare(); });
    place.append(picker.element);
    rescore();
    recompare();
  }).catch((error) => { problem.textContent = error.message; });
}

function wholeText({ texts: [found], levels, method, unknown }) {
  const facts = [`${signed(found.log_likelihood)} nats`];
  if (found.perplexity !== null) facts.push(`perplexity ${whole(Number(found.perplexity.toPrecision(3)))}`);
  facts.push(counted(found.predicted, "token"));
  if (unknown) facts.push(`${unknown} unknown to the model`);
  return [
    strip(found),
    el("p", { class: "verdict", role: "status" }, facts.join(" · ")),
    el("p", { class: "note" }, METHODS[method] ?? method),
    el("p", { class: "scale" }, "nats from", el("span", { class: "surprise" },
      levels.map((nats, level) => el("span", { class: `token l${level}` }, String(nats))))),
  ];
}

function pair({ texts: [first, second] }) {
  const gap = first.log_likelihood - second.log_likelihood;
  const verdict = gap === 0 ? "Both are equally likely."
    : `The ${gap > 0 ? "first" : "second"} is better, by ${Math.abs(gap).toFixed(2)} nats.`;
  return [el("p", { class: "verdict", role: "status" }, verdict), ...[first, second].map((each) => el("div", {}, strip(each),
    el("p", { class: "note" }, `${signed(each.log_likelihood)} nats, ${counted(each.predicted, "token")}`)))];
}

// The text; what is read aloud of a token is its surprisal, too.
function strip(found) {
  return el("p", { class: kept.numbers ? "strip surprise numbers" : "strip surprise" }, found[kept.by].map((part, at) => {
    if (part.surprisal === undefined) return part.text;
    const nats = part.surprisal.toFixed(1);
    const token = el("span", { class: `token l${part.level}`, title: `${part.piece}: ${nats} nats` }, part.text || "▫");
    if (!kept.numbers) return el("span", {}, token, el("span", { class: "visually-hidden" }, ` (${nats}) `));
    const numbered = el("span", { class: "numbered" }, token, el("span", { class: "nats" }, nats));
    return found[kept.by][at - 1]?.surprisal === undefined ? numbered : [TOGETHER, numbered];
  }).flat());
}
