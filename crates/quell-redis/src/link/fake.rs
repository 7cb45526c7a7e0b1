//! A fake server for model tests. The model chooses its answers, and the scheduler cuts the bytes of both
//! directions into pieces.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use crate::resp::Value;
use shuttle::rand::{Rng, thread_rng};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::reply;
use crate::sync::{Mutex, model};

thread_local! {
    static SERVER: RefCell<Arc<FakeServer>> = RefCell::default();
}

/// A server at every address.
#[derive(Debug, Default)]
pub(crate) struct FakeServer {
    pipes: Mutex<Vec<Arc<Mutex<Pipe>>>>,
    /// True if clients may be gone with their runtime, and others connect before the server notices.
    has_lost_clients: AtomicBool,
}

#[derive(Debug, Default)]
struct Pipe {
    sent: Vec<u8>,
    answers: Vec<u8>,
    /// Commands that were answered.
    answered: usize,
    is_over: bool,
    reader: Option<Waker>,
}

impl Pipe {
    /// The words of the next command, if all of it has come.
    fn take(&mut self) -> Option<Vec<Vec<u8>>> {
        let (command, length) = reply::read(&self.sent).unwrap()?;
        let Value::Array(words) = command else {
            panic!("{command:?} is no command");
        };
        self.sent.drain(..length);
        let words = words.into_iter().map(|word| match word {
            Value::BulkString(word) => word,
            other => panic!("{other:?} is no word"),
        });
        Some(words.collect())
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    /// Hangs up; unread answers may be lost.
    fn hang_up(&mut self) {
        self.is_over = true;
        if thread_rng().gen_range(0..2) == 0 {
            self.answers.clear();
        }
        self.wake();
    }
}

/// One end of a connection to the server of this schedule.
pub(super) struct Stream(Arc<Mutex<Pipe>>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.lock().is_over = true;
    }
}

/// Commands that are sent first on each connection.
const GREETINGS: usize = 3;

/// A connection to the server of this schedule.
pub(super) fn dial() -> Stream {
    let server = SERVER.with_borrow(Arc::clone);
    let mut pipes = server.pipes.lock();
    for pipe in &*pipes {
        let pipe = pipe.lock();
        let is_greeted = pipe.is_over || pipe.answered >= GREETINGS;
        let has_lost_clients = server.has_lost_clients.load(Ordering::SeqCst);
        assert!(is_greeted || has_lost_clients, "two connect at a time");
    }
    let pipe: Arc<Mutex<Pipe>> = Arc::default();
    pipes.push(Arc::clone(&pipe));
    Stream(pipe)
}

impl FakeServer {
    /// The server of this schedule.
    pub(crate) fn start() -> Arc<Self> {
        let server: Arc<Self> = Arc::default();
        SERVER.replace(Arc::clone(&server));
        server
    }

    /// Answers the next command on some connection with what `run` returns for its words, if there is one.
    pub(crate) fn answer(&self, run: impl FnOnce(&[Vec<u8>]) -> String) {
        let Some(pipe) = self.any() else {
            return;
        };
        let mut pipe = pipe.lock();
        if pipe.is_over {
            return;
        }
        let Some(words) = pipe.take() else {
            return;
        };
        let answer = match words[0].as_slice() {
            b"CLIENT" | b"INFO" => "+OK\r\n".to_owned(),
            _ => run(&words),
        };
        pipe.answers.extend_from_slice(answer.as_bytes());
        pipe.answered += 1;
        pipe.wake();
    }

    /// Hangs up on some connection, with whatever is on the way there.
    pub(crate) fn hang_up(&self) {
        if let Some(pipe) = self.any() {
            pipe.lock().hang_up();
        }
    }

    /// The runtime of all clients ends.
    pub(crate) fn end_clients(&self) {
        self.has_lost_clients.store(true, Ordering::SeqCst);
        model::end_runtime();
    }

    /// Lets some time go by before something goes wrong.
    pub(crate) fn wait(&self) {
        for _ in 0..thread_rng().gen_range(0..400) {
            shuttle::thread::yield_now();
        }
    }

    fn any(&self) -> Option<Arc<Mutex<Pipe>>> {
        let pipes = self.pipes.lock();
        let some = thread_rng().gen_range(0..pipes.len().max(1));
        pipes.get(some).map(Arc::clone)
    }
}

/// Calls of a schedule, by their numbers.
pub(crate) const CALLS: usize = 9;

/// The outcome of each call: how often it ran, and the result that its caller got.
#[derive(Debug, Default)]
pub(crate) struct Calls([Fate; CALLS]);

#[derive(Debug, Default)]
struct Fate {
    ran: AtomicUsize,
    is_answered: AtomicBool,
    is_unsent: AtomicBool,
}

impl Calls {
    /// The server runs a call; returns its answer.
    pub(crate) fn run(&self, number: usize) -> String {
        self.0[number].ran.fetch_add(1, Ordering::SeqCst);
        format!(":{number}\r\n")
    }

    /// A caller has its answer.
    pub(crate) fn answered(&self, number: usize, answer: &Value) {
        let own = Value::Int(i64::try_from(number).unwrap());
        assert_eq!(answer, &own, "an answer to somebody else");
        self.0[number].is_answered.store(true, Ordering::SeqCst);
    }

    /// A caller got the result that its call was not sent, or that the server did not run it.
    pub(crate) fn was_not_sent(&self, number: usize) {
        self.0[number].is_unsent.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_answered(&self, number: usize) -> bool {
        self.0[number].is_answered.load(Ordering::SeqCst)
    }

    /// Checks that every result was true, and that no call ran twice.
    pub(crate) fn check(&self) {
        for (number, fate) in self.0.iter().enumerate() {
            let ran = fate.ran.load(Ordering::SeqCst);
            assert!(ran <= 1, "{number} ran {ran} times");
            let is_answered = fate.is_answered.load(Ordering::SeqCst);
            assert!(
                !is_answered || ran == 1,
                "{number} was answered and did not run"
            );
            let is_unsent = fate.is_unsent.load(Ordering::SeqCst);
            assert!(!is_unsent || ran == 0, "{number} ran and was told unsent");
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = self.0.lock();
        if pipe.answers.is_empty() && !pipe.is_over {
            pipe.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        if !pipe.answers.is_empty() {
            let most = pipe.answers.len().min(buffer.remaining());
            let count = thread_rng().gen_range(1..=most);
            let answers: Vec<u8> = pipe.answers.drain(..count).collect();
            buffer.put_slice(&answers);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut pipe = self.0.lock();
        if pipe.is_over {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = thread_rng().gen_range(1..=bytes.len());
        pipe.sent.extend_from_slice(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
