//! Connection: pipelines commands to one server, matches answers in order, and decides what a missing
//! answer means.
//!
//! ```text
//! call -> queue -> in flight, as many as the window has room for -> answered
//!           |            '- nothing read for a timeout ----------> unknown
//!           '- nothing read for a timeout, or queue full --------> not sent
//! ```
//!
//! One task writes and reads; its state is in [`Traffic`]. It reads everything that has arrived before it
//! calls a command late, and checks again a moment later. A check that itself runs late proves nothing:
//! this process had no processor time, and may have answers that it has not read. So it checks again after
//! the same time, and believes two checks in a row between which it had time. A busy process is therefore
//! not mistaken for a silent server.
//!
//! The time of a command counts from when the system took its bytes, and starts again with every answer
//! that arrives: commands behind others are not late while those are answered. The limit is twice the
//! timeout, whatever arrives.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::command::Command;
use super::reply;
use crate::flow::{MAX_WAIT, Queue, Window};
use crate::sync::Mutex;

/// Most commands in flight: what a server answers in some 10 ms.
const MAX_IN_FLIGHT: usize = 1_024;

/// The window is never smaller than this, so that a distant server is kept busy.
const MIN_IN_FLIGHT: usize = 16;

/// Bytes that wait to be written before more are added.
const OUTPUT: usize = 64 * 1_024;

/// The size of the input buffer, before it grows.
const INPUT: usize = 16 * 1_024;

/// The longest incomplete answer: some ten times the longest that we ask for.
const MAX_INPUT: usize = 64 * 1_024 * 1_024;

/// The time between two checks for a late answer: one turn of the runtime, in which it learns what has
/// arrived. If the last check was late, the time is longer by as much.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// Two checks that are further apart prove nothing. Timers are often a millisecond or two late.
const LATE_CHECK: Duration = Duration::from_millis(4);

/// After so many checks an answer is late, however little processor time this process has.
const MAX_CHECKS: u32 = 8;

/// If a connection was quiet for this long before a command without an answer, it is given up: a router or
/// firewall on the way may have forgotten it.
const QUIET: Duration = Duration::from_secs(1);

/// Why a command has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoAnswer {
    /// Nothing of it was written, because the connection is closed.
    #[error("the connection was broken already")]
    Unsent,
    /// Nothing of it was written, because earlier commands have no answer.
    #[error("no answer to what was sent before")]
    Silent,
    /// Nothing of it was written, because too many commands wait.
    #[error("too many calls wait")]
    Overloaded,
    /// It was written, and there was no answer in time.
    #[error("no answer in time")]
    Late,
    /// It was written, and the connection ended before the answer.
    #[error("the connection broke before the answer: {0}")]
    Broken(String),
}

type Caller = oneshot::Sender<Result<Value, NoAnswer>>;

/// Sends commands. The connection is closed when the last copy is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    end: Arc<End>,
}

struct End {
    traffic: Arc<Mutex<Traffic>>,
}

impl Drop for End {
    fn drop(&mut self) {
        let mut traffic = self.traffic.lock();
        traffic.is_left = true;
        traffic.wake();
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    /// The connection over `stream`, and the driver that a task has to run.
    pub(super) fn new<S>(stream: S, timeout: Duration) -> (Self, Driver<S>) {
        let traffic = Arc::new(Mutex::new(Traffic::new(timeout, Instant::now())));
        let end = Arc::new(End {
            traffic: Arc::clone(&traffic),
        });
        let driver = Driver {
            stream,
            traffic,
            input: vec![0; INPUT],
            filled: 0,
            output: Vec::new(),
            unwritten: 0,
            sent: 0,
            sleep: Box::pin(tokio::time::sleep(Duration::ZERO)),
            armed: None,
            looks: 0,
            looked: None,
        };
        (Self { end }, driver)
    }

    /// Changes how long a command may take. Called before the first call of a user.
    pub(super) fn set_timeout(&self, timeout: Duration) {
        let mut traffic = self.end.traffic.lock();
        traffic.timeout = timeout;
        traffic.waiting.set_patience(timeout * MAX_WAIT);
        traffic.window = window(timeout);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.end, &other.end)
    }

    /// Whether nothing can be sent any more.
    pub(super) fn is_over(&self) -> bool {
        self.end.traffic.lock().is_over
    }

    /// Whether any answer came since then.
    pub(super) fn is_heard_since(&self, then: Instant) -> bool {
        self.end.traffic.lock().heard >= then
    }

    /// Sends a command and waits for its last answer.
    pub(super) async fn call(&self, command: &Command) -> Result<Value, NoAnswer> {
        tracing::trace!("a command enters its connection");
        let answer = self.end.traffic.lock().enter(command, Instant::now())?;
        command.set_on_connection(true);
        let answer = answer.await;
        command.set_on_connection(false);
        // The driver answers all commands, also when it is dropped.
        answer.unwrap_or(Err(NoAnswer::Unsent))
    }
}

/// The commands that wait and those in flight.
struct Traffic {
    timeout: Duration,
    waiting: Queue<Waiting>,
    on_the_way: VecDeque<Sent>,
    window: Window,
    /// When the last answer came.
    heard: Instant,
    /// Whether nothing was heard since the connection was idle for [`QUIET`].
    was_quiet: bool,
    /// Whether the last [`Connection`] was dropped.
    is_left: bool,
    is_over: bool,
    driver: Option<Waker>,
}

struct Waiting {
    command: Command,
    caller: Caller,
}

struct Sent {
    /// `None` once the caller was told that there is no answer in time.
    caller: Option<Caller>,
    /// Answers that are still to come.
    answers: usize,
    /// When the system took its bytes; before that, when it entered.
    at: Instant,
    /// Bytes before it on this connection.
    offset: u64,
    /// Whether more might have been sent.
    was_full: bool,
}

impl Traffic {
    fn new(timeout: Duration, now: Instant) -> Self {
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

    fn wake(&mut self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    /// Takes a command in.
    fn enter(
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
    fn leave(&mut self, offset: u64, now: Instant) -> Option<Command> {
        while self.on_the_way.len() < self.window.size() {
            let Waiting { command, caller } = self.waiting.pop()?;
            if caller.is_closed() {
                continue;
            }
            if self.on_the_way.is_empty() && now.saturating_duration_since(self.heard) >= QUIET {
                self.was_quiet = true;
            }
            command.set_sent(now);
            self.on_the_way.push_back(Sent {
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
    fn written(&mut self, offset: u64, now: Instant) {
        let sent = self.on_the_way.iter_mut().rev();
        for sent in sent.take_while(|sent| sent.offset >= offset) {
            sent.at = now;
        }
    }

    /// Hands out answers; returns the first that no command waits for.
    fn hear(&mut self, answers: Vec<Value>, now: Instant) -> Option<Value> {
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
            self.window.answered(sent.at, now, sent.was_full);
            let sent = self.on_the_way.pop_front();
            if let Some(caller) = sent.and_then(|sent| sent.caller) {
                // The caller may be gone.
                let _ = caller.send(Ok(answer));
            }
        }
        for refused in self.waiting.answered(count, now) {
            let _ = refused.caller.send(Err(NoAnswer::Overloaded));
        }
        unasked
    }

    /// When a command is late if no answer arrives until then.
    fn deadline(&self) -> Option<Instant> {
        let sent = self.on_the_way.iter().find(|sent| is_waited_for(sent));
        let sent = sent.map(|sent| self.deadline_of(sent));
        let oldest = self.waiting.oldest();
        let waiting = oldest.map(|oldest| oldest.max(self.heard) + self.timeout);
        sent.into_iter().chain(waiting).min()
    }

    fn deadline_of(&self, sent: &Sent) -> Instant {
        let silent = sent.at.max(self.heard) + self.timeout;
        silent.min(sent.at + self.timeout * 2)
    }

    /// Tells callers that have waited for too long that there is no answer; `written` bytes were written.
    fn give_up(&mut self, now: Instant, written: u64) {
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
    fn end(&mut self, reason: &str, written: u64) {
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
fn window(timeout: Duration) -> Window {
    Window::new(MIN_IN_FLIGHT, MAX_IN_FLIGHT, timeout / 4)
}

/// The reason to close a connection on which an answer came that no command waits for. A server that
/// turns a client away says why.
fn said_unasked(answer: &Value) -> String {
    match answer {
        Value::ServerError(error) => {
            let text: String = error.to_string().chars().take(200).collect();
            format!("it said without being asked: {text}")
        }
        _ => "it answered what nobody asked".to_owned(),
    }
}

fn is_waited_for(sent: &Sent) -> bool {
    sent.caller.as_ref().is_some_and(|one| !one.is_closed())
}

/// Writes commands and reads answers.
pub(super) struct Driver<S> {
    stream: S,
    traffic: Arc<Mutex<Traffic>>,
    input: Vec<u8>,
    /// How many bytes of `input` have arrived.
    filled: usize,
    output: Vec<u8>,
    /// Where the unwritten part of `output` begins.
    unwritten: usize,
    /// How many bytes the system took so far.
    sent: u64,
    sleep: Pin<Box<Sleep>>,
    /// When `sleep` ends, if it does.
    armed: Option<Instant>,
    /// How many checks for late answers were made in a row, and when the last was.
    looks: u32,
    looked: Option<Instant>,
}

impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        let mut traffic = self.traffic.lock();
        traffic.end("the runtime that drove the connection ended", self.sent);
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Driver<S> {
    /// Drives the connection to its end.
    pub(super) async fn run(mut self) {
        let reason = poll_fn(|context| self.poll(context)).await;
        self.traffic.lock().end(&reason, self.sent);
    }

    /// Ready with the reason when it is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<String> {
        {
            let mut traffic = self.traffic.lock();
            if traffic.is_left {
                return Poll::Ready("nobody uses it any more".to_owned());
            }
            if !traffic
                .driver
                .as_ref()
                .is_some_and(|one| one.will_wake(context.waker()))
            {
                traffic.driver = Some(context.waker().clone());
            }
        }
        // Before reading, so that all that arrived until then is read before an answer counts as late.
        let is_over = self.armed.is_some() && self.sleep.as_mut().poll(context).is_ready();
        let due = if is_over { self.armed.take() } else { None };
        loop {
            let has_read = match self.read(context) {
                Ok(has_read) => has_read,
                Err(reason) => return Poll::Ready(reason),
            };
            match self.write(context) {
                Ok(true) => {}
                Ok(false) if has_read => {}
                Ok(false) => break,
                Err(error) => return Poll::Ready(error.to_string()),
            }
        }
        self.watch(context, due)
    }

    /// Reads all that has arrived; returns whether anything has.
    fn read(&mut self, context: &mut Context<'_>) -> Result<bool, String> {
        let mut has_read = false;
        loop {
            if self.filled == self.input.len() {
                self.hear()?;
                self.make_room()?;
            }
            let mut buffer = ReadBuf::new(self.input.get_mut(self.filled..).unwrap_or_default());
            let read = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
            let count = buffer.filled().len();
            let end = match read {
                Poll::Ready(Ok(())) if count > 0 => {
                    self.filled += count;
                    has_read = true;
                    continue;
                }
                Poll::Pending => None,
                Poll::Ready(Ok(())) => Some("it hung up".to_owned()),
                Poll::Ready(Err(error)) => Some(error.to_string()),
            };
            self.hear()?;
            return end.map_or(Ok(has_read), Err);
        }
    }

    /// Grows the input buffer if an answer does not fit into it.
    fn make_room(&mut self) -> Result<(), String> {
        let length = self.input.len();
        if self.filled < length {
            return Ok(());
        }
        if length >= MAX_INPUT {
            return Err(format!("an answer of more than {MAX_INPUT} bytes"));
        }
        self.input.resize((length * 2).min(MAX_INPUT), 0);
        Ok(())
    }

    /// Takes complete answers out of the input buffer.
    fn hear(&mut self) -> Result<(), String> {
        let (mut answers, mut begin) = (Vec::new(), 0);
        let garbled = loop {
            let rest = self.input.get(begin..self.filled).unwrap_or_default();
            match reply::read(rest) {
                Ok(Some((answer, length))) => {
                    answers.push(answer);
                    begin += length;
                }
                Ok(None) => break None,
                Err(garbled) => break Some(garbled),
            }
        };
        if !answers.is_empty() {
            self.looked = None;
            // Answers that follow would be taken for answers to other commands.
            if let Some(unasked) = self.traffic.lock().hear(answers, Instant::now()) {
                return Err(said_unasked(&unasked));
            }
            self.input.copy_within(begin..self.filled, 0);
            self.filled -= begin;
            if self.filled == 0 && self.input.len() > INPUT {
                self.input = vec![0; INPUT];
            }
        }
        garbled.map_or(Ok(()), |garbled| Err(garbled.to_string()))
    }

    /// Writes commands for which the window has room; returns whether anything was written.
    fn write(&mut self, context: &mut Context<'_>) -> std::io::Result<bool> {
        if self.unwritten == self.output.len() {
            self.output.clear();
            self.unwritten = 0;
            let mut traffic = self.traffic.lock();
            let now = Instant::now();
            while self.output.len() < OUTPUT
                && let Some(command) = traffic.leave(self.sent + self.output.len() as u64, now)
            {
                self.output.extend_from_slice(command.bytes());
            }
        }
        let mut has_written = false;
        while let Some(rest) = self
            .output
            .get(self.unwritten..)
            .filter(|rest| !rest.is_empty())
        {
            match Pin::new(&mut self.stream).poll_write(context, rest) {
                Poll::Pending => return Ok(has_written),
                Poll::Ready(Ok(0)) => return Err(std::io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => {
                    self.traffic.lock().written(self.sent, Instant::now());
                    self.unwritten += count;
                    self.sent += count as u64;
                    has_written = true;
                }
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(has_written),
        }
    }

    /// Checks for late answers; `due` is when this check was due, if a timer started it.
    fn watch(&mut self, context: &mut Context<'_>, due: Option<Instant>) -> Poll<String> {
        let mut traffic = self.traffic.lock();
        let now = Instant::now();
        let late = due.map_or(Duration::ZERO, |due| now.saturating_duration_since(due));
        let mut deadline = traffic.deadline();
        if deadline.is_none_or(|deadline| deadline > now) {
            self.looked = None;
        } else if due.is_some() {
            let before = self.looked.replace(now);
            self.looks = before.map_or(1, |_| self.looks + 1);
            let had_time = before.is_some_and(|before| now - before <= LATE_CHECK);
            if had_time || self.looks >= MAX_CHECKS {
                traffic.give_up(now, self.sent);
                if traffic.was_quiet || self.unwritten < self.output.len() {
                    return Poll::Ready("no answer in time".to_owned());
                }
                self.looked = None;
                deadline = traffic.deadline();
            }
        }
        let timeout = traffic.timeout;
        drop(traffic);
        let Some(deadline) = deadline else {
            return Poll::Pending;
        };
        let at = match self.looked {
            None => deadline,
            // Perhaps the server had no processor time either, so it gets as much again.
            Some(looked) if late > LATE_CHECK => looked + late.min(timeout),
            Some(looked) => looked + CHECK_INTERVAL,
        };
        // A timer that ends too early is set again then.
        if self.armed.is_none_or(|armed| armed > at) {
            self.armed = Some(at);
            self.sleep.as_mut().reset(at.into());
            if self.sleep.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use shuttle::{future, thread};

    use super::*;
    use crate::sync::model;

    const TIMEOUT: Duration = Duration::from_millis(50);

    /// The other end of a connection, which a test controls.
    #[derive(Default)]
    struct Fake {
        arrived: Arc<Mutex<Vec<u8>>>,
        /// Whether bytes keep arriving for ever.
        is_endless: bool,
        /// When a write ended; each takes a timeout, in which the process sleeps.
        written: Arc<Mutex<Option<Instant>>>,
    }

    impl AsyncRead for Fake {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<std::io::Result<()>> {
            let mut arrived = self.arrived.lock();
            if arrived.is_empty() && self.is_endless {
                arrived.resize(buffer.remaining(), b'x');
            }
            if arrived.is_empty() {
                return Poll::Pending;
            }
            let count = arrived.len().min(buffer.remaining());
            buffer.put_slice(&arrived[..count]);
            arrived.drain(..count);
            Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for Fake {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<std::io::Result<usize>> {
            std::thread::sleep(TIMEOUT);
            *self.written.lock() = Some(Instant::now());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Polls once; returns the reason if the connection is closed.
    async fn turn<S: AsyncRead + AsyncWrite + Unpin>(driver: &mut Driver<S>) -> Option<String> {
        poll_fn(|context| match driver.poll(context) {
            Poll::Ready(reason) => Poll::Ready(Some(reason)),
            Poll::Pending => Poll::Ready(None),
        })
        .await
    }

    /// The process gets no processor time for a timeout; then its timers fire, without an answer.
    #[tokio::test]
    async fn a_look_that_comes_late_proves_nothing() {
        let stream = Fake::default();
        let arrived = Arc::clone(&stream.arrived);
        let (_connection, mut driver) = Connection::new(stream, TIMEOUT);
        let mut answer = enter(&mut driver.traffic.lock(), Instant::now());
        while driver.looked.is_none() {
            assert_eq!(turn(&mut driver).await, None);
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        for _ in 0..3 {
            std::thread::sleep(TIMEOUT * 2);
            tokio::time::sleep(CHECK_INTERVAL).await;
            assert_eq!(turn(&mut driver).await, None);
            assert_eq!(heard(&mut answer), None, "it had no time to look");
        }
        arrived.lock().extend(b"+OK\r\n");
        assert_eq!(turn(&mut driver).await, None);
        assert_eq!(heard(&mut answer), Some(Ok(Value::Okay)));
        // An answer that never comes is late all the same.
        let mut answer = enter(&mut driver.traffic.lock(), Instant::now());
        let told = loop {
            assert_eq!(turn(&mut driver).await, None);
            if let Some(told) = heard(&mut answer) {
                break told;
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        };
        assert_eq!(told, Err(NoAnswer::Late));
    }

    #[tokio::test]
    async fn time_spent_writing_is_not_the_servers() {
        let stream = Fake::default();
        let written = Arc::clone(&stream.written);
        let (_connection, mut driver) = Connection::new(stream, TIMEOUT);
        let _answer = enter(&mut driver.traffic.lock(), Instant::now());
        assert_eq!(turn(&mut driver).await, None);
        let (written, deadline) = (*written.lock(), driver.traffic.lock().deadline());
        assert!(deadline >= written.map(|written| written + TIMEOUT));
    }

    #[tokio::test]
    async fn an_answer_without_an_end_is_too_long() {
        for begin in [
            "$99999999999\r\n",
            "+",
            "*99999999\r\n$0\r\n\r\n$99999999999\r\n",
        ] {
            let stream = Fake {
                is_endless: true,
                ..Fake::default()
            };
            stream.arrived.lock().extend(begin.as_bytes());
            let (connection, mut driver) = Connection::new(stream, TIMEOUT);
            let mut answer = enter(&mut driver.traffic.lock(), Instant::now());
            let reason = turn(&mut driver).await.unwrap();
            assert_eq!(reason, "an answer of more than 67108864 bytes");
            assert!(driver.input.capacity() <= MAX_INPUT);
            drop(driver);
            assert!(connection.is_over());
            assert!(heard(&mut answer).unwrap().is_err());
        }
    }

    /// Otherwise all later answers would be taken for answers to other commands.
    #[tokio::test]
    async fn an_answer_to_nothing_ends_the_connection() {
        let said = [
            ("+OK\r\n", "it answered what nobody asked"),
            (
                "-ERR max number of clients reached\r\n",
                "it said without being asked: ResponseError: max number of clients reached",
            ),
        ];
        for (text, expected) in said {
            let stream = Fake::default();
            stream.arrived.lock().extend(text.as_bytes());
            let (_connection, mut driver) = Connection::new(stream, TIMEOUT);
            assert_eq!(turn(&mut driver).await.as_deref(), Some(expected));
        }
        let stream = Fake::default();
        let arrived = Arc::clone(&stream.arrived);
        let (_connection, mut driver) = Connection::new(stream, TIMEOUT);
        let mut first = enter(&mut driver.traffic.lock(), Instant::now());
        assert_eq!(turn(&mut driver).await, None);
        arrived.lock().extend(b":1\r\n:2\r\n");
        let mut second = enter(&mut driver.traffic.lock(), Instant::now());
        assert!(turn(&mut driver).await.is_some());
        drop(driver);
        assert_eq!(heard(&mut first), Some(Ok(Value::Int(1))));
        assert_eq!(heard(&mut second), Some(Err(NoAnswer::Unsent)));
    }

    /// The answer is in the socket while the whole process is stopped for four timeouts.
    #[tokio::test]
    async fn an_answer_that_has_come_is_heard_however_late_somebody_looks() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 64];
            for _ in 0..5 {
                assert!(stream.read(&mut bytes).unwrap() > 0);
                stream.write_all(b"+OK\r\n").unwrap();
            }
        });
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (connection, driver) = Connection::new(stream, TIMEOUT);
        tokio::spawn(driver.run());
        for _ in 0..5 {
            let stall = async {
                // The command leaves first.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                std::thread::sleep(TIMEOUT * 4);
            };
            let command = command();
            let (answer, ()) = futures_util::future::join(connection.call(&command), stall).await;
            assert_eq!(answer, Ok(Value::Okay));
        }
        server.join().unwrap();
    }

    type PendingReply = oneshot::Receiver<Result<Value, NoAnswer>>;

    fn command() -> Command {
        Command::from(&redis::cmd("PING"))
    }

    fn enter(traffic: &mut Traffic, now: Instant) -> PendingReply {
        traffic.enter(&command(), now).unwrap()
    }

    fn heard(answer: &mut PendingReply) -> Option<Result<Value, NoAnswer>> {
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
