//! Load on the nodes of a fleet; the fleet's own auditor judges what they admitted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use quell_core::time::Monotonic;
use quell_shares::audit::Auditor;
use quell_shares::plan::{Drift, MICRO};

use crate::process::{PATIENCE, pace_by, until};

/// Pause of a caller that was refused, or that finds no node.
const PAUSE: Duration = Duration::from_millis(8);

/// The question of a call, unless a test has another.
const QUESTION: &str = r#"{"domain":"shop","entries":{}}"#;

/// A call that was admitted: at some instant between these two of the host's clock, which all callers read.
#[derive(Clone, Copy)]
pub(super) struct Admitted {
    pub(super) asked: Instant,
    pub(super) heard: Instant,
}

/// One caller of one node, which asks for as long as it is not told otherwise.
struct Caller {
    count: Arc<AtomicU64>,
    rests: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// A caller of each node.
pub(super) struct Load {
    callers: Vec<Caller>,
    stop: Arc<AtomicBool>,
    admitted: Arc<Mutex<Vec<Admitted>>>,
}

impl Load {
    /// Begins to ask the nodes at these ports.
    pub(super) fn on(ports: impl IntoIterator<Item = u16>) -> Self {
        Self::paced(ports, Duration::ZERO)
    }

    /// The same, with a pause after each answer, so that the nodes have time to spare.
    pub(super) fn paced(ports: impl IntoIterator<Item = u16>, pause: Duration) -> Self {
        Self::asking(QUESTION, ports, pause)
    }

    /// The same, with another question.
    pub(super) fn asking(
        question: &'static str,
        ports: impl IntoIterator<Item = u16>,
        pause: Duration,
    ) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let admitted = Arc::<Mutex<Vec<Admitted>>>::default();
        let caller = |port| {
            let (count, rests) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
            let (own, own_rests) = (Arc::clone(&count), Arc::clone(&rests));
            let (stop, admitted) = (Arc::clone(&stop), Arc::clone(&admitted));
            let thread = thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let is_over = || stop.load(Ordering::Relaxed);
                    let note = |call| {
                        admitted.lock().unwrap().push(call);
                        own.fetch_add(1, Ordering::Relaxed);
                    };
                    // The node is gone; perhaps it comes back.
                    drop(ask((port, question, pause), &own_rests, is_over, note));
                    pace_by(PAUSE);
                }
            });
            Caller {
                count,
                rests,
                thread,
            }
        };
        let callers = ports.into_iter().map(caller).collect();
        Self {
            callers,
            stop,
            admitted,
        }
    }

    /// Only these nodes are asked from now on.
    pub(super) fn only(&self, nodes: &[usize]) {
        for (at, caller) in self.callers.iter().enumerate() {
            caller.rests.store(!nodes.contains(&at), Ordering::Relaxed);
        }
    }

    /// Waits until each of these nodes has admitted so many more calls.
    pub(super) fn until_more(&self, what: &str, nodes: &[usize], more: u64) {
        let count = |at: usize| self.callers[at].count.load(Ordering::Relaxed);
        let before: Vec<u64> = nodes.iter().map(|at| count(*at)).collect();
        until(what, || {
            let mut all = nodes.iter().zip(&before);
            all.all(|(at, before)| count(*at) >= before + more)
                .then_some(())
        });
    }

    /// Ends, and returns all calls that were admitted.
    pub(super) fn end(self) -> Vec<Admitted> {
        self.stop.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.thread.join().unwrap();
        }
        std::mem::take(&mut *self.admitted.lock().unwrap())
    }
}

/// Asks on one connection until it breaks.
fn ask(
    (port, question, pause): (u16, &str, Duration),
    rests: &AtomicBool,
    is_over: impl Fn() -> bool,
    note: impl Fn(Admitted),
) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let request = format!(
        "POST /v1/acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{question}",
        question.len()
    );
    while !is_over() {
        if rests.load(Ordering::Relaxed) {
            pace_by(PAUSE);
            continue;
        }
        let asked = Instant::now();
        stream.write_all(request.as_bytes())?;
        let answer = read(&mut answers)?;
        let heard = Instant::now();
        if answer.contains("\"allowed\":true") {
            note(Admitted { asked, heard });
        } else {
            pace_by(PAUSE);
        }
        pace_by(pause);
    }
    Ok(())
}

/// The body of the next answer.
fn read(answers: &mut impl BufRead) -> io::Result<String> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if answers.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    answers.read_exact(&mut body)?;
    Ok(String::from_utf8(body).unwrap())
}

/// Fails unless the fleet's auditor finds no excess over `rate` per second and `burst`. Clocks may drift by a
/// thousandth.
pub(super) fn judge(admitted: &[Admitted], rate: u64, burst: u64) {
    let excess = excess(admitted, rate, burst);
    let took = |call: &Admitted| call.heard - call.asked;
    let longest = admitted.iter().map(took).max().unwrap_or_default();
    let count = admitted.len();
    assert_eq!(
        excess, 0,
        "{excess} of {count} calls are too many; an answer took {longest:?} at most"
    );
}

/// By how many whole units the auditor finds `burst + rate * t` exceeded, at worst.
///
/// Each call is one admission at an instant that suits the fleet best, of those between its question and its
/// answer. So what is found is an excess wherever in these spans calls were admitted. A call whose answer was
/// lost, because its node was killed, is not counted: at most one for each caller and kill.
pub(super) fn excess(admitted: &[Admitted], rate: u64, burst: u64) -> u64 {
    let mut calls = admitted.to_vec();
    calls.sort_by_key(|call| call.asked);
    let Some(first) = calls.first().map(|call| call.asked) else {
        return 0;
    };
    let on_host = |at: Instant| Monotonic::ORIGIN.saturating_add(at - first);
    let mut audit = SpanAudit::new(rate * MICRO, burst * MICRO);
    for call in calls {
        audit.judge(on_host(call.asked));
        audit.open.push(Reverse(on_host(call.heard)));
    }
    audit.judge(Monotonic::from_nanos(u64::MAX));
    audit.worst / MICRO
}

/// The auditor of the fleet, fed with calls of which only a span is known.
struct SpanAudit {
    auditor: Auditor,
    rate: u64,
    burst: u64,
    now: Monotonic,
    /// Instants of the answers to calls that are not judged yet.
    open: BinaryHeap<Reverse<Monotonic>>,
    /// In micro-units.
    worst: u64,
}

impl SpanAudit {
    fn new(rate: u64, burst: u64) -> Self {
        let now = Monotonic::ORIGIN;
        Self {
            auditor: Auditor::new(rate, burst, Drift::new(1_000), now),
            rate,
            burst,
            now,
            open: BinaryHeap::new(),
            worst: 0,
        }
    }

    /// Judges open calls up to an instant: each when its answer was heard, or before, when the bucket is full.
    /// Then the unit would overflow else. It is taken whole, a moment before all of it would, so less than
    /// one unit of excess may be found where there is none.
    fn judge(&mut self, until: Monotonic) {
        while let Some(Reverse(heard)) = self.open.peek() {
            let at = self.full_at().min(*heard);
            if at > until {
                break;
            }
            self.open.pop();
            self.now = at;
            let excess = self.auditor.admit(at, MICRO);
            self.worst = self.worst.max(excess.unwrap_or(0));
        }
        self.now = until;
    }

    /// Instant at which the bucket will be full, if nothing is admitted before.
    fn full_at(&self) -> Monotonic {
        // All of the burst fits only then.
        let missing = self.auditor.clone().admit(self.now, self.burst);
        let nanos = u128::from(missing.unwrap_or(0)) * 1_000_000_000 / u128::from(self.rate);
        let nanos = u64::try_from(nanos).unwrap();
        self.now.saturating_add(Duration::from_nanos(nanos))
    }
}

/// Calls at these milliseconds, each answered `took` later.
fn calls(millis: impl IntoIterator<Item = u64>, took: Duration) -> Vec<Admitted> {
    let begin = Instant::now();
    let call = |millis| {
        let asked = begin + Duration::from_millis(millis);
        let heard = asked + took;
        Admitted { asked, heard }
    };
    millis.into_iter().map(call).collect()
}

/// 100/s for 2 s, with a burst of 10 that is used at the beginning.
fn all_of_a_limit() -> impl Iterator<Item = u64> {
    std::iter::repeat_n(0, 10).chain((1..200).map(|n| n * 10))
}

#[test]
fn the_auditor_finds_a_few_calls_too_many() {
    let took = Duration::from_millis(1);
    assert_eq!(excess(&calls(all_of_a_limit(), took), 100, 10), 0);
    let more = all_of_a_limit().chain([1_000; 3]);
    assert_eq!(excess(&calls(more, took), 100, 10), 2);
    assert_eq!(excess(&[], 100, 10), 0);
}

#[test]
#[should_panic(expected = "calls are too many; an answer took 1ms at most")]
fn the_auditor_finds_twice_the_limit() {
    let twice = all_of_a_limit().flat_map(|at| [at, at]);
    judge(&calls(twice, Duration::from_millis(1)), 100, 10);
}

/// Twice the limit is found however long answers take, once it lasts for longer.
#[test]
fn what_is_not_known_is_for_the_fleet_and_no_more() {
    let twice = || all_of_a_limit().flat_map(|at| [at, at]);
    let found = |took| excess(&calls(twice(), Duration::from_millis(took)), 100, 10);
    let [all, some, none] = [1, 500, 3_000].map(found);
    // 418 calls in 1.99 s, 2.49 s and 4.99 s, by when the last answers are heard.
    assert_eq!([all, some, none], [208, 158, 0]);
    // A node stood still with five calls while the others used all of the limit.
    let frozen = |seconds| {
        let mut fleet = calls(all_of_a_limit(), Duration::from_millis(1));
        let asked = fleet[0].asked;
        let heard = asked + Duration::from_secs(seconds);
        fleet.extend([Admitted { asked, heard }; 5]);
        excess(&fleet, 100, 10)
    };
    // After 4 s there is room for them; 10 + 99 + 5 in the first second are 3.9 too many.
    assert_eq!(frozen(4), 0);
    assert!((3..=4).contains(&frozen(1)));
}
