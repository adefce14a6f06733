// A text as words that are hidden by a click, by dragging over several, or by the keyboard:
// arrows move, Space hides, Shift with an arrow hides one more, Escape shows all.
import { el, say } from "./dom.js";

export function wordStrip(changed) {
  const element = el("div", {
    class: "strip", role: "group", "aria-label": "Words of the text; press one to hide it",
  });
  let words = [];
  let hidden = new Set();
  let drag = null;

  const buttons = () => [...element.querySelectorAll(".word")];

  function paint() {
    buttons().forEach((button, at) => {
      const gone = hidden.has(at);
      button.setAttribute("aria-pressed", String(gone));
      const name = words[at].blank ? "a blank" : words[at].text;
      button.setAttribute("aria-label", gone ? `${name}, hidden` : name);
    });
  }

  function set(next, done) {
    words.forEach(({ blank }, at) => { if (blank) next.add(at); });
    const same = next.size === hidden.size && [...next].every((at) => hidden.has(at));
    hidden = next;
    if (!same) paint();
    if (done) changed([...hidden].sort((a, b) => a - b));
  }

  function range(from, to, hide, base) {
    const next = new Set(base);
    for (let at = Math.min(from, to); at <= Math.max(from, to); at++) {
      if (hide) next.add(at); else next.delete(at);
    }
    return next;
  }

  function toggle(at) {
    set(range(at, at, !hidden.has(at), hidden), true);
    say(`${words[at].text} ${hidden.has(at) ? "hidden" : "shown"}`);
  }

  function focus(at) {
    const all = buttons();
    if (!all[at]) return;
    for (const button of all) button.tabIndex = -1;
    all[at].tabIndex = 0;
    all[at].focus();
  }

  const under = (event) => {
    const word = document.elementFromPoint(event.clientX, event.clientY)?.closest(".word");
    return word && element.contains(word) ? Number(word.dataset.at) : null;
  };

  element.addEventListener("pointerdown", (event) => {
    const at = under(event);
    if (at === null || event.button !== 0) return;
    drag = { from: at, to: at, hide: !hidden.has(at), base: new Set(hidden) };
    element.setPointerCapture(event.pointerId);
    set(range(at, at, drag.hide, drag.base), false);
  });
  element.addEventListener("pointermove", (event) => {
    const at = drag && under(event);
    if (at === null || !drag || at === drag.to) return;
    drag.to = at;
    set(range(drag.from, at, drag.hide, drag.base), false);
  });
  element.addEventListener("pointerup", () => {
    if (!drag) return;
    focus(drag.to);
    drag = null;
    set(new Set(hidden), true);
  });
  element.addEventListener("pointercancel", () => { // the finger scrolls
    if (drag) set(drag.base, false);
    drag = null;
  });
  element.addEventListener("click", (event) => { // without a pointer: a key, or a screen reader
    const word = event.detail === 0 ? event.target.closest(".word") : null;
    if (word) toggle(Number(word.dataset.at));
  });
  element.addEventListener("keydown", (event) => {
    const at = Number(event.target.dataset?.at ?? NaN);
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") set(new Set(), true);
    if (Number.isNaN(at) || !way || !words[at + way]) return;
    event.preventDefault();
    focus(at + way);
    if (event.shiftKey) set(range(at, at + way, true, hidden), true);
  });

  return {
    element,
    show(found, after, gone, put) {
      words = found;
      hidden = gone;
      element.replaceChildren(...found.flatMap(({ before, text }, at) => [before, el("button", {
        type: "button", class: put.has(at) ? "word put" : "word", "data-at": String(at),
        tabIndex: at ? -1 : 0,
      }, text)]), after);
      paint();
    },
  };
}
