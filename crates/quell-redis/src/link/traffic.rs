//! Traffic: the commands of one connection that wait, and those in flight; what a missing answer to each of
//! them means.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::resp::Value;
use tokio::sync::oneshot;

use super::command::Command;
use crate::flow::{FlowWindow, MAX_WAIT, Queue};

/// Most commands in flight: what a server answers in some 10 ms.
const MAX_IN_FLIGHT: usize = 1_024;

/// The window is never smaller than this, so that a distant server is kept busy.
const MIN_IN_FLIGHT: usize = 16;

/// If a connection was quiet for this long before a command without an answer, it is given up: a router or
/// firewall on the way may have forgotten it.
const QUIET: Duration = Duration::from_secs(1);

/// Reason why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// The command was not written, because the connection is closed.
    #[error("the connection was broken already")]
    Unsent,
    /// The command was not written, because earlier commands have no answer.
    #[error("earlier commands have no answer yet")]
    Silent,
    /// The command was not written, because too many commands wait.
    #[error("too many calls wait")]
    Overloaded,
    /// The command was written, and no answer came in time.
    #[error("no answer in time")]
    Late,
    /// The command was written, and the connection ended before the answer.
    #[error("the connection broke before the answer: {0}")]
    Broken(String),
}

type Caller = oneshot::Sender<Result<Value, NoAnswer>>;

/// The commands that wait and those in flight.
pub(super) struct Traffic {
    pub(super) timeout: Duration,
    waiting: Queue<Waiting>,
    on_the_way: VecDeque<SentCommand>,
    window: FlowWindow,
    /// Instant of the last answer.
    pub(super) heard: Instant,
    /// True if nothing was heard since the connection was idle for [`QUIET`].
    pub(super) was_quiet: bool,
    /// True if no caller uses the connection any more.
    pub(super) is_left: bool,
    pub(super) is_over: bool,
    pub(super) driver: Option<Waker>,
}

struct Waiting {
    command: Command,
    caller: Caller,
}

struct SentCommand {
    /// `None` once the caller was told that there is no answer in time.
    caller: Option<Caller>,
    /// Answers that are still to come.
    answers: usize,
    /// Instant at which the system took its bytes; before that, at which it entered.
    at: Instant,
    /// Bytes before it on this connection.
    offset: u64,
    /// True if more might have been sent.
    was_full: bool,
}

impl Traffic {
    /// None, on a connection that was opened now.
    pub(super) fn new(timeout: Duration, now: Instant) -> Self {
        Self {
            timeout,
            waiting: Queue::new(timeout * MAX_WAIT),
            on_the_way: VecDeque::new(),
            window: window(timeout),
            heard: now,
            was_quiet: false,
            is_left: false,
            is_over: false,
            driver: None,
        }
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        self.waiting.set_patience(timeout * MAX_WAIT);
        self.window = window(timeout);
    }

    /// Wakes the driver.
    pub(super) fn wake(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Takes a command in.
    pub(super) fn enter(
        &mut self,
        command: &Command,
        now: Instant,
    ) -> Result<oneshot::Receiver<Result<Value, NoAnswer>>, NoAnswer> {
        if self.is_over {
            return Err(NoAnswer::Unsent);
        }
        let (caller, answer) = oneshot::channel();
        let command = command.clone();
        let waiting = Waiting { command, caller };
        let entered = self.waiting.push(waiting, now);
        entered.map_err(|_| NoAnswer::Overloaded)?;
        self.wake();
        Ok(answer)
    }

    /// The next command to send, if the window has room; `offset` bytes were sent before it.
    pub(super) fn leave(&mut self, offset: u64, now: Instant) -> Option<Command> {
        while self.on_the_way.len() < self.window.size() {
            let Waiting { command, caller } = self.waiting.pop()?;
            if caller.is_closed() {
                continue;
            }
            if self.on_the_way.is_empty() && now.saturating_duration_since(self.heard) >= QUIET {
                self.was_quiet = true;
            }
            command.set_sent(now);
            self.on_the_way.push_back(SentCommand {
                caller: Some(caller),
                answers: command.answers(),
                at: now,
                offset,
                was_full: false,
            });
            return Some(command);
        }
        if !self.waiting.is_empty()
            && let Some(last) = self.on_the_way.back_mut()
        {
            last.was_full = true;
        }
        None
    }

    /// Notes that the system took bytes from `offset` on.
    pub(super) fn written(&mut self, offset: u64, now: Instant) {
        let sent = self.on_the_way.iter_mut().rev();
        for sent in sent.take_while(|sent| sent.offset >= offset) {
            sent.at = now;
        }
    }

    /// Hands out answers; returns the first that no command waits for.
    pub(super) fn hear(&mut self, answers: Vec<Value>, now: Instant) -> Option<Value> {
        self.heard = now;
        self.was_quiet = false;
        let (mut count, mut unasked) = (0, None);
        for answer in answers {
            let Some(sent) = self.on_the_way.front_mut() else {
                unasked = Some(answer);
                break;
            };
            sent.answers = sent.answers.saturating_sub(1);
            if sent.answers > 0 {
                continue;
            }
            count += 1;
            self.window.note_answer(sent.at, now, sent.was_full);
            let sent = self.on_the_way.pop_front();
            if let Some(caller) = sent.and_then(|sent| sent.caller) {
                // The caller may be gone.
                let _ = caller.send(Ok(answer));
            }
        }
        for refused in self.waiting.note_answers(count, now) {
            let _ = refused.caller.send(Err(NoAnswer::Overloaded));
        }
        unasked
    }

    /// Instant at which a command is late if no answer arrives until then.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let sent = self.on_the_way.iter().find(|sent| is_waited_for(sent));
        let sent = sent.map(|sent| self.deadline_of(sent));
        let oldest = self.waiting.oldest();
        let waiting = oldest.map(|oldest| oldest.max(self.heard) + self.timeout);
        sent.into_iter().chain(waiting).min()
    }

    fn deadline_of(&self, sent: &SentCommand) -> Instant {
        let silent = sent.at.max(self.heard) + self.timeout;
        silent.min(sent.at + self.timeout * 2)
    }

    /// Tells callers that have waited for too long that there is no answer; `written` bytes were written.
    pub(super) fn give_up(&mut self, now: Instant, written: u64) {
        let deadlines = self.on_the_way.iter().map(|sent| self.deadline_of(sent));
        let count = deadlines.take_while(|deadline| *deadline <= now).count();
        for sent in self.on_the_way.iter_mut().take(count) {
            if let Some(caller) = sent.caller.take() {
                let lost = match sent.offset < written {
                    true => NoAnswer::Late,
                    false => NoAnswer::Silent,
                };
                let _ = caller.send(Err(lost));
            }
        }
        let is_silent = now >= self.heard + self.timeout;
        if let Some(then) = now.checked_sub(self.timeout).filter(|_| is_silent) {
            for unsent in self.waiting.since(then) {
                let _ = unsent.caller.send(Err(NoAnswer::Silent));
            }
        }
    }

    /// Closes the connection; all commands beyond `written` bytes are unsent.
    pub(super) fn end(&mut self, reason: &str, written: u64) {
        self.is_over = true;
        for sent in std::mem::take(&mut self.on_the_way) {
            let lost = match sent.offset < written {
                true => NoAnswer::Broken(reason.to_owned()),
                false => NoAnswer::Unsent,
            };
            if let Some(caller) = sent.caller {
                let _ = caller.send(Err(lost));
            }
        }
        for waiting in self.waiting.take_all() {
            let _ = waiting.caller.send(Err(NoAnswer::Unsent));
        }
    }
}

/// The window shrinks when answers take longer than the quickest by a quarter of the timeout.
fn window(timeout: Duration) -> FlowWindow {
    FlowWindow::new(MIN_IN_FLIGHT, MAX_IN_FLIGHT, timeout / 4)
}

fn is_waited_for(sent: &SentCommand) -> bool {
    sent.caller.as_ref().is_some_and(|one| !one.is_closed())
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use shuttle::{future, thread};

    use super::*;
    use crate::resp::cmd;
    use crate::sync::{Mutex, model};

    /// The product's, by instants that a test gives.
    pub(crate) const TIMEOUT: Duration = crate::DEFAULT_TIMEOUT;

    pub(crate) type PendingReply = oneshot::Receiver<Result<Value, NoAnswer>>;

    pub(crate) fn command() -> Command {
        Command::from(&cmd("PING"))
    }

    pub(crate) fn enter(traffic: &mut Traffic, now: Instant) -> PendingReply {
        traffic.enter(&command(), now).unwrap()
    }

    pub(crate) fn heard(answer: &mut PendingReply) -> Option<Result<Value, NoAnswer>> {
        answer.try_recv().ok()
    }

    #[test]
    fn time_counts_from_the_socket_and_begins_anew_with_every_answer() {
        let start = Instant::now();
        let mut traffic = Traffic::new(TIMEOUT, start);
        let mut answers = [0; 3].map(|_| enter(&mut traffic, start));
        let sent = start + TIMEOUT / 2;
        while traffic.leave(0, start).is_some() {}
        traffic.written(0, sent);
        assert_eq!(traffic.deadline(), Some(sent + TIMEOUT));
        let later = sent + TIMEOUT - Duration::from_millis(1);
        traffic.hear(vec![Value::Okay], later);
        assert_eq!(heard(&mut answers[0]), Some(Ok(Value::Okay)));
        assert_eq!(traffic.deadline(), Some(later + TIMEOUT));
        // However much arrives, a command waits for at most twice as long.
        let last = sent + TIMEOUT * 2 - Duration::from_millis(1);
        traffic.hear(vec![Value::Okay], last);
        assert_eq!(traffic.deadline(), Some(sent + TIMEOUT * 2));
        traffic.give_up(sent + TIMEOUT * 2, 1);
        assert_eq!(heard(&mut answers[2]), Some(Err(NoAnswer::Late)));
        assert_eq!(traffic.deadline(), None);
    }

    #[test]
    fn what_was_not_written_was_not_sent() {
        let start = Instant::now();
        let mut traffic = Traffic::new(TIMEOUT, start);
        let mut answers: Vec<_> = (0..MAX_IN_FLIGHT + 1)
            .map(|_| enter(&mut traffic, start))
            .collect();
        let length = command().bytes().len() as u64;
        let mut offset = 0;
        while traffic.leave(offset, start).is_some() {
            offset += length;
        }
        assert_eq!(traffic.on_the_way.len(), MAX_IN_FLIGHT);
        // Of the second one byte was written.
        traffic.give_up(start + TIMEOUT, length + 1);
        for (index, answer) in answers.iter_mut().enumerate() {
            let lost = if index < 2 {
                NoAnswer::Late
            } else {
                NoAnswer::Silent
            };
            assert_eq!(heard(answer), Some(Err(lost)), "{index}");
        }
    }

    #[test]
    fn a_connection_that_was_quiet_for_long_is_doubted() {
        let start = Instant::now();
        let mut traffic = Traffic::new(TIMEOUT, start);
        let _answer = enter(&mut traffic, start);
        traffic.leave(0, start);
        assert!(!traffic.was_quiet);
        traffic.hear(vec![Value::Okay], start);
        let later = start + QUIET;
        let _answer = enter(&mut traffic, later);
        traffic.leave(0, later);
        assert!(traffic.was_quiet);
        traffic.hear(vec![Value::Okay], later);
        assert!(!traffic.was_quiet);
    }

    /// Every command gets exactly one result, whatever happens at the same time, and a command that was not
    /// written never counts as sent.
    #[test]
    fn every_command_has_one_end() {
        model::check(500, || {
            let start = Instant::now();
            let traffic = Arc::new(Mutex::new(Traffic::new(TIMEOUT, start)));
            let callers = (0..3).map(|number| {
                let traffic = Arc::clone(&traffic);
                thread::spawn(move || {
                    let entered = traffic.lock().enter(&command(), start);
                    match entered {
                        // One goes away.
                        Ok(_) if number == 1 => None,
                        Ok(answer) => Some(future::block_on(answer).expect("it is told")),
                        Err(lost) => Some(Err(lost)),
                    }
                })
            });
            let callers: Vec<_> = callers.collect();
            let driver = {
                let traffic = Arc::clone(&traffic);
                thread::spawn(move || {
                    let mut written = 0;
                    for turn in 0..4 {
                        let mut sent = 0;
                        while let Some(command) = traffic.lock().leave(written, start) {
                            written += command.bytes().len() as u64;
                            sent += 1;
                        }
                        thread::yield_now();
                        let answers = vec![Value::Int(turn); sent / 2];
                        let unasked = traffic.lock().hear(answers, start);
                        assert_eq!(unasked, None);
                    }
                    traffic.lock().give_up(start + TIMEOUT, written);
                    traffic.lock().end("it hung up", written);
                    written
                })
            };
            let written = driver.join().unwrap();
            let ends = callers.into_iter().filter_map(|one| one.join().unwrap());
            let ends: Vec<_> = ends.collect();
            assert_eq!(ends.len(), 2);
            let sent = ends
                .iter()
                .filter(|end| matches!(end, Ok(_) | Err(NoAnswer::Late | NoAnswer::Broken(_))));
            let most = written / command().bytes().len() as u64;
            assert!(sent.count() as u64 <= most, "{ends:?}");
            let traffic = traffic.lock();
            assert!(traffic.on_the_way.is_empty() && traffic.waiting.is_empty());
        });
    }
}
