//! Session: what a connection has agreed on, and the answer to each of its commands.

use std::sync::Arc;

use quell::{AdHocMemo, Operation};
use quell_core::time::Now;
use quell_protocol::http::EndedBody;
use quell_protocol::resp::{
    Args, CallMemo, Client, Command, CommandError, Credentials, Encoder, Hello, LibraryField,
    NO_PASSWORD_SET, Protocol, Queue, Ready, ServerFacts, Throttle, WRONG_PASSWORD,
};

use super::calls::{Calls, answer_query, answer_throttle, asked, bucket, refuse, tell};
use super::registry::{About, Entry};
use crate::budget::BudgetShare;
use crate::shared::Shared;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The user that everybody is while there are no credentials.
const DEFAULT_USER: &[u8] = b"default";

/// Calls of `CL.THROTTLE` that one reading of the clock serves, if they came together: twenty
/// microseconds of work, which is less than a thread may be kept waiting between a reading and its
/// decision anyhow.
const PER_READING: u32 = 64;

/// What a connection has agreed on.
pub(super) struct Session {
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    protocol: Protocol,
    /// Commands since `MULTI`, and what is drawn for them.
    queue: Option<Queue>,
    queued: BudgetShare,
    /// The last `CL.THROTTLE`, and its limit.
    last: CallMemo,
    limit: AdHocMemo,
    reading: Option<Reading>,
    calls: Calls,
}

/// A reading of the clock, for calls that were here when it was taken.
#[derive(Clone, Copy, Debug)]
struct Reading {
    now: Now,
    /// Calls that it may still serve.
    left: u32,
}

/// Whether the connection goes on after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Close,
    /// All connections together have no room for what it queued, or for the answers to that.
    Full,
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, entry: Arc<Entry>) -> Self {
        let queued = shared.buffers.share();
        let calls = Calls::new(shared.buffers.share());
        Self {
            last: CallMemo::new(&shared.config.frame_limits()),
            limit: AdHocMemo::default(),
            shared,
            entry,
            protocol: Protocol::Resp2,
            queue: None,
            queued,
            reading: None,
            calls,
        }
    }

    /// Notes that what is answered next may have come after what was answered before.
    pub(super) const fn arrived(&mut self) {
        self.reading = None;
    }

    /// The present instant, or that of a call that came together with this one.
    #[inline]
    fn now(&mut self) -> Now {
        if let Some(Reading { now, left }) = &mut self.reading
            && *left > 0
        {
            *left -= 1;
            return *now;
        }
        let now = self.shared.limiter.now();
        let left = PER_READING - 1;
        self.reading = Some(Reading { now, left });
        now
    }

    pub(super) const fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Answers the `CL.THROTTLE` that `input` begins with, if it is like the last one, and says how
    /// long it is. This is for speed only: [`Self::answer`] answers the same.
    #[inline]
    pub(super) fn answer_alike(&mut self, input: &[u8], out: &mut Vec<u8>) -> Option<usize> {
        if self.queue.is_some() || !self.calls.is_empty() {
            return None;
        }
        let (throttle, length) = self.last.find(input)?;
        let mut encoder = Encoder::new(out, self.protocol);
        self.throttle_at_once(&throttle, &mut encoder)
            .then_some(length)
    }

    /// Takes a question that has to wait for the store, to be answered with those that follow; says
    /// whether it is one. If not, everything taken before is answered first.
    pub(super) async fn take(&mut self, args: Args<'_>, out: &mut Vec<u8>) -> bool {
        let waits = self.queue.is_none() && self.shared.limiter.store().memory().is_none();
        let (shared, calls) = (&self.shared, &mut self.calls);
        let is_taken = waits && calls.take(shared, self.protocol, args, out).await;
        if !is_taken {
            calls.finish(out).await;
        }
        is_taken
    }

    /// Waits for the answers to all that was taken.
    pub(super) async fn finish(&mut self, out: &mut Vec<u8>) {
        self.calls.finish(out).await;
    }

    /// Answers one command, or queues it.
    pub(super) async fn answer(&mut self, args: Args<'_>, out: &mut Vec<u8>) -> Next {
        let mut encoder = Encoder::new(out, self.protocol);
        // There are commands that take long.
        self.reading = None;
        let command = Command::parse(args);
        match (&command, &mut self.queue) {
            (Ok(Command::Quit | Command::Reset), _) => {}
            (Ok(Command::Multi), None) => {
                self.queue = Some(Queue::new());
                encoder.simple("OK");
                return Next::GoOn;
            }
            (Ok(Command::Multi), Some(_)) => {
                encoder.error("ERR", "MULTI inside MULTI: write EXEC or DISCARD first");
                return Next::GoOn;
            }
            (Ok(Command::Exec | Command::Discard), None) => {
                encoder.error("ERR", "nothing is queued: write MULTI first");
                return Next::GoOn;
            }
            (Ok(Command::Discard), Some(_)) => {
                self.drop_queue();
                encoder.simple("OK");
                return Next::GoOn;
            }
            (Ok(Command::Exec), Some(_)) => return self.exec(out).await,
            (Ok(_), Some(queue)) => {
                match queue.push(args) {
                    Ok(()) => encoder.simple("QUEUED"),
                    Err(error) => encoder.error("ERR", &error.to_string()),
                }
                return match self.queued.resize(queue.held()) {
                    true => Next::GoOn,
                    false => Next::Full,
                };
            }
            (Err(_), Some(queue)) => queue.fail(),
            (Ok(Command::Throttle(throttle)), None) => self.last.note(args, throttle),
            (_, None) => {}
        }
        self.run(command, out).await
    }

    /// Answers what was queued since `MULTI`.
    async fn exec(&mut self, out: &mut Vec<u8>) -> Next {
        let mut encoder = Encoder::new(out, self.protocol);
        let Some(queue) = self.queue.take() else {
            return Next::GoOn;
        };
        if queue.is_broken() {
            self.queued.resize(0);
            encoder.error(
                "EXECABORT",
                "a queued command was refused, so none is carried out",
            );
            return Next::GoOn;
        }
        encoder.array(queue.len());
        for args in queue.commands() {
            if !self.take(args, out).await {
                self.run(Command::parse(args), out).await;
            }
            // None of it is sent before all of it is there.
            if !self.queued.resize(queue.held() + out.capacity()) {
                return Next::Full;
            }
        }
        self.finish(out).await;
        self.queued.resize(0);
        Next::GoOn
    }

    /// Forgets what was queued since `MULTI`.
    fn drop_queue(&mut self) {
        self.queue = None;
        self.queued.resize(0);
    }

    async fn run(&mut self, command: Result<Command<'_>, CommandError>, out: &mut Vec<u8>) -> Next {
        let mut encoder = Encoder::new(out, self.protocol);
        match command {
            Ok(Command::Throttle(throttle)) => {
                if !self.throttle_at_once(&throttle, &mut encoder) {
                    answer_throttle(&self.shared, &throttle, &mut encoder).await;
                }
            }
            Ok(Command::Acquire(query)) => {
                answer_query(&self.shared, Operation::Acquire, &query, &mut encoder).await;
            }
            Ok(Command::Peek(query)) => {
                answer_query(&self.shared, Operation::Peek, &query, &mut encoder).await;
            }
            Ok(Command::Reserve(reserve)) => {
                let limiter = &self.shared.limiter;
                let answer = limiter.reserve(&reserve.query, reserve.hold, reserve.id);
                // In a box: see `answer_throttle`.
                let answer = Box::pin(answer).await;
                tell(answer, reserve.query.domain(), &mut encoder);
            }
            Ok(Command::End(end)) => {
                match Box::pin(self.shared.end(end.domain, end.id, end.ending)).await {
                    Ok(finished) => encoder.ended(&EndedBody {
                        id: end.id.into(),
                        outcome: finished.status.name().into(),
                        repeated: finished.repeated,
                    }),
                    Err(error) => {
                        refuse(&error, &mut encoder);
                    }
                }
            }
            Ok(command) => return self.connection(&command, out),
            Err(error) => error.write(&mut encoder),
        }
        Next::GoOn
    }

    /// Answers if the store can without waiting.
    #[inline]
    fn throttle_at_once(&mut self, throttle: &Throttle<'_>, encoder: &mut Encoder<'_>) -> bool {
        let (operation, cost) = asked(throttle);
        let bucket = bucket(throttle);
        let mut now = self.now();
        let (limiter, memo) = (&self.shared.limiter, &mut self.limit);
        let answer =
            limiter.ask_ad_hoc_at_once(operation, throttle.key, &bucket, cost, &mut now, memo);
        if let Some(reading) = &mut self.reading {
            // The store may have read the clock again.
            reading.now = now;
        }
        match answer {
            Ok(Some(decision)) => throttle.write_reply(&decision, encoder),
            Ok(None) => return false,
            Err(error) => encoder.error("ERR", &error.to_string()),
        }
        true
    }

    /// Answers what is about the connection or the server.
    fn connection(&mut self, command: &Command<'_>, out: &mut Vec<u8>) -> Next {
        let mut encoder = Encoder::new(out, self.protocol);
        match command {
            Command::Ping(None) => encoder.simple("PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => encoder.bulk(message),
            Command::Hello(hello) => self.hello(hello, out),
            Command::Auth(credentials) => match authenticate(credentials) {
                Ok(()) => encoder.simple("OK"),
                Err((code, text)) => encoder.error(code, text),
            },
            Command::Client(client) => self.client(client, &mut encoder),
            Command::Table(request) => request.write_reply(&mut encoder),
            Command::Info(sections) => self.facts().write_reply(*sections, &mut encoder),
            Command::Select => encoder.simple("OK"),
            Command::Quit => {
                encoder.simple("OK");
                return Next::Close;
            }
            Command::Reset => {
                self.protocol = Protocol::Resp2;
                self.drop_queue();
                *self.entry.about.lock() = About::default();
                Encoder::new(out, self.protocol).simple("RESET");
            }
            _ => encoder.error("ERR", "this command is not available yet"),
        }
        Next::GoOn
    }

    fn hello(&mut self, hello: &Hello<'_>, out: &mut Vec<u8>) {
        let checked = hello.credentials.as_ref().map_or(Ok(()), authenticate);
        if let Err((code, text)) = checked {
            Encoder::new(out, self.protocol).error(code, text);
            return;
        }
        let mut about = self.entry.about.lock();
        if let Some(protocol) = hello.protocol {
            self.protocol = protocol;
            about.protocol = protocol;
        }
        if let Some(name) = hello.name {
            about.name = name.to_vec();
        }
        drop(about);
        let ready = Ready {
            version: VERSION,
            id: self.entry.id,
        };
        ready.write_reply(&mut Encoder::new(out, self.protocol));
    }

    fn client(&self, client: &Client<'_>, encoder: &mut Encoder<'_>) {
        let mut about = self.entry.about.lock();
        match client {
            Client::SetName(name) => about.name = name.to_vec(),
            Client::SetInfo { field, value } => match field {
                LibraryField::Name => about.library_name = value.to_vec(),
                LibraryField::Version => about.library_version = value.to_vec(),
            },
            Client::GetName if about.name.is_empty() => return encoder.null(),
            Client::GetName => return encoder.bulk(&about.name),
            Client::Id => {
                return encoder.integer(i64::try_from(self.entry.id).unwrap_or(i64::MAX));
            }
            Client::Info | Client::List => {
                drop(about);
                let mut text = String::new();
                match client {
                    Client::List => text = self.shared.connections.list(),
                    _ => self.entry.write_line(&mut text),
                }
                return encoder.verbatim(&text);
            }
            _ => {}
        }
        encoder.simple("OK");
    }

    fn facts(&self) -> ServerFacts<'static> {
        let shared = &self.shared;
        ServerFacts {
            version: VERSION,
            process_id: std::process::id(),
            port: self.entry.local.port(),
            uptime: shared.started.elapsed(),
            connections: shared.metrics.resp.open.get(),
            connections_received: shared.metrics.resp.accepted.get(),
            commands_processed: shared.metrics.commands.sum(0),
            keys: shared.limiter.store().keys() as u64,
        }
    }
}

/// While there is no password the default user has any, as in Redis; who names only a password is
/// told that there is none.
fn authenticate(credentials: &Credentials<'_>) -> Result<(), (&'static str, &'static str)> {
    match credentials.user {
        Some(DEFAULT_USER) => Ok(()),
        Some(_) => Err(WRONG_PASSWORD),
        None => Err(NO_PASSWORD_SET),
    }
}
