//! Session: the state of a RESP connection, and the answer to each of its commands.

use std::sync::Arc;

use quell::{AdHocMemo, Operation, Query};
use quell_core::time::Now;
use quell_protocol::http::EndedBody;
use quell_protocol::resp::{
    Client, Command, Credentials, Encoder, HELLO_NOAUTH, Hello, LibraryField, NO_PASSWORD_SET,
    NOAUTH, Protocol, Queue, Ready, Request, ServerFacts, Throttle, WRONG_PASSWORD,
};

use super::calls::{
    Call, Calls, HoldGrant, ThrottlePlan, bucket, operation_of, refuse, write_answer,
};
use super::{access, overrides};
use crate::access::{Caller, ClientCertificate, Denied, TOO_MANY_FAILED_LOGINS};
use crate::budget::{BudgetShare, CallerBudget};
use crate::connections::{About, ConnectionEntry};
use crate::http;
use crate::shared::{FailedCall, Shared};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The only user, since there are no credentials.
const DEFAULT_USER: &[u8] = b"default";

/// Error for a wrong token where people have passwords as well.
const TOKENS_ONLY: (&str, &str) = (
    WRONG_PASSWORD.0,
    "invalid username-password pair; RESP takes tokens only (quell token new), the passwords of people are \
     for HTTP",
);

/// Calls of `CL.THROTTLE` that share one reading of the clock, if they arrived together: twenty
/// microseconds of work, which is less than the system may delay a thread between a reading and its
/// decision anyway.
const PER_READING: u32 = 64;

/// The state of a connection.
pub(super) struct Session {
    shared: Arc<Shared>,
    entry: Arc<ConnectionEntry>,
    protocol: Protocol,
    /// Commands since `MULTI`, and what is drawn for them.
    queue: Option<Queue>,
    queued: BudgetShare,
    /// The limit of the last `CL.THROTTLE`.
    limit: AdHocMemo,
    reading: Option<Reading>,
    /// That of a call that [`Self::throttle`] could not answer, until [`Self::wait_for`] takes it.
    plan: Option<ThrottlePlan>,
    calls: Calls,
    caller: Caller,
    /// Certificate of the client; counts while it has shown no token.
    certificate: Option<Arc<ClientCertificate>>,
    /// The version of the credentials under which `caller` was looked up.
    version: u64,
    buffers: Arc<CallerBudget>,
}

/// A reading of the clock, for calls that had arrived when it was taken.
#[derive(Clone, Copy, Debug)]
struct Reading {
    now: Now,
    /// Calls that it may still serve.
    left: u32,
}

/// A call or a command of a client.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadCommand<'a> {
    /// A `CL.THROTTLE` that was recognised, while nothing is queued.
    Throttle(Throttle<'a>),
    /// A command that was read.
    Command(&'a Request<'a>),
}

/// Course of the connection after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    GoOn,
    Close,
    /// The budget has no room for what it queued, or for the answers.
    Full,
}

impl Session {
    pub(super) fn new(
        shared: Arc<Shared>,
        entry: Arc<ConnectionEntry>,
        certificate: Option<Arc<ClientCertificate>>,
        buffers: &Arc<CallerBudget>,
    ) -> Self {
        let queued = buffers.share();
        let calls = Calls::new(buffers.share());
        // The version first: a reload in between is then noticed.
        let version = shared.access.version();
        Self {
            caller: shared.access.of_connection(certificate.as_deref()),
            version,
            certificate,
            limit: AdHocMemo::default(),
            shared,
            entry,
            protocol: Protocol::Resp2,
            queue: None,
            queued,
            reading: None,
            plan: None,
            calls,
            buffers: Arc::clone(buffers),
        }
    }

    /// Notes that the next commands may have arrived after the last ones.
    pub(super) const fn arrived(&mut self) {
        self.reading = None;
    }

    /// The present instant, or that of a call that arrived together with this one.
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

    /// Returns true while commands are queued since `MULTI`.
    pub(super) const fn is_queueing(&self) -> bool {
        self.queue.is_some()
    }

    /// Notes on a call whose it is.
    #[inline]
    pub(super) fn sign(&self, request: &mut Request<'_>) {
        if let (Some(grant), Ok(command)) = (self.caller.grant(), &mut request.command) {
            command.set_account(grant.account());
        }
    }

    /// Answers one command, or queues it. `None`, and nothing is done, if it has to wait: then call
    /// [`Self::wait`].
    #[inline]
    pub(super) fn answer(&mut self, asked: ReadCommand<'_>, out: &mut Vec<u8>) -> Option<Next> {
        if !self.calls.is_empty() {
            // Replies are in the order of the commands.
            return None;
        }
        if let Err(denied) = self.check(asked) {
            self.deny(&denied, out);
            return Some(Next::GoOn);
        }
        match asked {
            ReadCommand::Throttle(throttle) => self.throttle(&throttle, out),
            ReadCommand::Command(request) => self.answer_command(request, out),
        }
    }

    /// Refuses a command that the caller may not send. Every command passes here before it is answered,
    /// queued or sent to a store.
    #[inline]
    fn check(&mut self, asked: ReadCommand<'_>) -> Result<(), Denied> {
        if let Caller::Anyone = self.caller {
            return Ok(());
        }
        let version = self.shared.access.version();
        if version != self.version {
            self.version = version;
            let certificate = self.certificate.as_deref();
            self.caller = self.shared.access.renew(&self.caller, certificate);
        }
        match asked {
            ReadCommand::Throttle(_) => access::check_ad_hoc(&self.caller),
            ReadCommand::Command(request) => access::check(&self.caller, request),
        }
    }

    /// Answers a command that the caller may not send.
    fn deny(&mut self, denied: &Denied, out: &mut Vec<u8>) {
        if let Some(queue) = &mut self.queue {
            queue.fail();
        }
        let mut encoder = Encoder::new(out, self.protocol);
        match denied {
            Denied::Unauthenticated => encoder.error(NOAUTH.0, NOAUTH.1),
            _ => encoder.error("NOPERM", &denied.to_string()),
        }
    }

    fn answer_command(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Option<Next> {
        // Some commands take long.
        self.reading = None;
        let mut encoder = Encoder::new(out, self.protocol);
        match (&request.command, &mut self.queue) {
            (Ok(Command::Exec), Some(queue)) if !queue.is_broken() => return None,
            (Ok(Command::Exec), Some(_)) => {
                self.drop_queue();
                let text = "a queued command was refused, so none is carried out";
                encoder.error("EXECABORT", text);
            }
            (Ok(Command::Multi), Some(_)) => {
                encoder.error("ERR", "MULTI inside MULTI: write EXEC or DISCARD first");
            }
            (Ok(Command::Discard), Some(_)) => {
                self.drop_queue();
                encoder.simple("OK");
            }
            (Ok(Command::Multi), None) => {
                self.queue = Some(Queue::new());
                encoder.simple("OK");
            }
            (Ok(Command::Exec | Command::Discard), None) => {
                encoder.error("ERR", "nothing is queued: write MULTI first");
            }
            (Ok(Command::Quit | Command::Reset), Some(_)) => {
                return self.carry_out(request, out);
            }
            (Ok(_), Some(queue)) => {
                match queue.push(request.args) {
                    Ok(()) => encoder.simple("QUEUED"),
                    Err(error) => encoder.error("ERR", &error.to_string()),
                }
                if !self.queued.resize(queue.held()) {
                    return Some(Next::Full);
                }
            }
            (Err(_), Some(queue)) => {
                queue.fail();
                return self.carry_out(request, out);
            }
            (_, None) => return self.carry_out(request, out),
        }
        Some(Next::GoOn)
    }

    /// Drops what was queued since `MULTI`.
    fn drop_queue(&mut self) {
        self.queue = None;
        self.queued.resize(0);
    }

    /// Answers one command that is not queued; `None` if it has to wait.
    fn carry_out(&mut self, request: &Request<'_>, out: &mut Vec<u8>) -> Option<Next> {
        match &request.command {
            Ok(Command::Throttle(throttle)) => self.throttle(throttle, out),
            Ok(Command::Acquire(query)) => self.ask(Operation::Acquire, query, out),
            Ok(Command::Peek(query)) => self.ask(Operation::Peek, query, out),
            Ok(Command::Reserve(_) | Command::End(_) | Command::Override(_)) => None,
            Ok(command) => Some(self.connection(command, out)),
            Err(error) => {
                error.write(&mut Encoder::new(out, self.protocol));
                Some(Next::GoOn)
            }
        }
    }

    /// Answers `CL.THROTTLE` if the store can without waiting.
    #[inline]
    fn throttle(&mut self, throttle: &Throttle<'_>, out: &mut Vec<u8>) -> Option<Next> {
        let (operation, cost) = operation_of(throttle);
        let bucket = bucket(throttle);
        let mut now = self.now();
        let (limiter, memo) = (&self.shared.limiter, &mut self.limit);
        let answer =
            limiter.ask_ad_hoc_or_plan(operation, throttle.key, &bucket, cost, &mut now, memo);
        if let Some(reading) = &mut self.reading {
            // The store may have read the clock again.
            reading.now = now;
        }
        let mut encoder = Encoder::new(out, self.protocol);
        match answer {
            Ok(Ok(decision)) => throttle.write_reply(&decision, &mut encoder),
            Ok(Err(plan)) => {
                self.plan = Some(Box::new(plan));
                return None;
            }
            Err(error) => encoder.error("ERR", &error.to_string()),
        }
        Some(Next::GoOn)
    }

    /// Answers a query about rules if the store can without waiting. A shared store is asked by
    /// [`Self::wait`], or the rules would be resolved twice.
    fn ask(&mut self, operation: Operation, query: &Query<'_>, out: &mut Vec<u8>) -> Option<Next> {
        if self.shared.config.store.is_some() {
            return None;
        }
        let limiter = &self.shared.limiter;
        let answer = limiter.ask_at_once(operation, query, limiter.now());
        let mut encoder = Encoder::new(out, self.protocol);
        write_answer(answer.transpose()?, query.domain(), &mut encoder);
        Some(Next::GoOn)
    }

    /// Carries out what [`Self::answer`] could not answer at once. Questions wait together with later
    /// ones, until [`Self::finish`].
    pub(super) async fn wait(&mut self, asked: ReadCommand<'_>, out: &mut Vec<u8>) -> Next {
        if let ReadCommand::Command(request) = asked
            && let Ok(Command::Exec) = request.command
            && let Some(queue) = self.queue.take()
        {
            // Nothing waits while commands are queued.
            return self.exec(queue, out).await;
        }
        self.wait_for(asked, out).await
    }

    /// Waits for one command.
    async fn wait_for(&mut self, asked: ReadCommand<'_>, out: &mut Vec<u8>) -> Next {
        let call = match asked {
            ReadCommand::Throttle(throttle) => Some(Call::throttle(throttle)),
            ReadCommand::Command(request) => request.command.as_ref().ok().and_then(Call::new),
        };
        let plan = self.plan.take();
        if self.check(asked).is_ok()
            && let Some(call) = &call
            && self
                .calls
                .take(&self.shared, self.protocol, (call, plan), out)
                .await
        {
            return Next::GoOn;
        }
        self.finish(out).await;
        if let Some(next) = self.answer(asked, out) {
            return next;
        }
        let start = out.len();
        // In a box each, so that an idle connection keeps no room for them.
        if let Some(call) = call {
            let mut encoder = Encoder::new(out, self.protocol);
            let plan = self.plan.take();
            let (_, id) = Box::pin(call.answer(&self.shared, plan, &mut encoder)).await;
            let answer = start..out.len();
            let grant = HoldGrant::new(&self.shared, call.domain(), id.as_deref(), answer);
            self.calls.granted.extend(grant);
        } else if let ReadCommand::Command(request) = asked
            && let Ok(command) = &request.command
        {
            let mut encoder = Encoder::new(out, self.protocol);
            if let Command::Override(command) = command {
                let (shared, client) = (Arc::clone(&self.shared), self.web_client());
                Box::pin(overrides::answer(shared, client, command, &mut encoder)).await;
                return Next::GoOn;
            }
            let id = Box::pin(wait_for_hold(&self.shared, command, &mut encoder)).await;
            if let Command::Reserve(reserve) = command {
                let domain = reserve.query.domain();
                let answer = start..out.len();
                let grant = HoldGrant::new(&self.shared, domain, id.as_deref(), answer);
                self.calls.granted.extend(grant);
            }
        }
        Next::GoOn
    }

    /// The client, as a route sees it.
    fn web_client(&self) -> http::Client {
        http::Client {
            address: self.entry.remote.tcp().map(|address| address.ip()),
            purpose: http::Purpose::Everything,
            caller: self.caller.clone(),
            buffers: Arc::clone(&self.buffers),
            requests: None,
        }
    }

    /// Waits for the answers to all questions so far.
    pub(super) async fn finish(&mut self, out: &mut Vec<u8>) {
        self.calls.finish(out).await;
        self.reading = None;
    }

    /// Returns true if answers that were not sent yet grant something to hold.
    pub(super) fn has_granted(&self) -> bool {
        !self.calls.granted.is_empty()
    }

    /// The answers are about to be sent. If the client has hung up, what they grant is given back.
    pub(super) async fn hand_over(&mut self, has_hung_up: bool, out: &mut Vec<u8>) {
        let granted = std::mem::take(&mut self.calls.granted);
        for grant in granted.into_iter().rev().filter(|_| has_hung_up) {
            grant.give_back(&self.shared, self.protocol, out).await;
        }
    }

    /// Answers what was queued since `MULTI`.
    async fn exec(&mut self, queue: Queue, out: &mut Vec<u8>) -> Next {
        Encoder::new(out, self.protocol).array(queue.len());
        for args in queue.commands() {
            let mut request = Request::new(args, 0);
            self.sign(&mut request);
            let asked = ReadCommand::Command(&request);
            let next = match self.answer(asked, out) {
                Some(next) => next,
                None => self.wait_for(asked, out).await,
            };
            if next != Next::GoOn {
                return next;
            }
            // All answers are kept until the last one.
            if !self.queued.resize(queue.held() + out.capacity()) {
                return Next::Full;
            }
        }
        self.finish(out).await;
        self.queued.resize(0);
        Next::GoOn
    }

    /// Answers a command about the connection or the server.
    fn connection(&mut self, command: &Command<'_>, out: &mut Vec<u8>) -> Next {
        let mut encoder = Encoder::new(out, self.protocol);
        match command {
            Command::Ping(None) => encoder.simple("PONG"),
            Command::Ping(Some(message)) | Command::Echo(message) => encoder.bulk(message),
            Command::Hello(hello) => return self.hello(hello, out),
            Command::Auth(credentials) => match self.authenticate(credentials) {
                Ok(()) => encoder.simple("OK"),
                Err(failed) => return failed.write_to(&mut encoder),
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
                let certificate = self.certificate.as_deref();
                self.caller = self.shared.access.of_connection(certificate);
                Encoder::new(out, self.protocol).simple("RESET");
            }
            _ => encoder.error("ERR", "this command is not available yet"),
        }
        Next::GoOn
    }

    /// Makes the caller the bearer of a token: the password, with the token's name or `default` as the
    /// user. If there is no such token, the connection stays what it was.
    fn authenticate(&mut self, credentials: &Credentials<'_>) -> Result<(), FailedLogin> {
        let access = &self.shared.access;
        if !access.is_closed() {
            return answer_anyone(credentials).map_err(FailedLogin::new);
        }
        let user = credentials.user.filter(|user| *user != DEFAULT_USER);
        // The version first: a reload in between is then noticed.
        let version = access.version();
        match access.of_token(user, credentials.password) {
            caller @ Caller::Bearer(_) => {
                (self.caller, self.version) = (caller, version);
                Ok(())
            }
            _ => {
                let (logins, numbers) = (&self.shared.failed_logins, &self.shared.metrics.resp);
                Err(match logins.note(self.entry.remote.ip(), numbers) {
                    true => FailedLogin {
                        error: (WRONG_PASSWORD.0, TOO_MANY_FAILED_LOGINS),
                        next: Next::Close,
                    },
                    // Not whether there is a user of this name.
                    false if access.has_passwords() => FailedLogin::new(TOKENS_ONLY),
                    false => FailedLogin::new(WRONG_PASSWORD),
                })
            }
        }
    }

    fn hello(&mut self, hello: &Hello<'_>, out: &mut Vec<u8>) -> Next {
        let checked = match &hello.credentials {
            Some(credentials) => self.authenticate(credentials),
            None if self.caller == Caller::Stranger => Err(FailedLogin::new(HELLO_NOAUTH)),
            None => Ok(()),
        };
        if let Err(failed) = checked {
            return failed.write_to(&mut Encoder::new(out, self.protocol));
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
        Next::GoOn
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
            port: self.entry.local.tcp().map_or(0, |address| address.port()),
            uptime: shared.started.elapsed(),
            connections: shared.metrics.resp.open.get(),
            connections_received: shared.metrics.resp.accepted.get(),
            commands_processed: shared.metrics.commands.sum(0),
            keys: shared.limiter.store().keys() as u64,
        }
    }
}

/// Makes a hold, or ends it. Returns the id of a new one that the client did not name.
async fn wait_for_hold(
    shared: &Shared,
    command: &Command<'_>,
    encoder: &mut Encoder<'_>,
) -> Option<Arc<str>> {
    match command {
        Command::Reserve(reserve) => {
            let limiter = &shared.limiter;
            let failed = FailedCall::new(Operation::Acquire, &reserve.query, limiter.now());
            let answer = limiter.reserve(&reserve.query, reserve.hold, reserve.id);
            let answer = shared.traced(failed, answer.await);
            let id = answer.as_ref().ok().and_then(|verdict| verdict.id.clone());
            write_answer(answer, reserve.query.domain(), encoder);
            // A name may be used again, also by a client that lost its connection.
            return id.filter(|_| reserve.id.is_none());
        }
        Command::End(end) => match shared.end(end.domain, end.id, end.ending.clone()).await {
            Ok(finished) => encoder.ended(&EndedBody {
                id: end.id.into(),
                outcome: finished.status.name().into(),
                repeated: finished.repeated,
            }),
            Err(error) => {
                refuse(&error, encoder);
            }
        },
        _ => {}
    }
    None
}

/// Reason why a caller is not the bearer of a token.
struct FailedLogin {
    /// The code and the text of the error.
    error: (&'static str, &'static str),
    next: Next,
}

impl FailedLogin {
    /// One that the connection survives.
    const fn new(error: (&'static str, &'static str)) -> Self {
        let next = Next::GoOn;
        Self { error, next }
    }

    fn write_to(&self, encoder: &mut Encoder<'_>) -> Next {
        encoder.error(self.error.0, self.error.1);
        self.next
    }
}

/// Answer of a server without credentials: any password is right for the default user, as in Redis. A
/// client that sends only a password gets the error of Redis that none is set.
fn answer_anyone(credentials: &Credentials<'_>) -> Result<(), (&'static str, &'static str)> {
    match credentials.user {
        Some(DEFAULT_USER) => Ok(()),
        Some(_) => Err(WRONG_PASSWORD),
        None => Err(NO_PASSWORD_SET),
    }
}
