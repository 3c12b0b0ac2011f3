"use strict";
// Comforts only: without a script everything is there and can be read.
const root = document.documentElement, all = (what, within = document) => [...within.querySelectorAll(what)];

// Colours: as the system has them, light or dark; kept where the browser lets a file keep something.
const theme = document.getElementById("theme"), themes = ["auto", "light", "dark"];
const told = { auto: "as the system has them", light: "light", dark: "dark" };
const wear = name => {
  if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
  theme.querySelector("span").textContent = name;
  theme.setAttribute("aria-label", "Colours: " + told[name]);
};
let worn = "auto";
try { worn = localStorage.getItem("hidl-theme") || "auto"; } catch { /* not from here */ }
wear(themes.includes(worn) ? worn : "auto");
theme.classList.remove("for-script");
theme.addEventListener("click", () => {
  worn = themes[(themes.indexOf(worn) + 1) % 3];
  wear(worn);
  try { localStorage.setItem("hidl-theme", worn); } catch { /* not from here */ }
});

// Charts: the value of the nearest mark, by pointer or by arrow keys.
for (const chart of all("svg.chart")) {
  const points = all(".pt", chart), out = chart.parentElement.querySelector(".readout");
  let at = -1;
  const show = index => {
    points[at]?.classList.remove("at");
    at = index;
    points[at]?.classList.add("at");
    out.textContent = points[at]?.querySelector("title").textContent ?? "";
  };
  chart.addEventListener("pointermove", event => {
    const far = points.map(point => {
      const box = point.lastElementChild.getBoundingClientRect();
      return Math.hypot(box.x + box.width / 2 - event.clientX, (box.y + box.height / 2 - event.clientY) / 3);
    });
    show(far.indexOf(Math.min(...far)));
  });
  chart.addEventListener("pointerleave", () => show(-1));
  chart.addEventListener("blur", () => show(-1));
  chart.addEventListener("keydown", event => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !points.length) return;
    event.preventDefault();
    show(at < 0 ? (step > 0 ? 0 : points.length - 1) : (at + step + points.length) % points.length);
  });
}

// Runs: filtered by words, sorted by any column.
const table = document.getElementById("table-of-runs"), filter = document.getElementById("filter");
const rows = all("tbody tr", table), detail = new Map(all("details.run").map(each => [each.dataset.run, each]));
const text = new Map(rows.map(row => [row, (row.dataset.run + " " + row.textContent + " " + (detail.get(row.dataset.run)?.querySelector("dl")?.textContent ?? "")).toLowerCase()]));
const sift = () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of rows) {
    const fits = words.every(word => text.get(row).includes(word));
    row.hidden = !fits;
    const more = detail.get(row.dataset.run);
    if (more) more.hidden = !fits;
    shown += fits;
  }
  document.getElementById("shown").textContent = words.length ? `${shown} of ${rows.length} runs` : "";
};
filter.addEventListener("input", sift);
filter.closest("p").classList.remove("for-script");
const heads = all("thead th", table), key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent.trim();
heads.forEach((head, column) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = head.textContent;
  head.replaceChildren(button);
  button.addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    rows.sort((a, b) => key(a, column).localeCompare(key(b, column), undefined, { numeric: true }) * (up ? 1 : -1));
    table.tBodies[0].append(...rows);
  });
});

// What a link leads to is opened; on paper, the newest run of each kind is, that the summary leads to.
const reveal = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    if (target.hidden) { filter.value = ""; sift(); }
    target.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", reveal);
reveal();
let opened = [];
addEventListener("beforeprint", () => { opened = all("details[data-newest]:not([open])"); opened.forEach(each => { each.open = true; }); });
addEventListener("afterprint", () => { opened.forEach(each => { each.open = false; }); });
