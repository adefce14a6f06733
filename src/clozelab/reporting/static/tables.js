// A click on a column's head, or Enter, sorts a table by it; another turns the order round.
// A cell that holds nothing stays at the end. Gives back what sorts new rows as the old ones were.
export function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const value = (row, at) => {
    const cell = row.cells[at], text = cell.dataset.value ?? cell.textContent;
    return text !== "" && !isNaN(text) ? Number(text) : text;
  };
  const order = (a, b) => (typeof a === "number" && typeof b === "number"
    ? a - b : String(a).localeCompare(String(b)));

  function sort() {
    const at = heads.findIndex((head) => head.hasAttribute("aria-sort"));
    if (at < 0) return;
    const up = heads[at].getAttribute("aria-sort") === "ascending", body = table.tBodies[0];
    const empty = (row) => ["", "–"].includes(value(row, at)), rows = [...body.rows];
    const full = rows.filter((row) => !empty(row));
    full.sort((a, b) => (up ? 1 : -1) * order(value(a, at), value(b, at)));
    body.append(...full, ...rows.filter(empty));
  }

  for (const head of heads) {
    const choose = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sort();
    };
    head.tabIndex = 0;
    head.addEventListener("click", choose);
    head.addEventListener("keydown", (key) => {
      if (key.key !== "Enter" && key.key !== " ") return;
      key.preventDefault();
      choose();
    });
  }
  return sort;
}
