// The status page. What comes from clients (keys, client ids) is only ever put in as text.
'use strict';

const element = id => document.getElementById(id);
const many = 120; // pictures in the chart
const history = [];
let before = null; // the last picture
let source = null;
let retry = 0;

const text = bytes => bytes.text !== undefined ? bytes.text : bytes.base64 ? `base64 ${bytes.base64}` : '';
const number = value => value.toLocaleString('en');

function duration(milliseconds) {
  const s = milliseconds / 1000;
  if (Math.abs(s) < 1) return `${Math.round(milliseconds)} ms`;
  if (s < 120) return `${s.toFixed(1)} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  return s < 172800 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB'];
  let i = 0;
  for (; bytes >= 1024 && i < units.length - 1; i++) bytes /= 1024;
  return `${i ? bytes.toFixed(1) : bytes} ${units[i]}`;
}

// Rows are arrays of cells: a text, or [text, class].
function fill(id, rows, none) {
  const body = element(id).tBodies[0];
  const width = element(id).tHead.rows[0].cells.length;
  body.replaceChildren(...(rows.length ? rows : [[[none, 'none']]]).map(cells => {
    const row = document.createElement('tr');
    for (const cell of cells) {
      const td = document.createElement('td');
      const [content, kind] = Array.isArray(cell) ? cell : [cell, ''];
      td.textContent = content;
      if (kind) td.className = kind;
      if (kind === 'none') td.colSpan = width;
      row.append(td);
    }
    return row;
  }));
}

const activityOf = (picture, node) => picture && picture.activities.find(a => a.node === node);
const timesOf = (activity, name) => activity && activity.times.find(h => h.name === name);
const answered = activity => activity ? activity.requests.reduce((sum, c) => sum + c.count, 0) : 0;

// The time that a share of what happened between two pictures took at most, in milliseconds; null when nothing did.
function quantile(now, was, share) {
  if (!now) return null;
  const earlier = i => was ? was.buckets[i].count : 0;
  const count = now.count - (was ? was.count : 0);
  if (count <= 0) return null;
  const i = now.buckets.findIndex((b, i) => b.count - earlier(i) >= share * count);
  return i < 0 ? Infinity : now.buckets[i].micros / 1000;
}

const atMost = ms => ms === null ? '–' : ms === Infinity ? '> 6.5 s' : ms < 1 ? `≤ ${ms.toFixed(2)} ms` : `≤ ${duration(ms)}`;

function showRates(picture) {
  const seconds = before ? (new Date(picture.time) - new Date(before.time)) / 1000 : 0;
  let rate = 0;
  for (const activity of picture.activities) {
    const was = activityOf(before, activity.node);
    if (was && seconds > 0 && answered(activity) >= answered(was)) rate += (answered(activity) - answered(was)) / seconds;
  }
  const leader = activityOf(picture, picture.leader), was = activityOf(before, picture.leader);
  const stage = name => {
    const now = timesOf(leader, name), earlier = timesOf(was, name);
    const valid = now && earlier && now.count >= earlier.count;
    return valid ? `${atMost(quantile(now, earlier, .5))}` + (quantile(now, earlier, .99) === null ? '' : ` · p99 ${atMost(quantile(now, earlier, .99))}`) : '–';
  };
  const own = leader || picture.activities[0];
  const facts = [
    ['requests/s', before ? number(Math.round(rate)) : '–'],
    ['queue p50', stage('queue')], ['commit p50', stage('commit')], ['publish p50', stage('publish')],
    ['keys', own ? `${number(own.keys)} (${size(own.bytes)})` : '–'], ['watches', own ? number(own.watches) : '–'],
    ['term', own ? number(own.term) : '–'],
  ];
  element('rates').replaceChildren(...facts.map(([name, value]) => {
    const box = document.createElement('div'), dt = document.createElement('dt'), dd = document.createElement('dd');
    dt.textContent = name;
    dd.textContent = value;
    box.append(dt, dd);
    return box;
  }));
  if (before) history.push(rate);
  if (history.length > many) history.shift();
  const top = Math.max(1, ...history);
  element('chart').firstElementChild.setAttribute('points', history.map((r, i) => `${(i + many - history.length) * 240 / (many - 1)},${39 - 37 * r / top}`).join(' '));
}

function showMembers(picture) {
  fill('members', picture.members.map(member => {
    const activity = activityOf(picture, member.node), was = activityOf(before, member.node);
    if (!activity) return [member.node, [member.state, 'bad'], '', '', '', '', '', ['does not answer', 'bad']];
    const role = member.state === 'leader' && !activity.serving ? 'leader, not serving yet' : member.voter ? member.state : `${member.state}, non-voter`;
    const probe = was ? quantile(timesOf(activity, 'probe'), timesOf(was, 'probe'), 1) : null;
    const says = activity.ready === 'ok' ? activity.notes : [activity.ready, ...activity.notes];
    return [
      member.node, [role, member.state === 'leader' ? 'good' : ''], `${number(member.trailsLeaderBy)} entries`, `${activity.clockOffset > 0 ? '+' : ''}${activity.clockOffset} ms`,
      activity.brokerConnected ? [`connected${activity.brokerLosses ? `, lost ${number(activity.brokerLosses)} ×` : ''}`, 'good'] : ['not connected', 'bad'],
      atMost(probe), number(activity.leaderChanges), says.length ? [says.join('; '), 'bad'] : ['ok', 'good'],
    ];
  }), 'no member is known');
}

function mirrorState(mirrors) {
  if (mirrors.fault) return `${mirrors.connected ? 'no comparison' : 'no connection'} since ${duration(mirrors.lag)}: ${mirrors.fault}`;
  if (mirrors.refused) return `the broker refuses ${number(mirrors.refused)} topics`;
  if (mirrors.inSync) return `the broker has what they show${mirrors.unshown ? `; ${number(mirrors.unshown)} keys make no topic, and are not shown` : ''}`;
  if (mirrors.comparing) return `compared with the broker since ${duration(mirrors.lag)}`;
  if (mirrors.dropped) return 'the broker drops retained messages';
  if (mirrors.unretained) return `the broker does not retain ${number(mirrors.unretained)} topics`;
  return `${number(mirrors.lagTopics)} topics are not in line yet, since ${duration(mirrors.lag)}`;
}

function showOverview(picture) {
  const overview = picture.overview;
  if (!overview) {
    for (const id of ['keys', 'locks', 'watches', 'mirrors']) fill(id, [], 'no leader: unknown');
    for (const id of ['count', 'mirrored']) element(id).textContent = '';
    return;
  }
  const live = key => key.ttl === null ? 'no expiry' : duration(key.ttl);
  fill('keys', overview.keys.map(key => [text(key.key), number(key.size), live(key), key.token || '', key.watchers.join(', ')]), 'none');
  fill('locks', overview.locks.map(key => [text(key.key), text(key.value), live(key), key.version]), 'none');
  fill('watches', overview.watches.map(watch => [text(watch.key) + (watch.pattern ? ' (pattern)' : ''), watch.client, `${duration(watch.age)} ago`]), 'none');
  const mirrors = overview.mirrors;
  fill('mirrors', mirrors.mirrors.map(mirror => [mirror.keys, `${mirror.topic}…`]), 'none');
  element('mirrored').textContent = mirrors.mirrors.length ? mirrorState(mirrors) : '';
  element('mirrored').className = mirrors.inSync ? '' : 'bad';
  element('count').textContent = overview.more ? `the first ${overview.keys.length} keys, ${overview.locks.length} locks and ${overview.watches.length} watches` : '';
}

function show(picture) {
  const silent = picture.members.length - picture.activities.length;
  const state = element('state');
  state.textContent = picture.leader ? `${picture.leader} leads · ${picture.members.length} members · version ${picture.version}` : 'no leader';
  if (silent > 0) state.textContent += ` · ${silent} ${silent === 1 ? 'member does' : 'members do'} not answer`;
  state.className = picture.leader && silent === 0 ? '' : 'bad';
  showRates(picture);
  showMembers(picture);
  showOverview(picture);
  before = picture;
}

function listen() {
  if (source) source.close();
  source = new EventSource(`events?prefix=${encodeURIComponent(element('prefix').value)}`);
  source.onmessage = event => show(JSON.parse(event.data));
  source.onerror = () => {
    element('state').textContent = `the node does not answer${before ? `, last at ${new Date(before.time).toLocaleTimeString()}` : ''}; trying again`;
    element('state').className = 'bad';
    if (source.readyState === EventSource.CLOSED) { // refused: too many pages are open, perhaps. The browser does not try again by itself.
      clearTimeout(retry);
      retry = setTimeout(listen, 5000);
    }
  };
}

// A page that nobody looks at costs nothing.
document.addEventListener('visibilitychange', () => {
  clearTimeout(retry);
  if (!document.hidden) listen();
  else if (source) source.close();
});

let typing = 0;
element('prefix').addEventListener('input', () => {
  clearTimeout(typing);
  typing = setTimeout(listen, 300);
});
element('filter').addEventListener('submit', event => {
  event.preventDefault();
  listen();
});
listen();
