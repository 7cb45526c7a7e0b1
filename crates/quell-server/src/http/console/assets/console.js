// The live parts of the console. Pages work without it.
'use strict';

// How a page is kept up to date: says so when the connection is lost, and when it is back.
const connection = document.getElementById('connection');
let lost = false;

function say(text) {
  if (connection && connection.textContent !== text) connection.textContent = text;
}

document.body.addEventListener('htmx:sseOpen', () => {
  say(lost ? 'Connected again.' : 'Live.');
  if (lost) document.dispatchEvent(new Event('quell:reconnected'));
  lost = false;
});
document.body.addEventListener('htmx:sseError', () => {
  lost = true;
  say('The connection to the server is lost; trying again.');
  // Whose session is over is asked to log in.
  fetch('/console', { redirect: 'manual' })
    .then((answer) => { if (answer.type === 'opaqueredirect') location.reload(); })
    .catch(() => {});
});

// Somebody who reads is not interrupted.
const pause = document.getElementById('pause');
if (pause) {
  pause.hidden = false;
  pause.addEventListener('click', () => {
    const paused = pause.getAttribute('aria-pressed') !== 'true';
    pause.setAttribute('aria-pressed', String(paused));
    say(paused ? 'Paused.' : 'Live.');
  });
}

function isPaused() {
  return pause && pause.getAttribute('aria-pressed') === 'true';
}

document.body.addEventListener('htmx:sseBeforeMessage', (event) => {
  if (isPaused()) event.preventDefault();
});

// Charts.
const charts = document.getElementById('charts');
if (charts) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => {
    const probe = document.createElement('i');
    probe.className = name;
    document.body.append(probe);
    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
  const line = (label, name, dash) => ({ label, stroke: colour(name), width: 1.5, dash, spanGaps: false });
  const plots = [
    { target: 'rates', columns: [0, 1, 2], series: [line('allowed', 'good'), line('denied', 'bad', [6, 3]), line('denied in shadow', 'warn', [2, 3])] },
    { target: 'latency', columns: [3, 4], series: [line('half within µs', 'good'), line('99 % within µs', 'bad', [6, 3])] },
  ];
  const axis = () => ({ stroke: style.color, grid: { stroke: colour('soft'), width: 0.25 } });
  const most = { minutes: 300, hour: 360, day: 288 };
  let span = 'minutes';
  let data = [[], [[], [], [], [], []]];

  const draw = () => {
    for (const plot of plots) plot.chart.setData([data[0], ...plot.columns.map((column) => data[1][column])]);
  };
  const load = async () => {
    // Without a server the chart stays as it is.
    const answer = await fetch('/console/history.json?span=' + span).catch(() => null);
    if (!answer || !answer.ok) return;
    data = await answer.json();
    draw();
  };
  for (const plot of plots) {
    const target = document.getElementById(plot.target);
    const width = () => target.clientWidth;
    plot.chart = new uPlot({
      width: width(), height: 190, axes: [axis(), axis()], series: [{}, ...plot.series], legend: { live: false },
      cursor: { show: false }, scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
    }, [[], ...plot.columns.map(() => [])], target);
    new ResizeObserver(() => plot.chart.setSize({ width: width(), height: 190 })).observe(target);
  }
  const choice = document.getElementById('span');
  choice.closest('label').hidden = false;
  choice.addEventListener('change', () => { span = choice.value; load(); });
  charts.addEventListener('htmx:sseBeforeMessage', (event) => {
    if (event.detail.type !== 'point') return;
    event.preventDefault();
    if (isPaused() || span !== 'minutes') return;
    const point = JSON.parse(event.detail.data);
    data[0].push(...point[0]);
    data[1].forEach((column, index) => column.push(...point[1][index]));
    while (data[0].length > most[span]) {
      data[0].shift();
      data[1].forEach((column) => column.shift());
    }
    draw();
  });
  setInterval(() => { if (span !== 'minutes' && !isPaused()) load(); }, 30000);
  document.addEventListener('quell:reconnected', load);
  load();
}
