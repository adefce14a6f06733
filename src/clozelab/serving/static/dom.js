// Elements, made without ever reading text as HTML.
export function el(name, settings = {}, ...inside) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(settings)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && typeof value !== "string") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...inside.flat().filter((each) => each !== null && each !== undefined));
  return node;
}

let count = 0;

// A field below its label.
export function labelled(text, field, ...more) {
  field.id ||= `field-${++count}`;
  return el("div", { class: "field" }, el("label", { for: field.id }, text), field, ...more);
}

export function options(select, values, chosen) {
  select.replaceChildren(...values.map(({ value, text }) => el("option", { value }, text)));
  if (values.some(({ value }) => value === chosen)) select.value = chosen;
}

// Tell a reader who does not see the page what happened.
export function say(text) {
  document.getElementById("said").textContent = text;
}

export const percent = (share) => (share >= 0.0995 ? `${(100 * share).toFixed(0)} %`
  : share >= 0.001 ? `${(100 * share).toFixed(1)} %` : "< 0.1 %");
export const signed = (number) => number.toFixed(2).replace("-", "−");
export const whole = (number) => number.toLocaleString("en");
export const counted = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

// Only the last of many calls, once nothing more comes for a moment.
export function settled(milliseconds, work) {
  let timer = 0;
  return (...words) => {
    clearTimeout(timer);
    timer = setTimeout(() => work(...words), milliseconds);
  };
}

// Ask again and again, and show only the answer to the last question.
export function latest(ask, show, fail) {
  let current = null;
  return async (...words) => {
    current?.abort();
    const mine = (current = new AbortController());
    try {
      const answer = await ask(mine.signal, ...words);
      if (mine === current) show(answer, ...words);
    } catch (error) {
      if (mine === current && error.name !== "AbortError") fail(error);
    }
  };
}
