// The figures of a page, from the data that it carries.
const data = JSON.parse(document.getElementById("charts").textContent);
for (const element of document.querySelectorAll("[data-chart]")) {
  mountFigure(element, { ...data.charts[element.dataset.chart], clocks: data.clocks });
}
