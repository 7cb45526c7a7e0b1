//! One RESP connection, from accept to close.
//!
//! All complete commands that were received are answered into one buffer, which is written at once.
//! Writing and reading happen side by side, so a client may send a long pipeline before it reads.
//! When more than `max_unsent_bytes` wait to be sent, the connection stops reading and answering until
//! the client has caught up: back-pressure, never an error.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use quell_protocol::resp::{Encoder, FrameError, Read, Reader};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::buffer::{Input, Output};
use super::session::{Next, ReadCommand, Session};
use crate::budget::CallerBudget;
use crate::config::Config;
use crate::connections::ConnectionEntry;
use crate::hang_up::has_hung_up;
use crate::listen::{Accepted, Stream, close_lingering, last_wait};
use crate::metrics::Refused;
use crate::shared::Shared;

/// Commands that are answered before other connections of the same thread get their turn: about a
/// millisecond of work.
const TURN: u32 = 1_024;

/// The error for a connection that needs more than the budget has.
const FULL: &str =
    "the buffers of all connections are full (max_buffer_bytes): send and read whole commands";

/// Reason why a connection ends.
#[derive(Debug)]
enum SessionEnd {
    /// The client asked for it, or is gone.
    Closed,
    /// The server stops, and all that was received is answered.
    Stopping,
    /// The client sent bytes that are not RESP.
    Protocol(FrameError),
    /// The budget has no more room for what the client sent or did not read.
    Full,
    /// A command stayed half sent, or a reply unread.
    Stalled,
    /// An error of the system.
    Io(io::Error),
}

/// Serves a connection to its end.
pub(crate) async fn run(accepted: Accepted, shared: Arc<Shared>) {
    let remote = accepted.remote;
    let entry = shared.connections.add(remote.clone(), accepted.local);
    let session = Session::new(
        Arc::clone(&shared),
        Arc::clone(&entry),
        accepted.certificate,
        &accepted.buffers,
    );
    let (config, buffers) = (&shared.config, &accepted.buffers);
    let mut connection = Connection::new(
        accepted.stream,
        session,
        config,
        Arc::clone(&entry),
        buffers,
    );
    let end = connection.serve(&shared).await;
    shared.connections.remove(&entry);
    let numbers = &shared.metrics.resp;
    match end {
        SessionEnd::Protocol(error) => {
            numbers.protocol_errors.add(1);
            connection.say_last(&error).await;
        }
        SessionEnd::Full => {
            numbers.refused.add(Refused::Buffers);
            connection.say_last(&FULL).await;
        }
        SessionEnd::Closed => connection.say_rest().await,
        SessionEnd::Stalled => numbers.timeouts.add(1),
        SessionEnd::Stopping => {}
        SessionEnd::Io(error) => tracing::debug!(%remote, %error, "a RESP connection broke off"),
    }
}

struct Connection {
    stream: Stream,
    entry: Arc<ConnectionEntry>,
    session: Session,
    reader: Reader,
    input: Input,
    output: Output,
    watch: StallWatch,
    has_called: bool,
    /// The end of the wait for a last call, once the server stops.
    last_wait: Option<Pin<Box<Sleep>>>,
    /// The client sends no more. What it sent is still answered, as with `nc`.
    is_input_over: bool,
}

impl Connection {
    fn new(
        stream: Stream,
        session: Session,
        config: &Config,
        entry: Arc<ConnectionEntry>,
        buffers: &Arc<CallerBudget>,
    ) -> Self {
        Self {
            stream,
            session,
            entry,
            reader: Reader::new(config.frame_limits()),
            input: Input::new(config.max_frame_bytes, buffers.share()),
            output: Output::new(buffers.share_of_answers()),
            watch: StallWatch::new(config.stall_timeout),
            has_called: false,
            last_wait: None,
            is_input_over: false,
        }
    }

    async fn serve(&mut self, shared: &Shared) -> SessionEnd {
        let most = shared.config.max_unsent_bytes;
        loop {
            let answered = self.answer(most).await;
            if answered.commands > 0 {
                shared.metrics.commands.add(0, u64::from(answered.commands));
                self.watch.has_moved = true;
                self.has_called = true;
            }
            let is_all = match answered.rest {
                Ok(Rest::Cut) => true,
                Ok(Rest::More) => false,
                Err(end) => return end,
            };
            if self.is_input_over && is_all && self.output.is_empty() {
                return SessionEnd::Closed;
            }
            if let Err(end) = self.transfer(shared, most, is_all).await {
                return end;
            }
            if answered.commands >= TURN {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Answers complete commands until there is none left, its turn is over, or too much waits to be
    /// sent.
    async fn answer(&mut self, most: usize) -> Answered {
        let mut commands = 0;
        self.session.arrived();
        let rest = loop {
            let is_full = self.output.unsent().len() >= most || self.output.has_outgrown();
            if commands >= TURN || is_full {
                break Ok(Rest::More);
            }
            let (input, out) = (self.input.filled(), &mut self.output.bytes);
            // The fast path does not decode and parse a call like the last one. Its result stays in
            // registers: copying what was just written would wait for the processor's store buffer.
            if !self.session.is_queueing()
                && let Some((throttle, length)) = self.reader.recognise(input)
            {
                commands += 1;
                let asked = ReadCommand::Throttle(throttle);
                if self.session.answer(asked, out).is_none() {
                    self.session.wait(asked, out).await;
                }
                self.input.drop_front(length);
                continue;
            }
            let length = match self.reader.read(input) {
                Ok(Read::Command(mut request)) => {
                    commands += 1;
                    self.session.sign(&mut request);
                    let asked = ReadCommand::Command(&request);
                    let next = match self.session.answer(asked, out) {
                        Some(next) => next,
                        None => self.session.wait(asked, out).await,
                    };
                    match next {
                        Next::GoOn => {}
                        Next::Close => break Err(SessionEnd::Closed),
                        Next::Full => break Err(SessionEnd::Full),
                    }
                    request.length
                }
                Ok(Read::Nothing { length }) => length,
                Ok(Read::Incomplete) => break Ok(Rest::Cut),
                Err(error) => break Err(SessionEnd::Protocol(error)),
            };
            self.input.drop_front(length);
        };
        self.session.finish(&mut self.output.bytes).await;
        if self.session.has_granted() {
            let has_hung_up = has_hung_up(self.stream.as_fd());
            let out = &mut self.output.bytes;
            Box::pin(self.session.hand_over(has_hung_up, out)).await;
        }
        Answered { commands, rest }
    }

    /// Writes and reads as much as possible, until one of the two made progress.
    async fn transfer(
        &mut self,
        shared: &Shared,
        most: usize,
        is_all: bool,
    ) -> Result<(), SessionEnd> {
        poll_fn(|context| {
            let mut moved = false;
            while !self.output.is_empty() {
                let unsent = self.output.unsent();
                match Pin::new(&mut self.stream).poll_write(context, unsent) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(SessionEnd::Closed)),
                    Poll::Ready(Ok(count)) => {
                        self.output.sent(count);
                        self.watch.has_moved = true;
                        moved = true;
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(SessionEnd::Io(error))),
                    Poll::Pending => break,
                }
            }
            if let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_flush(context) {
                return Poll::Ready(Err(SessionEnd::Io(error)));
            }
            if !self.output.draw_for_size() {
                return Poll::Ready(Err(SessionEnd::Full));
            }
            let unsent = self.output.unsent().len();
            if !is_all && unsent < most {
                // There is more to answer than to read.
                return Poll::Ready(Ok(()));
            }
            if is_all && unsent < most && !self.is_input_over {
                match self.poll_read(context) {
                    Poll::Ready(Ok(())) => moved = true,
                    Poll::Ready(Err(end)) => return Poll::Ready(Err(end)),
                    Poll::Pending => {}
                }
            }
            if moved {
                return Poll::Ready(Ok(()));
            }
            self.poll_rest(shared, context)
        })
        .await
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SessionEnd>> {
        let Some(room) = self.input.room() else {
            return Poll::Ready(Err(SessionEnd::Full));
        };
        let mut buffer = ReadBuf::new(room);
        let outcome = Pin::new(&mut self.stream).poll_read(context, &mut buffer);
        let count = buffer.filled().len();
        if let Poll::Ready(Ok(())) = outcome {
            self.is_input_over = count == 0;
            self.input.read(count);
        }
        outcome.map_err(SessionEnd::Io)
    }

    /// Checks, while the connection makes no progress, whether the server stops, and the timer.
    fn poll_rest(
        &mut self,
        shared: &Shared,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), SessionEnd>> {
        self.entry.park(context);
        if shared.connections.is_stopping() && self.output.is_empty() {
            let wait = last_wait(self.entry.opened.elapsed(), self.has_called);
            let begin = || Box::pin(tokio::time::sleep(wait));
            let last_wait = self.last_wait.get_or_insert_with(begin);
            if last_wait.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(SessionEnd::Stopping));
            }
        }
        let is_idle = self.input.is_empty() && self.output.is_empty();
        match self.watch.poll(context, is_idle) {
            Silence::Short => {}
            Silence::Idle => {
                self.input.shrink();
                self.output.shrink();
            }
            Silence::Stalled => return Poll::Ready(Err(SessionEnd::Stalled)),
        }
        Poll::Pending
    }

    /// Sends the rest of the output and this error, and closes.
    async fn say_last(mut self, error: &impl std::fmt::Display) {
        let protocol = self.session.protocol();
        Encoder::new(&mut self.output.bytes, protocol).error("ERR", &error.to_string());
        self.say_rest().await;
    }

    /// Sends the rest of the output, and closes. If the budget has no room for it, it is dropped.
    async fn say_rest(self) {
        let Self {
            stream,
            mut output,
            input,
            session,
            reader,
            ..
        } = self;
        drop((input, session, reader));
        if output.draw_for_size() && (!output.is_empty() || stream.has_unsent()) {
            close_lingering(stream, output.unsent()).await;
        }
    }
}

/// Result of one turn.
struct Answered {
    commands: u32,
    rest: Result<Rest, SessionEnd>,
}

/// Rest of the input.
enum Rest {
    /// Rest that is empty, or a command that is not complete.
    Cut,
    /// Rest that may have complete commands.
    More,
}

/// Notices that nothing moves on a connection. A move sets a flag and does not read the clock.
struct StallWatch {
    half: Duration,
    timer: Pin<Box<Sleep>>,
    /// Not while the connection is idle, so that it wakes no thread.
    is_set: bool,
    has_moved: bool,
    /// Timers in a row that saw no move.
    still: u32,
}

enum Silence {
    Short,
    Idle,
    Stalled,
}

impl StallWatch {
    fn new(timeout: Duration) -> Self {
        let half = timeout / 2;
        Self {
            half,
            timer: Box::pin(tokio::time::sleep(half)),
            is_set: true,
            has_moved: false,
            still: 0,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>, is_idle: bool) -> Silence {
        if !self.is_set && (self.has_moved || !is_idle) {
            self.set();
        }
        while self.is_set && self.timer.as_mut().poll(context).is_ready() {
            let moved = std::mem::take(&mut self.has_moved);
            if moved || !is_idle {
                self.still = if moved { 0 } else { self.still + 1 };
                if self.still >= 2 {
                    return Silence::Stalled;
                }
                self.set();
            } else {
                self.still = 0;
                self.is_set = false;
                return Silence::Idle;
            }
        }
        Silence::Short
    }

    fn set(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.half);
        self.is_set = true;
    }
}
