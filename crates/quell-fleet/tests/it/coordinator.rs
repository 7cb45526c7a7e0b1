//! A coordinator that says what a test tells it to say.

use std::time::Duration;

use quell_fleet::proto::fleet_server::{Fleet, FleetServer};
use quell_fleet::{proto, wire};
use quell_shares::message::{Grant, Granted, Join, Joined, LimitName, Report, Request, Response};
use quell_shares::plan::{LimitId, MICRO};
use quell_shares::schedule::Right;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Status, Streaming};

/// For what a node does by itself; nothing takes as long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A coordinator on loopback. Streams of nodes come out of it, in order.
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
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (sender, streams) = mpsc::channel(8);
        let service =
            FleetServer::new(Service(sender)).max_decoding_message_size(wire::MAX_MESSAGE);
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
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
