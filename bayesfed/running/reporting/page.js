"use strict";
// The values under the pointer, or stepped through by the arrow keys; without this script the page is whole all the same.
for (const figure of document.querySelectorAll(".chart")) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const lines = chart.lines.filter((line) => line.points.length);
  const svg = figure.querySelector("svg"), pointer = figure.querySelector(".pointer"), tip = figure.querySelector(".tip");
  const places = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b);
  let at = -1;

  const nearest = (values, x) => values.reduce((best, value, i) => (Math.abs(value - x) < Math.abs(values[best] - x) ? i : best), 0);
  const drawn = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  const row = (text, hue) => {
    const line = document.createElement("div");
    if (hue !== undefined) line.append(Object.assign(document.createElement("span"), { className: `hue${hue}` }));
    line.append(text);
    return line;
  };

  const show = (place) => {
    at = place;
    const x = places[at];
    const chosen = lines.map((line) => [line, line.points[nearest(line.points.map((point) => point[0]), x)]]);
    const alike = chosen.every(([, point]) => point[2] === chosen[0][1][2]);
    pointer.replaceChildren(
      drawn("path", { d: `M${x} ${chart.top}L${x} ${chart.bottom}` }),
      ...chosen.map(([line, point]) => drawn("circle", { class: `dot hue${line.hue}`, cx: point[0], cy: point[1], r: 4 })),
    );
    const unit = chart.against.replace(" (log)", "");
    tip.replaceChildren(
      ...(alike ? [row(`${unit}: ${chosen[0][1][2]}`)] : [row(unit)]),
      ...chosen.map(([line, point]) => row(`${line.name}: ${point[3]}${alike ? "" : ` at ${point[2]}`}`, line.hue)),
    );
    const right = x > chart.width / 2;
    tip.style.display = "block";
    tip.style.left = right ? "auto" : `${(100 * x) / chart.width + 3}%`;
    tip.style.right = right ? `${100 - (100 * x) / chart.width + 3}%` : "auto";
  };
  const hide = () => {
    at = -1;
    pointer.replaceChildren();
    tip.style.display = "none";
  };
  if (!places.length) continue;

  const move = (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(places, ((event.clientX - box.left) * chart.width) / box.width));
  };
  svg.addEventListener("pointermove", move);
  svg.addEventListener("pointerdown", move);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) show(Math.min(places.length - 1, Math.max(0, at + step)));
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}
