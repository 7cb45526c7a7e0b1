//! Load on the nodes of a fleet, and the judge of what they admitted.

use std::io::{self, BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::process::{PATIENCE, until};

/// How long a caller waits that was refused, or that finds no node.
const PAUSE: Duration = Duration::from_millis(4);

/// The question of every call.
const QUESTION: &str = "{\"domain\":\"shop\",\"entries\":{}}";

/// A call that was admitted: at some instant between these two.
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
                    drop(ask((port, pause), &own_rests, is_over, note));
                    thread::sleep(PAUSE);
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
    (port, pause): (u16, Duration),
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
         Content-Length: {}\r\n\r\n{QUESTION}",
        QUESTION.len()
    );
    while !is_over() {
        if rests.load(Ordering::Relaxed) {
            thread::sleep(PAUSE);
            continue;
        }
        let asked = Instant::now();
        stream.write_all(request.as_bytes())?;
        let answer = read(&mut answers)?;
        let heard = Instant::now();
        if answer.contains("\"allowed\":true") {
            note(Admitted { asked, heard });
        } else {
            thread::sleep(PAUSE);
        }
        thread::sleep(pause);
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

/// By how many calls at most the fleet exceeded `burst + rate * t` in any interval of length t; negative if
/// it never came near. A call counts in an interval in which it was asked and heard.
pub(super) fn excess(admitted: &[Admitted], rate: f64, burst: f64) -> f64 {
    let mut by_end = admitted.to_vec();
    by_end.sort_by_key(|call| call.heard);
    let mut worst = f64::NEG_INFINITY;
    for from in admitted.iter().map(|call| call.asked) {
        let mut count = 0.0;
        for call in by_end.iter().filter(|call| call.asked >= from) {
            count += 1.0;
            let during = call.heard.duration_since(from).as_secs_f64();
            worst = f64::max(worst, count - burst - rate * during);
        }
    }
    worst
}

/// The judge sees an excess of a few calls among many.
#[test]
fn the_judge_sees_what_exceeds_a_limit() {
    let begin = Instant::now();
    let at = |millis: u64| {
        let asked = begin + Duration::from_millis(millis);
        let heard = asked + Duration::from_millis(1);
        Admitted { asked, heard }
    };
    // 100/s with a burst of 10 that is used at the beginning.
    let mut calls: Vec<Admitted> = (0..10).map(|_| at(0)).collect();
    calls.extend((1..200).map(|n| at(n * 10)));
    assert!(excess(&calls, 100.0, 10.0) <= 0.0);
    calls.extend((0..3).map(|_| at(1_000)));
    let worst = excess(&calls, 100.0, 10.0);
    assert!((2.0..3.0).contains(&worst), "{worst}");
}
