"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const PARTS = ["compute", "down", "up", "waiting"];
  const PART_COLOURS = { compute: "var(--s1)", down: "var(--s2)", up: "var(--s4)", waiting: "var(--line)" };
  const MARKERS = {
    circle: "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", square: "M-3.5,-3.5h7v7h-7z", "triangle-up": "M0,-4.5L4.3,3.5H-4.3z",
    diamond: "M0,-5L5,0L0,5L-5,0z", "triangle-down": "M0,4.5L4.3,-3.5H-4.3z", cross: "M-1.3,-4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
  };
  let doc = JSON.parse(document.getElementById("data").textContent);
  const state = { across: "iteration", hidden: new Set(), log: {}, worker: 0, split: 0, timeline: 0, fleet: 0, all: false, moment: 0, from: 1, span: "5", at: 0, pace: "1" };
  // A bound far above all losses would press them into one line: it is drawn when asked for.
  const far = doc.overlays.filter((bound) => least(bound.columns.loss) > 3 * most(doc.tracks.flatMap((track) => track.columns.loss)));
  far.forEach(({ label }) => state.hidden.add(label));
  const DIRECT = 14;
  let redraws = [];
  let playing = null;

  function least(values) { return values.reduce((a, v) => (v === null ? a : Math.min(a, v)), Infinity); }
  function most(values) { return values.reduce((a, v) => (v === null ? a : Math.max(a, v)), -Infinity); }
  // Text is only ever set as text: labels come from files and may hold anything.
  function el(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  function shape(tag, attributes = {}, text) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }
  // A style is the number of a look, as show/look.py has them.
  const place = (style) => style % doc.looks.colours;
  const turned = (style, list) => list[(place(style) + Math.floor(style / doc.looks.colours)) % list.length];
  const colour = (style) => `var(--s${place(style)})`;
  const dash = (style) => { const pattern = turned(style, doc.looks.dashes); return pattern[1] ? pattern.join(" ") : "none"; };
  const marker = (style) => MARKERS[turned(style, doc.looks.markers)];
  function swatch(style) {
    const drawn = shape("svg", { width: 30, height: 14, viewBox: "0 0 30 14", class: "key", "aria-hidden": "true" });
    drawn.append(
      shape("line", { x1: 0, x2: 30, y1: 7, y2: 7, stroke: colour(style), "stroke-width": 2.4, "stroke-dasharray": dash(style) }),
      shape("path", { d: marker(style), transform: "translate(15 7)", fill: colour(style) }),
    );
    return drawn;
  }

  const plain = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
  function units(value) {
    const names = ["B", "kB", "MB", "GB", "TB"];
    let step = 0;
    while (Math.abs(value) >= 1000 && step < names.length - 1) { value /= 1000; step += 1; }
    return `${plain.format(value)} ${names[step]}`;
  }
  function shown(value, kind) {
    if (value === null || value === undefined) return "–";
    if (kind === "percent") return `${(value * 100).toFixed(2)}%`;
    if (kind === "bytes") return units(value);
    if (kind === "seconds") return `${plain.format(value)} s`;
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e7)) return value.toExponential(3);
    return plain.format(value);
  }
  function ticks(low, high, count) {
    const raw = (high - low) / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => raw <= factor * power) * power;
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-12) + step * 1e-9; k += 1) found.push(Number((k * step).toPrecision(12)));
    return found;
  }
  function logTicks(low, high, count) {
    const found = [];
    for (const factors of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7]]) {
      found.length = 0;
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1)
        for (const factor of factors) {
          const value = Number((factor * 10 ** power).toPrecision(3));
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      if (found.length >= Math.min(4, count)) break;
    }
    if (found.length < 3) return ticks(low, high, count);
    const every = Math.ceil(found.length / (count + 2));
    return found.filter((_, place) => place % every === 0);
  }

  // One chart of lines: `spec` says what, `tracks` are its columns, `across` the column along x.
  function lineChart(spec, tracks, across, name, extras = []) {
    const plot = el("div", { class: "plot" });
    const tip = el("div", { class: "tip", role: "status", "aria-live": "polite", hidden: true });
    plot.append(tip);
    let picture = null;
    let cursor = null;
    const measure = spec.measure;
    const kindX = { bytes: "bytes", seconds: "seconds", clock: "seconds" }[across] || "number";
    const kindY = spec.percent ? "percent" : "number";
    const visible = () => tracks.filter((track) => !state.hidden.has(track.label));

    function draw() {
      const width = Math.max(260, plot.clientWidth);
      const height = Math.round(Math.min(340, Math.max(240, width * 0.62)));
      const shownTracks = visible();
      const lines = [...shownTracks.filter((track) => track.columns[across]), ...extras.filter((extra) => extra.columns[across] && !state.hidden.has(extra.label))];
      const xs = [], ys = [];
      for (const track of lines) track.columns[across].forEach((x, i) => {
        const y = track.columns[measure][i];
        if (x !== null && y !== null && y !== undefined) { xs.push(x); ys.push(y); }
      });
      const old = picture;
      picture = shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "data-chart": spec.key });
      picture.setAttribute("aria-label", description(shownTracks));
      if (old) { const focused = document.activeElement === old; old.replaceWith(picture); if (focused) picture.focus({ preventScroll: true }); }
      else plot.prepend(picture);
      if (!xs.length) { picture.append(shape("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "all methods are hidden")); return; }
      const bounds = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
      let [x0, x1] = bounds(xs), [y0, y1] = bounds(ys);
      const log = (state.log[spec.key] ?? spec.log) && y0 > 0;
      if (!log) for (const track of shownTracks) {
        const low = track.columns[`${measure}.low`], high = track.columns[`${measure}.high`];
        if (low) { const [a] = bounds(low.filter((v) => v !== null)), b = bounds(high.filter((v) => v !== null))[1]; y0 = Math.min(y0, a); y1 = Math.max(y1, b); }
      }
      if (spec.percent) { y0 = Math.max(0, y0); y1 = Math.min(1, y1); }
      if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
      if (log) { y0 *= 0.95; y1 *= 1.05; } else { const pad = (y1 - y0) * 0.04 || Math.abs(y1) * 0.1 || 0.5; y0 -= spec.percent ? Math.min(pad, y0) : pad; y1 += pad; }
      const up = log ? logTicks(y0, y1, 6) : ticks(y0, y1, 6);
      const texts = up.map((v) => spec.percent ? `${plain.format(v * 100)}%` : shown(v));
      const left = Math.max(40, ...texts.map((t) => t.length * 7 + 12)) + 16, top = 8, bottom = 44;
      // Labels stand where lines end, unless there are too many or the screen is narrow.
      const direct = lines.length <= DIRECT && width >= 400;
      const right = direct ? Math.min(Math.round(width * 0.32), Math.max(...lines.map((track) => track.label.length)) * 6.6 + 34) : 14;
      const X = (v) => left + (v - x0) / (x1 - x0) * (width - left - right);
      const f = log ? Math.log : (v) => v;
      const Y = (v) => { const at = (f(v) - f(y0)) / (f(y1) - f(y0)); return top + (1 - Math.min(1.02, Math.max(-0.02, Number.isNaN(at) ? 0 : at))) * (height - top - bottom); };
      up.forEach((v, i) => picture.append(
        shape("line", { x1: left, x2: width - right, y1: Y(v), y2: Y(v), stroke: "var(--grid)" }),
        shape("text", { x: left - 7, y: Y(v) + 4, "text-anchor": "end" }, texts[i])));
      for (const v of ticks(x0, x1, width < 420 ? 4 : 7)) picture.append(
        shape("line", { x1: X(v), x2: X(v), y1: top, y2: height - bottom, stroke: "var(--grid)" }),
        shape("text", { x: X(v), y: height - bottom + 17, "text-anchor": "middle" }, kindX === "bytes" ? units(v) : plain.format(v)));
      picture.append(
        shape("text", { x: (left + width - right) / 2, y: height - 7, "text-anchor": "middle", class: "axis-title" }, spec.across[across]),
        shape("text", { transform: `translate(12 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle", class: "axis-title" }, spec.title + (log ? " (log scale)" : "")));
      const level = spec.level !== null && spec.level !== undefined && spec.level >= y0 && spec.level <= y1;
      if (level) picture.append(
        shape("line", { x1: left, x2: width - right, y1: Y(spec.level), y2: Y(spec.level), stroke: "var(--soft)", "stroke-dasharray": "2 4" }));
      for (const track of shownTracks) if (track.columns[across]) band(track, X, Y, y0);
      for (const track of lines) stroke(track, X, Y, width - left - right, lines.indexOf(track), lines.length);
      if (direct) labels(lines, X, Y, width - right, height - bottom, right);
      // After the curves, with a halo: it is read where they cross it.
      if (level) picture.append(shape("text", { x: left + 5, y: Y(spec.level) - 5, class: "level-label" }, `target ${doc.target}`));
      interact(width, height, left, right, top, bottom, X, Y, x0, x1, lines);
      if (cursor !== null) point(cursor, false);
    }

    function band(track, X, Y, floor) {
      const low = track.columns[`${measure}.low`], high = track.columns[`${measure}.high`];
      if (!low) return;
      let there = [];
      const flush = () => {
        if (there.length > 1) {
          const forth = there.map((i) => `${X(track.columns[across][i]).toFixed(1)},${Y(high[i]).toFixed(1)}`);
          const back = there.slice().reverse().map((i) => `${X(track.columns[across][i]).toFixed(1)},${Y(Math.max(low[i], floor)).toFixed(1)}`);
          picture.append(shape("path", { d: `M${forth.join("L")}L${back.join("L")}Z`, fill: colour(track.style), opacity: 0.15, class: "band" }));
        }
        there = [];
      };
      low.forEach((v, i) => { if (v === null) flush(); else there.push(i); });
      flush();
    }

    function stroke(track, X, Y, span, place, count) {
      const columns = track.columns, ys = columns[measure];
      const group = shape("g", { class: "line", "data-label": track.label });
      // Paler where only some of the runs have come that far.
      let path = "", pale = null;
      const flush = () => { if (path.includes("L")) group.append(shape("path", { d: path, fill: "none", stroke: colour(track.style), "stroke-width": track.bound ? 1.6 : 2.2, "stroke-linejoin": "round", "stroke-dasharray": dash(track.style), opacity: pale ? 0.45 : 1 })); };
      let last = null;
      const dots = [];
      columns[across].forEach((x, i) => {
        const y = ys[i];
        if (x === null || y === null || y === undefined) { flush(); path = ""; last = null; return; }
        const at = `${X(x).toFixed(1)},${Y(y).toFixed(1)}`, thin = columns.runs && columns.runs[i] < track.runs;
        if (thin !== pale) { flush(); path = last && path ? `M${last}` : ""; pale = thin; }
        path += (path ? "L" : "M") + at;
        last = at;
        dots.push([X(x), Y(y)]);
      });
      flush();
      // Markers at a few places, staggered, so that lines can be told without their colours.
      const gap = Math.max(70, span / 7);
      let next = dots.length ? dots[0][0] + gap * (0.25 + 0.6 * place / Math.max(1, count)) : 0;
      dots.forEach(([x, y], i) => {
        if (x >= next || (dots.length < 3 && i === dots.length - 1)) { group.append(shape("path", { d: marker(track.style), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, fill: colour(track.style), class: "marker" })); next = x + gap; }
      });
      picture.append(group);
    }

    function labels(lines, X, Y, edge, floor, room) {
      const ends = lines.map((track) => {
        const ys = track.columns[measure], xs = track.columns[across];
        let i = ys.length - 1;
        while (i >= 0 && (ys[i] === null || ys[i] === undefined || xs[i] === null)) i -= 1;
        return i < 0 ? null : { track, x: X(xs[i]), y: Y(ys[i]) };
      }).filter(Boolean).sort((a, b) => a.y - b.y);
      // Downwards no two may touch, then upwards from the floor.
      const apart = Math.min(14, floor / Math.max(1, ends.length));
      let next = 8;
      for (const end of ends) { end.at = Math.max(end.y, next); next = end.at + apart; }
      next = floor;
      for (const end of ends.slice().reverse()) { end.at = Math.min(end.at, next); next = end.at - apart; }
      const most = Math.floor((room - 26) / 6.2);
      for (const { track, x, y, at } of ends) {
        const text = track.label.length > most ? `${track.label.slice(0, most - 1)}…` : track.label;
        const group = shape("g", { class: "end", "data-end": track.label });
        group.append(
          shape("path", { d: `M${x.toFixed(1)},${y.toFixed(1)}L${edge + 6},${at.toFixed(1)}`, stroke: colour(track.style), "stroke-width": 0.8, fill: "none", opacity: 0.7 }),
          shape("path", { d: marker(track.style), transform: `translate(${edge + 11} ${at.toFixed(1)})`, fill: colour(track.style) }),
          shape("text", { x: edge + 19, y: at + 4, class: "end-label" }, text));
        group.append(shape("title", {}, track.label));
        picture.append(group);
      }
    }

    let point = () => {};
    function interact(width, height, left, right, top, bottom, X, Y, x0, x1, lines) {
      const rule = shape("line", { y1: top, y2: height - bottom, stroke: "var(--soft)", "stroke-width": 1, visibility: "hidden" });
      const spots = shape("g", {});
      picture.append(rule, spots);
      const places = [...new Set(lines.flatMap((t) => t.columns[across].filter((x, i) => x !== null && t.columns[measure][i] !== null)))].sort((a, b) => a - b);
      const at = (track, x) => {
        // The last point not after x: what the method had reached by then.
        const column = track.columns[across];
        let low = 0, high = column.length - 1, found = -1;
        while (low <= high) { const middle = (low + high) >> 1; if (column[middle] <= x * (1 + 1e-12)) { found = middle; low = middle + 1; } else high = middle - 1; }
        return found >= 0 && !(found === column.length - 1 && column[found] < x * (1 - 1e-9)) ? found : -1;
      };
      point = (x, announce) => {
        cursor = x;
        rule.setAttribute("x1", X(x)); rule.setAttribute("x2", X(x)); rule.setAttribute("visibility", "visible");
        spots.replaceChildren();
        const rows = lines.map((track) => ({ track, i: at(track, x) })).filter(({ track, i }) => i >= 0 && track.columns[measure][i] !== null);
        rows.sort((a, b) => (b.track.columns[measure][b.i] - a.track.columns[measure][a.i]) * (spec.percent ? 1 : -1));
        const table = el("table");
        for (const { track, i } of rows) {
          const y = track.columns[measure][i], low = (track.columns[`${measure}.low`] || [])[i];
          spots.append(shape("circle", { cx: X(track.columns[across][i]), cy: Y(y), r: 3.5, fill: colour(track.style), stroke: "var(--card)" }));
          const spread = low === null || low === undefined ? "" : ` ± ${shown(y - low, kindY)}`;
          const part = track.columns.runs && track.columns.runs[i] < track.runs ? ` (${track.columns.runs[i]} of ${track.runs} runs)` : "";
          table.append(el("tr", {}, el("td", {}, swatch(track.style)), el("td", {}, track.label), el("td", { class: "num" }, shown(y, kindY) + spread + part)));
        }
        tip.replaceChildren(el("strong", {}, `${spec.across[across]}: ${shown(x, kindX)}`), table);
        tip.setAttribute("aria-live", announce ? "polite" : "off");
        tip.hidden = false;
        const room = plot.clientWidth;
        const beside = X(x) + 14 + tip.offsetWidth <= room ? X(x) + 14 : X(x) - 14 - tip.offsetWidth;
        tip.style.left = `${Math.max(0, Math.min(beside, room - tip.offsetWidth))}px`;
        tip.style.top = `${top + 6}px`;
      };
      const leave = () => { cursor = null; tip.hidden = true; rule.setAttribute("visibility", "hidden"); spots.replaceChildren(); };
      const nearest = (x) => places.reduce((best, p) => (Math.abs(p - x) < Math.abs(best - x) ? p : best), places[0]);
      const follow = (event) => {
        const box = picture.getBoundingClientRect();
        const x = x0 + (event.clientX - box.left - left) / (width - left - right) * (x1 - x0);
        point(nearest(x), false);
      };
      picture.addEventListener("pointermove", follow);
      picture.addEventListener("pointerdown", follow);
      picture.addEventListener("pointerleave", leave);
      picture.addEventListener("blur", leave);
      picture.addEventListener("keydown", (event) => {
        const now = cursor === null ? -1 : places.indexOf(nearest(cursor));
        const last = places.length - 1;
        const moves = { ArrowRight: now + 1, ArrowLeft: cursor === null ? last : now - 1, PageUp: now + Math.ceil(last / 10), PageDown: now - Math.ceil(last / 10), Home: 0, End: last };
        if (event.key === "Escape") { leave(); return; }
        if (!(event.key in moves)) return;
        event.preventDefault();
        point(places[Math.min(last, Math.max(0, moves[event.key]))], true);
      });
    }

    function description(lines) {
      const parts = lines.map((track) => {
        const values = track.columns[measure].filter((v) => v !== null && v !== undefined);
        return values.length ? `${track.label} from ${shown(values[0], kindY)} to ${shown(values[values.length - 1], kindY)}` : track.label;
      });
      return `${name || spec.title} over ${spec.across[across]}: ${parts.join("; ")}. Arrow keys read values.`;
    }

    const details = el("details", { class: "noprint" }, el("summary", {}, "Values as a table"));
    details.addEventListener("toggle", () => {
      if (!details.open || details.children.length > 1) return;
      details.append(valuesTable(spec, visible(), across, kindX, kindY));
    });
    redraws.push(draw);
    return el("figure", {}, el("figcaption", {}, el("h3", {}, name || spec.title), spec.log && logSwitch(spec)), plot, details);
  }

  function logSwitch(spec) {
    const on = state.log[spec.key] ?? spec.log;
    // Both are named and the one that is drawn is marked: a single button would not say which it is.
    const choice = (text, log) => el("button", { type: "button", class: "on", "aria-pressed": String(on === log), "data-key": `${log ? "log" : "linear"}-${spec.key}`, on: { click: () => { state.log[spec.key] = log; render(); } } }, text);
    return el("div", { class: "seg noprint", role: "group", "aria-label": `scale of ${spec.title}` }, choice("linear", false), choice("log", true));
  }

  function valuesTable(spec, tracks, across, kindX, kindY) {
    const all = [...new Set(tracks.flatMap((track) => track.columns[across] || []))].filter((x) => x !== null).sort((a, b) => a - b);
    const step = Math.max(1, Math.ceil(all.length / 60));
    const places = all.filter((_, i) => i % step === 0 || i === all.length - 1);
    const head = el("tr", {}, el("th", { scope: "col" }, spec.across[across]), ...tracks.map((t) => el("th", { scope: "col" }, t.label)));
    const body = places.map((x) => el("tr", {}, el("th", { scope: "row" }, shown(x, kindX)), ...tracks.map((track) => {
      const i = (track.columns[across] || []).indexOf(x);
      return el("td", {}, i < 0 ? "" : shown(track.columns[spec.measure][i], kindY));
    })));
    const caption = step > 1 ? el("p", { class: "soft" }, `Every ${step}th of ${all.length} points; records.jsonl has them all.`) : null;
    return el("div", { class: "values", tabindex: "0", role: "region", "aria-label": `values of ${spec.title}` }, caption, el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body)));
  }

  function section(id, title, ...children) {
    return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), ...children);
  }

  function ranking() {
    const { headings, rows } = doc.table;
    const head = el("tr", {}, ...headings.map((text, i) => el("th", { scope: "col", class: i === 0 || i === headings.length - 1 ? "text" : false }, text)));
    const body = rows.map((cells, place) => el("tr", { class: doc.methods[place].diverged ? "diverged" : false },
      ...cells.map((text, i) => i === 0
        ? el("th", { scope: "row" }, swatch(doc.methods[place].style), "\u00a0", text)
        : el("td", { class: i === headings.length - 1 ? "text" : false }, text))));
    const note = `Best first, by final accuracy (or loss, where there is none).${doc.seeds > 1 ? " ± is one standard deviation over seeds." : ""}${doc.target ? ` Target: ${doc.target}.` : ""}`;
    return section("ranking", "Ranking", scroll("ranking table", el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body))), el("p", { class: "soft" }, note));
  }
  // A table of texts: words at the left in the first column and in those named, numbers at the right.
  function textTable(label, { headings, rows }, words = []) {
    const side = (i) => (i === 0 || words.includes(headings[i]) ? "text" : false);
    const head = el("tr", {}, ...headings.map((text, i) => el("th", { scope: "col", class: side(i) }, text)));
    const body = rows.map((cells) => el("tr", {}, ...cells.map((text, i) => el(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : { class: side(i) }, text))));
    return scroll(label, el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body)));
  }
  function paired() {
    if (!doc.paired) return null;
    return section("paired", "Differences, seed by seed", textTable("paired differences", doc.paired, ["decided"]), el("p", { class: "soft" }, doc.paired.note));
  }
  function traffic() {
    if (!doc.traffic) return null;
    return section("traffic", "What was sent", textTable("bytes sent", doc.traffic), el("p", { class: "soft" }, "Means over runs, to their end; up is from workers to the server, all workers together."));
  }
  const scroll = (label, ...children) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, ...children);

  function curves() {
    const choices = Object.entries(doc.charts[0]?.across || {}).filter(([key]) => doc.tracks.some((t) => (t.columns[key] || []).some((v) => v > 0)));
    const buttons = choices.map(([key, title]) => el("button", { type: "button", class: "on", "aria-pressed": String(state.across === key), "data-key": `x-${key}`, title, on: { click: () => { state.across = key; render(); } } }, { iteration: "iterations", round: "rounds", bytes: "bytes", seconds: "seconds", clock: "device seconds" }[key] || key));
    const legend = el("ul", { class: "legend", "aria-label": "methods: press to hide or show" }, ...[...doc.methods, ...doc.overlays].map(({ label, style }) => el("li", {}, el("button", {
      type: "button", "aria-pressed": String(!state.hidden.has(label)), "data-key": `m-${label}`,
      on: { click: () => { if (!state.hidden.delete(label)) state.hidden.add(label); render(); } },
    }, swatch(style), label))));
    const all = el("button", { type: "button", "data-key": "all", on: { click: () => { if (state.hidden.size) state.hidden.clear(); else [...doc.methods, ...doc.overlays].forEach(({ label }) => state.hidden.add(label)); render(); } } }, state.hidden.size ? "Show all" : "Hide all");
    const charts = doc.charts.map((spec) => lineChart(spec, doc.tracks.filter((track) => track.columns[spec.measure]), state.across, "", spec.measure === "loss" ? doc.overlays : []));
    const several = doc.tracks.some((track) => track.runs > 1);
    const notes = [several ? "Lines are means over seeds, bands one standard deviation; a line is paler where only some of its runs have come that far." : null,
      state.across === "seconds" ? "Seconds are those of the machine that simulated it, not of devices." : null,
      doc.overlays.length ? "Bounds are those of FedNAG's Theorem 3, with the constants `fednag theory check` measured." + (far.length ? " One far above the losses is hidden at first; press it to draw it." : "") : null].filter(Boolean);
    return section("curves", "Loss and accuracy",
      el("div", { class: "bar" }, el("div", { class: "group" }, el("span", { id: "across" }, "Over"), el("div", { class: "seg", role: "group", "aria-labelledby": "across" }, ...buttons)), all),
      legend, el("div", { class: "charts" }, ...charts), ...notes.map((text) => el("p", { class: "soft" }, text)));
  }

  function chooser(id, label, names, key) {
    if (names.length < 2) return null;
    return el("label", { class: "group" }, label, el("select", { id, "data-key": id, on: { change: (event) => { state[key] = event.target.selectedIndex; render(); } } },
      ...names.map((name, i) => el("option", { selected: i === state[key] }, name))));
  }

  function workers() {
    if (!doc.workers.length) return null;
    state.worker = Math.min(state.worker, doc.workers.length - 1);
    const chosen = doc.workers[state.worker];
    const spec = { key: "workers", title: "loss on a worker's own data", measure: "loss", across: { iteration: "iterations" }, log: chosen.tracks.every((t) => t.columns.loss.every((v) => v === null || v > 0)), percent: false, level: null };
    return section("workers", "Loss of each worker",
      el("div", { class: "bar" }, chooser("worker-method", "Method", doc.workers.map((w) => w.label), "worker")),
      el("ul", { class: "legend" }, ...chosen.tracks.map((t) => el("li", { class: "soft" }, swatch(t.style), " ", t.label))),
      lineChart(spec, chosen.tracks, "iteration", `${chosen.label}, seed ${chosen.seed}`));
  }

  const splits = () => heat("split", "Who holds what", "Split", doc.splits, (title) => `Training samples of each class at each worker: ${title}.`, "samples");
  const timeline = () => heat("timeline", "Who took part", "Run", doc.timeline, (title) => `Rounds in which each worker was asked and its answer was used: ${title}. Darker is more.`, "rounds");

  // A picture of counts: a row a worker, a column a class or some rounds.
  function heat(id, heading, chosen, found, words, unit) {
    if (!found.length) return null;
    state[id] = Math.min(state[id], found.length - 1);
    const { title, rows, columns, cells, names } = found[state[id]];
    const name = (c) => (names ? names[c] : String(c));
    const most = Math.max(1, ...cells.flat());
    const plot = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${rows} by ${columns}` });
    const height = cells.length <= 40 ? 24 : Math.max(3, Math.floor(900 / cells.length));
    const wide = Math.max(cells[0].length <= 20 ? 34 : 9, Math.min(64, Math.floor(900 / cells[0].length)));
    const picture = shape("svg", { width: 70 + wide * cells[0].length, height: 44 + height * cells.length, role: "img", "data-chart": id,
      "aria-label": `${unit} of each ${columns} at each of ${cells.length} workers; darker is more, at most ${most}. The table below has the numbers.` });
    cells.forEach((row, w) => {
      if (height > 10 || w % 10 === 0) picture.append(shape("text", { x: 60, y: w * height + height / 2 + 4, "text-anchor": "end" }, height > 10 ? `worker ${w}` : String(w)));
      row.forEach((count, c) => {
        const part = count / most;
        const cell = shape("rect", { x: 66 + c * wide, y: w * height, width: wide - 1, height: Math.max(1, height - 1), fill: `rgba(var(--heat), ${count ? (0.08 + 0.92 * part).toFixed(3) : 0})`, stroke: height > 10 ? "var(--grid)" : "none" });
        cell.append(shape("title", {}, `worker ${w}, ${columns} ${name(c)}: ${count} ${unit}`));
        picture.append(cell);
        if (height > 10 && wide >= 30 && count) {
          const text = shape("text", { x: 66 + c * wide + wide / 2, y: w * height + height / 2 + 4, "text-anchor": "middle", class: "cell-label", "pointer-events": "none" }, String(count));
          text.style.fill = part > 0.6 ? "var(--card)" : "var(--ink)";
          picture.append(text);
        }
      });
    });
    cells[0].forEach((_, c) => { if (wide >= 18 || c % 10 === 0) picture.append(shape("text", { x: 66 + c * wide + wide / 2, y: cells.length * height + 15, "text-anchor": "middle" }, name(c))); });
    picture.append(shape("text", { x: 66 + wide * cells[0].length / 2, y: cells.length * height + 34, "text-anchor": "middle", class: "axis-title" }, columns));
    plot.append(picture);
    const head = el("tr", {}, el("th", { scope: "col" }, rows), ...cells[0].map((_, c) => el("th", { scope: "col" }, `${columns} ${name(c)}`)));
    const body = cells.slice(0, 200).map((row, w) => el("tr", {}, el("th", { scope: "row" }, String(w)), ...row.map((count) => el("td", {}, String(count)))));
    return section(id, heading,
      el("div", { class: "bar" }, chooser(`${id}-choice`, chosen, found.map((one) => one.title), id)),
      el("p", { class: "soft" }, words(title)), plot,
      el("details", { class: "noprint" }, el("summary", {}, "Values as a table"), el("div", { class: "values" }, el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body)))));
  }

  function sent() {
    if (!doc.bytes) return null;
    return section("bytes", "Bytes to the target", textTable("bytes table", doc.bytes), el("p", { class: "soft" }, doc.bytes.note));
  }

  function times() {
    if (!doc.times.length) return null;
    state.fleet = Math.min(state.fleet, doc.times.length - 1);
    const { title, rows } = doc.times[state.fleet];
    const methods = [...new Set(rows.map((row) => row.method))];
    const longest = Math.max(...rows.map((row) => PARTS.reduce((sum, part) => sum + (row[part] || 0), 0))) || 1;
    const plot = el("div", { class: "plot" });
    const draw = () => {
      const width = Math.max(280, plot.clientWidth), left = 150, step = 20;
      let y = 0;
      const picture = shape("svg", { width, role: "img", "data-chart": "times", "aria-label": "seconds of an average round on each device: computing, receiving, sending, waiting; the table below has the numbers" });
      for (const method of methods) {
        const room = Math.floor(width / 8);
        picture.append(shape("text", { x: 0, y: y + 14, class: "axis-title" }, method.length > room ? `${method.slice(0, room - 1)}…` : method));
        y += step;
        for (const row of rows.filter((r) => r.method === method)) {
          picture.append(shape("text", { x: left - 8, y: y + 13, "text-anchor": "end" }, row.device.length > 20 ? `${row.device.slice(0, 19)}…` : row.device));
          let x = left;
          for (const part of PARTS) {
            const size = (row[part] || 0) / longest * (width - left - 10);
            const bar = shape("rect", { x, y: y + 2, width: Math.max(0, size), height: step - 5, fill: PART_COLOURS[part] });
            bar.append(shape("title", {}, `${method}, ${row.device}: ${part} ${shown(row[part], "seconds")}`));
            picture.append(bar);
            x += size;
          }
          y += step;
        }
        y += 6;
      }
      picture.setAttribute("height", y + 20);
      for (const v of ticks(0, longest, 5)) picture.append(shape("text", { x: left + v / longest * (width - left - 10), y: y + 12, "text-anchor": "middle" }, `${plain.format(v)} s`));
      plot.replaceChildren(picture);
    };
    redraws.push(draw);
    const key = el("ul", { class: "legend" }, ...PARTS.map((part) => {
      const box = shape("svg", { width: 14, height: 14, class: "key", "aria-hidden": "true" });
      box.append(shape("rect", { width: 14, height: 14, fill: PART_COLOURS[part] }));
      return el("li", { class: "soft" }, box, ` ${part}`);
    }));
    const powered = rows.some((row) => row.joules !== undefined);
    const head = el("tr", {}, ...["method", "device", ...PARTS, ...(powered ? ["energy"] : [])].map((t) => el("th", { scope: "col" }, t)));
    const body = rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row.method), el("td", { class: "text" }, row.device), ...PARTS.map((part) => el("td", {}, shown(row[part], "seconds"))), powered ? el("td", {}, row.joules === undefined ? "–" : `${plain.format(row.joules)} J`) : null));
    const spent = powered ? el("p", { class: "soft", id: "joules" }, `Joules of an average round, all that are listed: ${methods.map((method) => `${method} ${plain.format(rows.filter((row) => row.method === method).reduce((sum, row) => sum + (row.joules || 0), 0))}`).join(", ")}.`) : null;
    return section("times", "Where devices' time goes", el("div", { class: "bar" }, chooser("fleet-choice", "Fleet", doc.times.map((t) => t.title), "fleet")),
      el("p", { class: "soft" }, `Seconds of an average round on each device: ${title}.`), key, plot, spent,
      el("details", { class: "noprint" }, el("summary", {}, "Values as a table"), el("div", { class: "values" }, el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body)))));
  }

  // What devices do when. What is in vain is paler; a line is the end of a round.
  const DOING = { ...PART_COLOURS, waiting: "var(--wait)", away: "var(--away)", aggregation: "var(--soft)" };
  const DOES = { compute: "computes", down: "receives", up: "sends", waiting: "waits", away: "is away", aggregation: "aggregates" };
  function kindsKey(kinds) {
    return el("ul", { class: "legend" }, ...kinds.map((kind) => {
      const box = shape("svg", { width: 14, height: 14, class: "key", "aria-hidden": "true" });
      box.append(shape("rect", { width: 14, height: 14, fill: DOING[kind] }));
      return el("li", { class: "soft" }, box, ` ${DOES[kind]}`);
    }));
  }
  const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function moments() {
    if (!doc.moments.length) return null;
    state.moment = Math.min(state.moment, doc.moments.length - 1);
    const line = doc.moments[state.moment];
    const count = line.ends.length - 1, last = line.first + count - 1;
    const wide = state.span === "all" ? count : Math.min(count, Number(state.span));
    const highest = last - wide + 1;
    state.from = Math.max(line.first, Math.min(state.from, highest));
    const plot = el("div", { class: "plot" });
    const values = el("div", { class: "values" });
    const says = el("output", { class: "soft", for: "from-round" });
    const draw = () => {
      const first = state.from - line.first, t0 = line.ends[first], t1 = line.ends[first + wide];
      says.textContent = wide === 1 ? `round ${state.from}` : `rounds ${state.from} to ${state.from + wide - 1}`;
      const here = line.spans.filter((span) => span[2] < t1 && span[3] > t0);
      const busy = new Set(here.filter((span) => span[1] < 3 || line.workers[span[0]] < 0).map((span) => span[0]));
      const all = [...new Set(here.map((span) => span[0]))].sort((a, b) => a - b);
      const active = busy.size ? all.filter((row) => busy.has(row)) : all;
      const rows = active.slice(0, 40);
      const width = Math.max(280, plot.clientWidth), left = width < 500 ? 90 : 150, step = rows.length > 24 ? 15 : 20, top = 4;
      const X = (t) => left + (Math.min(Math.max(t, t0), t1) - t0) / (t1 - t0 || 1) * (width - left - 12);
      const bottom = top + rows.length * step;
      const picture = shape("svg", { width, height: bottom + 40, role: "img", "data-chart": "moments", "aria-label": `what devices do from ${shown(t0, "seconds")} to ${shown(t1, "seconds")}; the table below has the seconds` });
      rows.forEach((row, place) => picture.append(shape("text", { x: left - 8, y: top + place * step + step / 2 + 4, "text-anchor": "end" }, clip(line.rows[row], width < 500 ? 12 : 20))));
      for (const [row, kind, start, end, number, lost] of here) {
        const place = rows.indexOf(row);
        if (place < 0) continue;
        const name = line.kinds[kind];
        const bar = shape("rect", { x: X(start).toFixed(2), y: top + place * step + 2, width: Math.max(0.3, X(end) - X(start)).toFixed(2), height: step - 5, fill: DOING[name], opacity: lost ? 0.35 : 1 });
        bar.append(shape("title", {}, `${line.rows[row]}, round ${number}: ${DOES[name]} ${shown(end - start, "seconds")}${lost ? ", in vain" : ""}`));
        picture.append(bar);
      }
      for (const end of line.ends.slice(first, first + wide + 1)) picture.append(shape("line", { x1: X(end), x2: X(end), y1: top, y2: bottom, stroke: "var(--ink)", "stroke-width": 0.8, opacity: wide > 60 ? 0.2 : 0.6 }));
      for (const v of ticks(t0, t1, width < 500 ? 4 : 8)) picture.append(shape("text", { x: X(v), y: bottom + 15, "text-anchor": "middle" }, plain.format(v)));
      picture.append(shape("text", { x: (left + width) / 2, y: bottom + 33, "text-anchor": "middle", class: "axis-title" }, "seconds on the fleet"));
      plot.replaceChildren(picture);
      const sums = rows.map((row) => line.kinds.map((_, k) => here.reduce((sum, span) => (span[0] === row && span[1] === k ? sum + Math.min(span[3], t1) - Math.max(span[2], t0) : sum), 0)));
      const head = el("tr", {}, ...["device", ...line.kinds].map((t) => el("th", { scope: "col" }, t)));
      values.replaceChildren(el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...rows.map((row, i) => el("tr", {}, el("th", { scope: "row" }, line.rows[row]), ...sums[i].map((v) => el("td", {}, shown(v, "seconds"))))))));
      const hidden = all.length - active.length + line.idle, more = active.length - rows.length;
      rest.textContent = [hidden ? `${hidden} more are away all the time.` : "", more ? `${more} more are not drawn.` : "", line.left_out ? `${line.left_out} workers are left out.` : ""].join(" ");
    };
    const rest = el("p", { class: "soft" });
    redraws.push(draw);
    const from = el("input", { type: "range", id: "from-round", "data-key": "from-round", min: line.first, max: highest, value: state.from, disabled: highest <= line.first,
      on: { input: (event) => { state.from = Number(event.target.value); draw(); } } });
    const spans = ["1", "3", "5", "10", "20", "50", "all"].filter((one) => one === "all" || Number(one) < count);
    if (!spans.includes(state.span)) state.span = "all";
    const wideChoice = el("select", { id: "span-choice", "data-key": "span-choice", on: { change: (event) => { state.span = event.target.value; render(); } } },
      ...spans.map((one) => el("option", { value: one, selected: one === state.span }, one === "all" ? `all ${count}` : one)));
    return section("moments", "Who does what, when", el("div", { class: "bar" },
      chooser("moment-choice", "Run", doc.moments.map((one) => `${one.label}, seed ${one.seed}`), "moment"),
      el("span", { class: "group" }, el("label", { for: "span-choice", class: "soft" }, "Rounds shown"), wideChoice),
      el("span", { class: "group" }, el("label", { for: "from-round", class: "soft" }, "From"), from, says)),
    kindsKey(line.kinds), plot, rest,
    el("p", { class: "soft" }, "Paler: in vain, for the answer was late or its unit was left. Blank: not asked in that round. A line is the end of a round."),
    el("details", { class: "noprint" }, el("summary", {}, "Seconds as a table"), values));
  }

  // The place of the last number in a sorted list that is not above a value.
  function upTo(list, value, of = (one) => one) {
    let low = 0, high = list.length;
    while (low < high) { const middle = (low + high) >> 1; if (of(list[middle]) <= value) low = middle + 1; else high = middle; }
    return low - 1;
  }

  function map() {
    const line = doc.moments[state.moment];
    const scene = line?.map;
    if (playing) { cancelAnimationFrame(playing); playing = null; }
    if (!scene) return null;
    const [left, right, low, high] = scene.box;
    const pad = 0.03 * Math.max(right - left, high - low) + 10;
    const wide = right - left + 2 * pad, tall = high - low + 2 * pad;
    const plot = el("div", { class: "plot" });
    const says = el("p", { class: "soft", id: "map-says" });
    // How long a look at all of it takes: half a minute, at the first of the paces.
    const usual = Math.max(scene.until / 30, 1e-6);
    const own = new Map(line.workers.map((worker, row) => [worker, line.spans.filter((span) => span[0] === row).sort((a, b) => a[2] - b[2])]));
    let marks = [], links = [], heads = [], scale = 1;
    const X = (x) => (x - left + pad) * scale, Y = (y) => (high - y + pad) * scale;
    const moment = (t) => (scene.period ? t % scene.period : t);
    function where(vehicle, t) {
      const now = moment(t);
      for (const piece of vehicle.pieces) {
        if (now < piece[0][0] || now > piece[piece.length - 1][0]) continue;
        const i = Math.min(upTo(piece, now, (point) => point[0]), piece.length - 2);
        if (i < 0) return [piece[0][1], piece[0][2]];
        const [a, b] = [piece[i], piece[i + 1]], part = b[0] > a[0] ? (now - a[0]) / (b[0] - a[0]) : 0;
        return [a[1] + part * (b[1] - a[1]), a[2] + part * (b[2] - a[2])];
      }
      return null;
    }
    function served(vehicle, t) {
      const now = moment(t), i = upTo(vehicle.contacts, now, (contact) => contact[0]);
      return i >= 0 && now < vehicle.contacts[i][1] ? vehicle.contacts[i][2] : null;
    }
    function doing(vehicle, t) {
      const spans = own.get(vehicle.worker) || [], i = upTo(spans, t, (span) => span[2]);
      return i >= 0 && t < spans[i][3] ? spans[i] : null;
    }
    function base() {
      const width = Math.max(260, plot.clientWidth);
      scale = Math.min(width / wide, 560 / tall);
      const picture = shape("svg", { width: wide * scale, height: tall * scale, role: "img", "data-chart": "map", "aria-label": "vehicles on a map; the line below says what they do" });
      const roads = scene.roads.map((piece) => `M${piece.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join("L")}`).join("");
      picture.append(shape("path", { d: roads || "M0,0", fill: "none", stroke: "var(--line)", "stroke-width": 2, "stroke-linejoin": "round" }));
      heads = scene.units.map((unit) => {
        const group = shape("g", {});
        group.append(shape("circle", { cx: 0, cy: 0, r: unit.range * scale, fill: "var(--accent)", "fill-opacity": 0.07, stroke: "var(--accent)", "stroke-opacity": 0.5 }));
        if (unit.half && unit.half < unit.range) group.append(shape("circle", { cx: 0, cy: 0, r: unit.half * scale, fill: "var(--accent)", "fill-opacity": 0.08 }));
        if (unit.vehicle === undefined) {
          group.append(shape("rect", { x: -5, y: -5, width: 10, height: 10, fill: "var(--accent)" }),
            shape("text", { x: X(unit.x) < width * 0.6 ? 8 : -8, y: -7, "text-anchor": X(unit.x) < width * 0.6 ? "start" : "end", class: "level-label" }, clip(unit.name, width < 500 ? 12 : 24)));
          group.setAttribute("transform", `translate(${X(unit.x).toFixed(1)} ${Y(unit.y).toFixed(1)})`);
        } else group.append(shape("circle", { r: 10, fill: "none", stroke: "var(--accent)", "stroke-width": 2.2 }));
        picture.append(group);
        return group;
      });
      links = scene.vehicles.map(() => { const link = shape("line", { "stroke-width": 1.4, visibility: "hidden" }); picture.append(link); return link; });
      marks = scene.vehicles.map((vehicle) => {
        const mark = shape("circle", { r: scene.vehicles.length > 80 ? 4 : 6, stroke: "var(--card)", "stroke-width": 1.2, "data-vehicle": vehicle.worker });
        mark.append(shape("title", {}, vehicle.name));
        picture.append(mark);
        return mark;
      });
      plot.replaceChildren(picture);
      show();
    }
    function show() {
      const t = state.at, counts = {};
      let connected = 0;
      const places = scene.vehicles.map((vehicle) => where(vehicle, t));
      scene.units.forEach((unit, i) => {
        if (unit.vehicle === undefined) return;
        const now = moment(t), here = places[unit.vehicle];
        heads[i].setAttribute("visibility", here && now >= unit.start && now < unit.end ? "visible" : "hidden");
        if (here) heads[i].setAttribute("transform", `translate(${X(here[0]).toFixed(1)} ${Y(here[1]).toFixed(1)})`);
      });
      scene.vehicles.forEach((vehicle, i) => {
        const here = places[i], unit = served(vehicle, t), span = doing(vehicle, t);
        const kind = span ? line.kinds[span[1]] : unit === null ? "away" : "waiting";
        counts[kind] = (counts[kind] || 0) + 1;
        marks[i].setAttribute("visibility", here ? "visible" : "hidden");
        links[i].setAttribute("visibility", here && unit !== null ? "visible" : "hidden");
        if (!here) return;
        const x = X(here[0]).toFixed(1), y = Y(here[1]).toFixed(1);
        marks[i].setAttribute("cx", x);
        marks[i].setAttribute("cy", y);
        marks[i].setAttribute("fill", DOING[kind]);
        marks[i].setAttribute("stroke", kind === "away" || kind === "waiting" ? "var(--soft)" : "var(--card)");
        marks[i].firstChild.textContent = `${vehicle.name}: ${DOES[kind]}`;
        if (unit === null) return;
        connected += 1;
        const of = scene.units[unit], to = of.vehicle === undefined ? [of.x, of.y] : places[of.vehicle];
        if (!to) { links[i].setAttribute("visibility", "hidden"); return; }
        const moves = kind === "down" || kind === "up";
        for (const [name, value] of Object.entries({ x1: x, y1: y, x2: X(to[0]).toFixed(1), y2: Y(to[1]).toFixed(1), stroke: moves ? DOING[kind] : "var(--soft)", "stroke-width": moves ? 2.4 : 1, "stroke-dasharray": moves ? "none" : "2 3", opacity: moves ? 1 : 0.7 })) links[i].setAttribute(name, value);
      });
      const round = Math.min(Math.max(0, upTo(line.ends, t)) + line.first, line.first + line.ends.length - 2);
      const score = upTo(line.scores, t, (one) => one[0]);
      const does = line.kinds.filter((kind) => counts[kind]).map((kind) => `${counts[kind]} ${{ compute: "compute", down: "receive", up: "send", waiting: "wait", away: "away" }[kind]}`);
      says.textContent = [`${t.toFixed(scene.until < 20 ? 2 : 1)} s`, `round ${round}`, score >= 0 ? `accuracy ${shown(line.scores[score][1], "percent")}` : "", `${connected} of ${scene.vehicles.length} vehicles connected`, does.join(", ")].filter(Boolean).join(" · ");
      scrub.value = t;
      scrub.setAttribute("aria-valuetext", says.textContent);
    }
    const button = el("button", { type: "button", id: "play", "data-key": "play", "aria-pressed": "false", on: { click: () => (playing ? stop() : start()) } }, "Play");
    function stop() { if (playing) cancelAnimationFrame(playing); playing = null; button.textContent = "Play"; button.setAttribute("aria-pressed", "false"); }
    function start() {
      if (state.at >= scene.until) state.at = 0;
      button.textContent = "Pause";
      button.setAttribute("aria-pressed", "true");
      let before = null;
      const tick = (now) => {
        if (before !== null) state.at = Math.min(scene.until, state.at + (now - before) / 1000 * usual * Number(state.pace));
        before = now;
        show();
        if (state.at >= scene.until) stop(); else playing = requestAnimationFrame(tick);
      };
      playing = requestAnimationFrame(tick);
    }
    const scrub = el("input", { type: "range", id: "scrub", "data-key": "scrub", class: "long", min: 0, max: scene.until, step: scene.until / 2000, value: state.at, "aria-label": "moment", on: { input: (event) => { state.at = Number(event.target.value); show(); } } });
    state.at = Math.min(state.at, scene.until);
    const paces = [["0.1", "a tenth"], ["0.3", "a third"], ["1", "usual"], ["3", "three times"]];
    const pace = el("select", { id: "pace", "data-key": "pace", on: { change: (event) => { state.pace = event.target.value; } } }, ...paces.map(([value, name]) => el("option", { value, selected: value === state.pace }, name)));
    redraws.push(base);
    const more = scene.left_out ? ` ${scene.left_out} more vehicles are not drawn.` : "";
    return section("map", "Vehicles on the map", el("div", { class: "bar noprint" },
      chooser("map-choice", "Run", doc.moments.map((one) => `${one.label}, seed ${one.seed}`), "moment"), button, scrub,
      el("span", { class: "group" }, el("label", { for: "pace", class: "soft" }, "Pace"), pace)),
    kindsKey(line.kinds.filter((kind) => kind !== "aggregation")), says, plot,
    el("p", { class: "soft" }, `Circles are what units reach, darker where they have half of their best rate; ${scene.units.some((unit) => unit.vehicle !== undefined) ? "the vehicle in a ring was elected and aggregates; " : ""}a dotted line is a connection, a full one a transfer. Metres are drawn alike both ways.${more}`));
  }

  function settings() {
    const { labels, rows } = doc.settings;
    if (!rows.length) return null;
    const apart = rows.filter((row) => row.differs);
    const chosen = state.all || !apart.length ? rows : apart;
    const same = (row) => row.values.every((v) => v === row.values[0]);
    const single = labels.length === 1;
    const head = el("tr", {}, el("th", { scope: "col" }, "setting"), ...(single ? ["value"] : labels).map((label) => el("th", { scope: "col", class: "text" }, label)));
    const line = (row) => el("tr", { class: row.differs ? "differs" : false }, el("th", { scope: "row" }, row.field),
      ...(same(row) && labels.length > 1 ? [el("td", { class: "text", colspan: labels.length }, row.values[0])] : row.values.map((v) => el("td", { class: "text" }, v))));
    const words = single ? "Everything that decides this run." : apart.length ? `${apart.length} of ${rows.length} settings differ between methods (marked).` : "All settings are the same.";
    const more = apart.length ? el("button", { type: "button", "aria-pressed": String(state.all), "data-key": "settings", class: "noprint", on: { click: () => { state.all = !state.all; render(); } } }, state.all ? "Only differences" : "All settings") : null;
    return section("settings", "Settings", el("div", { class: "bar" }, el("span", { class: "soft" }, words), more), scroll("settings", el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...chosen.map(line)))));
  }

  function runs() {
    const about = (run) => [run.versions, run.platform].filter(Boolean).join("; ");
    const alike = doc.runs.every((run) => about(run) === about(doc.runs[0]));
    const head = el("tr", {}, ...["run", "seed", "state", "repeat it with"].map((t) => el("th", { scope: "col", class: "text" }, t)));
    const body = doc.runs.map((run) => {
      const far = run.running && run.rounds ? el("progress", { max: run.rounds, value: run.round, "aria-label": `round ${run.round} of ${run.rounds}` }) : null;
      const words = run.running ? ` round ${run.round} of ${run.rounds ?? "?"}` : run.state;
      const command = run.command ? el("code", {}, run.command) : "your Python script: a part of it was a Python object, or it has no folder";
      const more = [...run.notes.map((note) => `note: ${note}`), alike ? "" : about(run)].filter(Boolean);
      return el("tr", {}, el("th", { scope: "row" }, run.label), el("td", { class: "text" }, String(run.seed)), el("td", { class: "text" }, far, words),
        el("td", { class: "text command" }, command, ...more.map((text) => el("div", { class: "soft" }, text))));
    });
    const table = scroll("runs", el("table", { class: "data" }, el("thead", {}, head), el("tbody", {}, ...body)));
    const first = doc.runs[0]?.started, times = doc.runs.map((run) => run.started).filter(Boolean).sort();
    const words = [alike && about(doc.runs[0]) ? `Made with ${about(doc.runs[0])}.` : null,
      first ? `Started ${times[0]}${times.length > 1 ? ` to ${times[times.length - 1]}` : ""}.` : null].filter(Boolean).join(" ");
    const part = section("runs", "Runs, and how to repeat them", words ? el("p", { class: "soft" }, words) : null, table);
    part.classList.add("long");
    return part;
  }

  function render() {
    const main = document.getElementById("main");
    const focused = document.activeElement?.getAttribute?.("data-key");
    const opened = [...main.querySelectorAll("details")].map((node) => node.open);
    const places = [...main.querySelectorAll(".scroll, .values")].map((node) => [node.scrollLeft, node.scrollTop]);
    redraws = [];
    document.getElementById("title").textContent = doc.title;
    document.title = `${doc.title} · fednag`;
    document.getElementById("kind").textContent = doc.live ? "live" : "report";
    const notes = doc.notes.map((text) => el("p", { class: "notice" }, text));
    const empty = !doc.methods.length;
    main.replaceChildren(...[el("p", { class: "lead", id: "lead" }, doc.sentence), ...notes, ...(empty ? [] : [ranking(), paired(), doc.charts.length ? curves() : null, workers(), splits(), timeline(), sent(), traffic(), times(), moments(), map(), settings(), runs()])].filter(Boolean));
    redraws.forEach((draw) => draw());
    [...main.querySelectorAll("details")].forEach((node, i) => { if (opened[i]) node.open = true; });
    [...main.querySelectorAll(".scroll, .values")].forEach((node, i) => { if (places[i]) [node.scrollLeft, node.scrollTop] = places[i]; });
    if (focused) main.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  const theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  function paint() {
    const now = chosen ?? (dark.matches ? "dark" : "light");
    document.documentElement.dataset.theme = now;
    theme.textContent = now === "dark" ? "Light" : "Dark";
    theme.setAttribute("aria-label", `use ${now === "dark" ? "light" : "dark"} colours`);
  }
  theme.addEventListener("click", () => { chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark"; paint(); });
  dark.addEventListener("change", paint);
  document.getElementById("print").addEventListener("click", () => window.print());
  // Paper has no scroll bars: charts are drawn for its width, and all settings are shown.
  const media = matchMedia("print");
  let kept = null;
  window.addEventListener("beforeprint", () => { kept = state.all; state.all = true; render(); });
  window.addEventListener("afterprint", () => { if (kept !== null) { state.all = kept; kept = null; render(); } });
  media.addEventListener("change", () => redraws.forEach((draw) => draw()));
  let waiting = 0;
  window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => redraws.forEach((draw) => draw())); });
  document.getElementById("foot").textContent = "Made by fednag from the runs' records. This file is complete: it loads nothing, sends nothing.";

  paint();
  render();

  if (doc.live) {
    const pulse = document.getElementById("pulse");
    pulse.hidden = false;
    document.getElementById("foot").textContent = "Served by fednag watch on this machine only; it updates as records arrive.";
    const say = (text, lost) => { if (pulse.textContent !== text) pulse.textContent = text; pulse.classList.toggle("lost", lost); };
    const tell = () => { const running = doc.runs.filter((run) => run.running).length; say(running ? `${running} running` : "nothing running", false); };
    let tag = doc.tag;
    const poll = async () => {
      try {
        const answer = await fetch(`data.json?tag=${encodeURIComponent(tag)}`, { cache: "no-store" });
        if (answer.status === 200) {
          const next = await answer.json();
          if (next.tag !== tag) { doc = { ...doc, ...next, live: true }; tag = next.tag; render(); }
        }
        tell();
      } catch { say("connection lost: is fednag watch still running?", true); }
      setTimeout(poll, 1000);
    };
    tell();
    setTimeout(poll, 1000);
  }
})();
