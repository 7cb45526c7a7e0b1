//! A coordinator that says what a test tells it to say.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use quell_fleet::agent::Connector;
use quell_fleet::service::{Fleet, FleetServer};
use quell_fleet::{proto, wire};
use quell_shares::message::{Grant, Granted, Join, Joined, LimitName, Report, Request, Response};
use quell_shares::plan::{LimitId, MICRO};
use quell_shares::schedule::Right;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, duplex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::server::Connected;
use tonic::{Status, Streaming};

/// For what a node does by itself; nothing takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The bytes that a stream in memory takes before they are read.
const PIPE: usize = 64 * 1_024;

/// Destinations of streams in memory, by authority.
static LISTENERS: LazyLock<Mutex<HashMap<String, mpsc::Sender<DuplexStream>>>> =
    LazyLock::new(Mutex::default);

/// Ports in the URLs of coordinators. No socket has them: a node sends another only to where it is allowed to.
static PORTS: AtomicU64 = AtomicU64::new(7_600);

/// The way to coordinators in this process: no socket is in it, so paused time goes on only when nobody has anything to
/// do. Nobody is at an authority that no coordinator has.
pub(crate) fn in_memory() -> Connector {
    Connector::new(async |authority: String| {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let listener = LISTENERS.lock().unwrap().get(&authority).cloned();
        let (near, far) = duplex(PIPE);
        let sent = listener.ok_or_else(refused)?.send(far).await;
        sent.map_err(|_| refused())?;
        Ok(near)
    })
}

/// A coordinator in this process. Streams of nodes come out of it, in order.
pub(crate) struct Scripted {
    pub(crate) url: String,
    streams: mpsc::Receiver<Stream>,
}

/// The stream of a node.
pub(crate) struct Stream {
    pub(crate) authorization: Option<String>,
    requests: Streaming<proto::Request>,
    answers: mpsc::Sender<Result<proto::Response, Status>>,
}

struct Service(mpsc::Sender<Stream>);

#[tonic::async_trait]
impl Fleet for Service {
    type AttendStream = ReceiverStream<Result<proto::Response, Status>>;

    async fn attend(
        &self,
        request: tonic::Request<Streaming<proto::Request>>,
    ) -> Result<tonic::Response<Self::AttendStream>, Status> {
        let authorization = request.metadata().get("authorization");
        let authorization = authorization.and_then(|value| value.to_str().ok());
        let (answers, receiver) = mpsc::channel(8);
        let stream = Stream {
            authorization: authorization.map(str::to_owned),
            requests: request.into_inner(),
            answers,
        };
        self.0
            .send(stream)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(tonic::Response::new(ReceiverStream::new(receiver)))
    }
}

impl Scripted {
    /// One that nodes reach in memory.
    pub(crate) fn start() -> Self {
        let authority = format!("127.0.0.1:{}", PORTS.fetch_add(1, Ordering::Relaxed));
        let url = format!("http://{authority}");
        let (listener, incoming) = mpsc::channel(8);
        LISTENERS.lock().unwrap().insert(authority, listener);
        let incoming = ReceiverStream::new(incoming);
        Self::serve(url, incoming.map(Ok))
    }

    /// One that nodes reach by TCP.
    pub(crate) async fn on_tcp() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self::serve(url, TcpListenerStream::new(listener))
    }

    fn serve<C>(
        url: String,
        incoming: impl tokio_stream::Stream<Item = io::Result<C>> + Send + 'static,
    ) -> Self
    where
        C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let (sender, streams) = mpsc::channel(8);
        let service = FleetServer::new(Service(sender));
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        Self { url, streams }
    }

    /// The next stream of a node.
    pub(crate) async fn stream(&mut self) -> Stream {
        let stream = timeout(PATIENCE, self.streams.recv()).await;
        stream.expect("a node connects").unwrap()
    }
}

impl Stream {
    /// The next request; none when the node has ended the stream.
    pub(crate) async fn request(&mut self) -> Option<Request> {
        let request = self.raw_request().await;
        request.map(|request| wire::decode_request(request).unwrap())
    }

    pub(crate) async fn raw_request(&mut self) -> Option<proto::Request> {
        let request = timeout(PATIENCE, self.requests.message()).await;
        request.expect("the node says something").ok().flatten()
    }

    pub(crate) async fn join(&mut self) -> Join {
        loop {
            match self.request().await.expect("a node joins") {
                Request::Join(join) => return join,
                other => assert!(matches!(other, Request::Report(_)), "{other:?}"),
            }
        }
    }

    pub(crate) async fn report(&mut self) -> Report {
        match self.request().await.expect("a node reports") {
            Request::Report(report) => report,
            other => panic!("{other:?}"),
        }
    }

    /// The first report that is so.
    pub(crate) async fn report_where(&mut self, is_so: impl Fn(&Report) -> bool) -> Report {
        loop {
            let report = self.report().await;
            if is_so(&report) {
                return report;
            }
        }
    }

    pub(crate) async fn answer(&self, answer: &Response) {
        self.raw(wire::encode_response(answer, None)).await;
    }

    pub(crate) async fn raw(&self, answer: proto::Response) {
        self.answers.send(Ok(answer)).await.ok();
    }

    /// Answers a join.
    pub(crate) async fn joined(&self, join: &Join, incarnation: u64, epoch: u64) {
        let joined = Joined {
            epoch,
            nonce: join.nonce,
            incarnation,
            names: names(),
            record: 1,
        };
        self.answer(&Response::Joined(joined)).await;
    }

    /// A node that has joined as the first start, and its first report.
    pub(crate) async fn first_report(&mut self) -> Report {
        let join = self.join().await;
        self.joined(&join, 1, 7).await;
        self.report().await
    }
}

pub(crate) fn names() -> Vec<LimitName> {
    vec![LimitName {
        limit: LimitId(1),
        name: "api".into(),
    }]
}

pub(crate) fn right(rate: u64) -> Right {
    Right {
        rate: rate * MICRO,
        burst: rate * MICRO,
    }
}

/// A grant of 10 s of `rate` of a limit of 1000/s, with a static share of 250/s and a floor of 25/s.
pub(crate) fn grant(report: &Report, version: u64, rate: u64) -> Grant {
    let mut leases = Granted::default().leases;
    leases[0] = (right(rate), Duration::from_secs(10));
    Grant {
        incarnation: report.incarnation,
        epoch: 7,
        version,
        seq: report.seq,
        revision: 1,
        record: 1,
        report: Duration::from_millis(100),
        promise: Duration::from_millis(11_540),
        hold: Duration::from_secs(300),
        ends: None,
        draining: false,
        rights: vec![Granted {
            limit: LimitId(1),
            leases,
            gap: right(rate.min(250)),
            base: right(250),
            floor: right(25),
            whole: right(1_000),
        }],
        names: names(),
    }
}
