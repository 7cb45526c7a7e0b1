// The live parts of the console. Pages work without it.
'use strict';

// How a page is kept up to date: says so when the connection is lost, and when it is back.
const connection = document.getElementById('connection');
let lost = false;

function say(text) {
  if (connection && connection.textContent !== text) connection.textContent = text;
}

// A page that nobody sees keeps no connection: a browser has few of them to one server, for all its windows.
let source;
let opened = false;
htmx.createEventSource = (address) => (source = new EventSource(address));
let rests = false;
const rest = () => {
  rests ||= source?.readyState < EventSource.CLOSED;
  source?.close();
};
document.addEventListener('visibilitychange', () => {
  if (document.hidden) rest();
  else if (rests) source.onerror(new Event('shown'));
  rests &&= document.hidden;
});

document.body.addEventListener('htmx:sseOpen', () => {
  if (document.hidden) rest();
  if (!isPaused()) say(lost ? 'Connected again.' : 'Live.');
  if (opened) document.dispatchEvent(new Event('quell:reconnected'));
  [lost, opened] = [false, true];
});
document.body.addEventListener('htmx:sseError', async ({ detail }) => {
  if (detail.error.type === 'shown') return;
  lost = true;
  const answer = await fetch(source.url, { method: 'HEAD', signal: AbortSignal.timeout(5000) }).catch(() => null);
  if (!lost) return;
  const over = answer?.status === 401;
  // Whose session is over is asked to log in; what was typed is not lost by that.
  const isTyped = [...document.querySelectorAll('input, textarea')].some((field) => field.value !== field.defaultValue);
  if (over && !isTyped) location.reload();
  else if (over) say('Your session is over.');
  else if (answer?.status === 503) say('Too many pages are kept up to date: close some.');
  else say('The connection to the server is lost; trying again.');
});

// Commands are copied by a button. Without HTTPS a page may not write to the clipboard, but for what is selected.
for (const text of document.querySelectorAll('[data-copy]')) {
  const button = document.createElement('button');
  button.type = 'button';
  button.className = 'copy';
  button.textContent = 'Copy';
  button.setAttribute('aria-live', 'polite');
  button.setAttribute('aria-description', text.textContent);
  button.addEventListener('click', async () => {
    let copied = false;
    if (navigator.clipboard) copied = await navigator.clipboard.writeText(text.textContent).then(() => true, () => false);
    if (!copied) {
      getSelection().selectAllChildren(text);
      copied = document.execCommand('copy');
    }
    button.textContent = copied ? 'Copied' : 'Selected: copy it';
  });
  text.after(button);
}

// What cannot be undone is done when it is meant.
document.addEventListener('submit', (event) => {
  const question = event.submitter?.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
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
const style = getComputedStyle(document.documentElement);
function colour(name) {
  const probe = document.createElement('i');
  probe.className = name;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
const line = (label, name, dash) => ({ label, stroke: colour(name), width: 1.5, dash, spanGaps: false });

// How numbers are written beside a chart: as 1.5K, 20M or, for microseconds, as 40 µs, 1.5 ms or 2 s.
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const counts = (_, all) => all.map((number) => compact.format(number));
const micros = (number) => number < 1e3 ? `${compact.format(number)} µs` : number < 1e6 ? `${compact.format(number / 1e3)} ms` : `${compact.format(number / 1e6)} s`;
const times = (_, all) => all.map(micros);
const room = (_, all) => 24 + 8 * Math.max(2, ...(all ?? []).map((text) => text.length));

const axis = (values = counts) => ({ stroke: style.color, grid: { stroke: colour('soft'), width: 0.25 }, values, size: room });
const timeAxis = () => ({ ...axis(values), space: 90, size: 50 });

// A chart that is as wide as its place. Its times are in UTC, as all others of a page, and at least a minute.
const range = (_, low, high) => [0, Math.max(high * 1.05, 1)];
const atLeast = (_, low, high) => [low, low && Math.max(high, low + 60)];
const tzDate = (at) => uPlot.tzDate(new Date(at * 1000), 'Etc/UTC');
const values = (_, all) => all.map((at) => new Date(at * 1000).toISOString().slice(11, 19) + 'Z');
function plot(target, height, { axes = [], left = axis(), ...options }, data) {
  const size = () => ({ width: target.clientWidth, height });
  const chart = new uPlot({
    ...size(), axes: [timeAxis(), left, ...axes], legend: { live: false }, cursor: { show: false },
    scales: { x: { range: atLeast }, y: { range }, weight: { range } }, tzDate, ...options,
  }, data, target);
  new ResizeObserver(() => chart.setSize(size())).observe(target);
  return chart;
}

// Without a server a chart stays as it is, and where it leads to the login.
async function ask(address) {
  const answer = await fetch(address, { redirect: 'error' }).catch(() => null);
  return answer && answer.ok ? answer.json() : null;
}

// What nodes have of a limit, one on top of the other, and the limit. The stream begins with all points, and goes
// on with new ones.
const shares = document.getElementById('shares');
if (shares) {
  const most = 360;
  // The last two columns are drawn below.
  const place = document.getElementById('below');
  const above = () => data.slice(0, -2);
  const below = () => [data[0], ...data.slice(-2)];
  let chart, second;
  let names = '';
  let data = [[]];
  const start = (got) => {
    names = got.names.join();
    chart?.destroy();
    second?.destroy();
    const area = (label, at) => {
      // Not red, like the limit; one node leaves its lines to be seen.
      const fill = `hsl(${40 + (160 + at * 67) % 280} 60% 55%${got.limit ? '' : ' / .3'})`;
      return { label, fill, stroke: fill, width: 1, points: { show: false } };
    };
    const lines = [line('demand', 'soft', [6, 3]), line('admitted', 'good', [2, 3])];
    if (got.limit) lines.unshift(line('the limit', 'bad'));
    chart = plot(shares, 260, { series: [{}, ...got.names.map(area).reverse(), ...lines] }, above());
    const right = { scale: 'weight' };
    const axes = got.limit ? [] : [{ ...axis(), ...right, side: 1, grid: { show: false } }];
    const series = got.limit ? [line('% refused', 'bad'), line('% answered degraded', 'warn', [6, 3])]
      : [{ ...line('weight, on the right', 'good', [6, 3]), ...right }, line('seconds', 'soft')];
    second = plot(place, 120, { axes, series: [{}, ...series] }, below());
  };
  shares.addEventListener('htmx:sseBeforeMessage', (event) => {
    event.preventDefault();
    const got = JSON.parse(event.detail.data);
    // The highest is drawn first, and what is below it over it.
    const news = [got.times, ...got.stacked.reverse(), ...[got.limit, got.demand, got.admitted, ...got.below].filter(Boolean)];
    const last = data[0].at(-1);
    const goesOn = names === got.names.join() && got.times[0] >= last;
    // The last step goes on as well.
    const kept = got.times[0] === last ? -1 : undefined;
    data = goesOn ? data.map((column, at) => [...column.slice(0, kept), ...news[at]].slice(-most)) : news;
    if (!goesOn) start(got);
    else if (!isPaused()) {
      chart.setData(above());
      second.setData(below());
    }
  });
}

const charts = document.getElementById('charts');
if (charts) {
  const plots = [
    { target: 'rates', columns: [0, 1, 2, 3], series: [line('allowed', 'good'), line('denied', 'bad', [6, 3]), line('denied in shadow', 'warn', [2, 3]), line('answered degraded', 'soft', [8, 2])] },
    { target: 'latency', columns: [4, 5], left: axis(times), series: [line('half within', 'good'), line('99 % within', 'bad', [6, 3])] },
  ];
  const most = { minutes: 300, hour: 360, day: 288 };
  let span = 'minutes';
  let data = [[], [[], [], [], [], [], []]];

  const draw = () => {
    for (const { chart, columns } of plots) chart.setData([data[0], ...columns.map((column) => data[1][column])]);
  };
  const load = async () => {
    data = await ask('/console/history.json?span=' + span) || data;
    draw();
  };
  for (const one of plots) {
    const empty = [[], ...one.columns.map(() => [])];
    one.chart = plot(document.getElementById(one.target), 190, { left: one.left, series: [{}, ...one.series] }, empty);
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
