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

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::resp::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::command::Command;
use super::reply;
use super::traffic::{NoAnswer, Traffic};
use crate::sync::Mutex;

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

/// Sends commands. The connection is closed when the last copy is dropped.
#[derive(Clone)]
pub(super) struct Connection {
    end: Arc<LinkEnd>,
}

struct LinkEnd {
    traffic: Arc<Mutex<Traffic>>,
}

impl Drop for LinkEnd {
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
        let end = Arc::new(LinkEnd {
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
        self.end.traffic.lock().set_timeout(timeout);
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.end, &other.end)
    }

    /// Returns true if the connection sends nothing any more.
    pub(super) fn is_over(&self) -> bool {
        self.end.traffic.lock().is_over
    }

    /// Returns true if an answer came since `then`.
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

/// The reason to close a connection on which an answer came that no command waits for. A server that
/// turns a client away says why.
fn said_unasked(answer: &Value) -> String {
    match answer {
        Value::ServerError(error) => {
            let text: String = error.to_string().chars().take(200).collect();
            format!("unexpected message of the server: {text}")
        }
        _ => "unexpected reply: no command is waiting".to_owned(),
    }
}

/// Writes commands and reads answers.
pub(super) struct Driver<S> {
    stream: S,
    traffic: Arc<Mutex<Traffic>>,
    input: Vec<u8>,
    /// Number of bytes of `input` that have arrived.
    filled: usize,
    output: Vec<u8>,
    /// Offset of the unwritten part of `output`.
    unwritten: usize,
    /// Number of bytes that the system took so far.
    sent: u64,
    sleep: Pin<Box<Sleep>>,
    /// Instant at which `sleep` ends, if it does.
    armed: Option<Instant>,
    /// Number of checks for late answers made in a row.
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
                return Poll::Ready("the connection is not used any more".to_owned());
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
    use super::*;
    use crate::link::traffic::tests::{TIMEOUT, command, enter, heard};

    /// The other end of a connection, which a test controls.
    #[derive(Default)]
    struct Fake {
        arrived: Arc<Mutex<Vec<u8>>>,
        /// True if bytes keep arriving for ever.
        is_endless: bool,
        /// Instant at which a write ended; each takes a timeout, in which the process sleeps.
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
            ("+OK\r\n", "unexpected reply: no command is waiting"),
            (
                "-ERR max number of clients reached\r\n",
                "unexpected message of the server: ERR max number of clients reached",
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
        let (has_answered, answered) = std::sync::mpsc::channel();
        let server = std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 64];
            for _ in 0..5 {
                assert!(stream.read(&mut bytes).unwrap() > 0);
                stream.write_all(b"+OK\r\n").unwrap();
                has_answered.send(()).unwrap();
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
                answered.recv().unwrap();
                std::thread::sleep(TIMEOUT * 4);
            };
            let command = command();
            let (answer, ()) = futures_util::future::join(connection.call(&command), stall).await;
            assert_eq!(answer, Ok(Value::Okay));
        }
        server.join().unwrap();
    }
}
