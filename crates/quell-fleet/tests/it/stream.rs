//! A member and a coordinator, the real state machines of both, over a stream on loopback. The test
//! gives both their clocks.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_core::time::Monotonic;
use quell_fleet::service::{Fleet, FleetClient, FleetServer};
use quell_fleet::{proto, wire};
use quell_shares::cell::CellWriter;
use quell_shares::leader::{Coordinator, Effect, Elected};
use quell_shares::member::{Member, Start};
use quell_shares::message::{MemberSnapshot, Request, Response};
use quell_shares::plan::{
    Drift, Fallback, Limit, MICRO, MemberId, Plan, Quota, Record, ReturnSeats, Size, Sizing, Timing,
};
use quell_shares::schedule::{Right, Schedule};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

fn at(seconds: u64) -> Monotonic {
    Monotonic::from_nanos(seconds * 1_000_000_000)
}

/// A leader whose record is in memory, at the instant that the test says.
struct Leader {
    coordinator: Coordinator,
    now: Monotonic,
}

impl Leader {
    fn new() -> Self {
        let quota = Quota {
            rate: 1_000 * MICRO,
            burst: 100 * MICRO,
            least_burst: MICRO,
            fallback: Fallback::Share,
        };
        let plan = Plan {
            revision: 1,
            limits: vec![Limit::new("api", quota)],
            size: Size {
                total_weight: 4,
                seats: 4,
                sizing: Sizing::Fixed,
            },
            groups: Vec::new(),
            timing: Timing::DEFAULT,
            return_seats: ReturnSeats::Never,
            rules: None,
        };
        let mut coordinator = Coordinator::new(Drift::DEFAULT, Duration::from_secs(3));
        let elected = Elected {
            revision: 7,
            asked: at(1),
            record: Record::new(plan),
            snapshot: None,
        };
        coordinator.elected(at(1), elected);
        Self {
            coordinator,
            now: at(1),
        }
    }

    fn answers(&mut self, request: Request) -> Vec<Response> {
        let (mut effects, mut answers) = (Vec::new(), Vec::new());
        self.coordinator.receive(self.now, request, &mut effects);
        while let Some(effect) = (!effects.is_empty()).then(|| effects.remove(0)) {
            match effect {
                Effect::Write(record) => self.coordinator.stored(self.now, record, &mut effects),
                Effect::Response { answer, .. } => answers.push(answer),
                _ => {}
            }
        }
        answers
    }
}

struct Service(Arc<Mutex<Leader>>);

#[tonic::async_trait]
impl Fleet for Service {
    type AttendStream =
        Pin<Box<dyn tokio_stream::Stream<Item = Result<proto::Response, Status>> + Send>>;

    async fn attend(
        &self,
        requests: tonic::Request<Streaming<proto::Request>>,
    ) -> Result<tonic::Response<Self::AttendStream>, Status> {
        let leader = Arc::clone(&self.0);
        let mut requests = requests.into_inner();
        let (answers, receiver) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                let request = match wire::decode_request(request) {
                    Ok(request) => request,
                    Err(error) => {
                        let status = Status::invalid_argument(error.to_string());
                        return drop(answers.send(Err(status)).await);
                    }
                };
                let all = leader.lock().unwrap().answers(request);
                for answer in all {
                    let answer = wire::encode_response(&answer, None);
                    answers.send(Ok(answer)).await.unwrap();
                }
            }
        });
        Ok(tonic::Response::new(Box::pin(ReceiverStream::new(
            receiver,
        ))))
    }
}

async fn serve(leader: Arc<Mutex<Leader>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let service = FleetServer::new(Service(leader));
    let server = tonic::transport::Server::builder().add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    url
}

async fn connect(leader: Arc<Mutex<Leader>>) -> FleetClient<Channel> {
    let endpoint = Endpoint::from_shared(serve(leader).await).unwrap();
    FleetClient::new(endpoint.connect().await.unwrap())
}

#[tokio::test]
async fn a_member_joins_and_admits_its_share() {
    let leader = Arc::new(Mutex::new(Leader::new()));
    let mut client = connect(Arc::clone(&leader)).await;
    let (requests, receiver) = mpsc::channel(8);
    let answers = client.attend(ReceiverStream::new(receiver)).await.unwrap();
    let mut answers = answers.into_inner();
    let start = Start {
        member: MemberId(3),
        nonce: 11,
        weight: 1,
        groups: Vec::new(),
        exclusive: true,
    };
    // The member's clock has nothing to do with the coordinator's.
    let mut member = Member::start(start, &MemberSnapshot::default(), at(50_000));
    let mut cell = CellWriter::new(&Schedule::constant(Right::NONE), at(50_000));

    let join = Request::Join(member.join().unwrap());
    requests.send(wire::encode_request(&join)).await.unwrap();
    let joined = answers.message().await.unwrap().unwrap();
    let (joined, _) = wire::decode_response(joined).unwrap();
    assert_eq!(member.receive(at(50_000), &joined), None);
    assert_eq!(&*member.names()[0].name, "api");

    // No grant before the time of a leader before is over.
    let mut granted = false;
    for second in 1..=20 {
        {
            let mut leader = leader.lock().unwrap();
            let now = at(1 + second);
            leader.now = now;
            leader.coordinator.kept(7, now);
            leader.coordinator.tick(now, &mut Vec::new());
        }
        let now = at(50_000 + second);
        let report = Request::Report(member.report(now, &[]));
        requests.send(wire::encode_request(&report)).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        let (answer, _) = wire::decode_response(answer).unwrap();
        granted |= matches!(answer, Response::Grant(_));
        if let Some(adopt) = member.receive(now, &answer) {
            cell.follow(now, &adopt.schedules[0].schedule);
            assert!(member.sealed(adopt.ticket));
        }
    }
    assert!(granted);
    // The bucket has been filled by the share that was granted.
    let answer = cell.cell().try_take(at(50_021), MICRO);
    assert!(answer.outcome.is_allow(), "{answer:?}");
    let right = member.schedules().next().unwrap().schedule.at(at(50_021));
    assert!(right.rate > 0 && right.rate <= 1_000 * MICRO, "{right:?}");
    assert_eq!(answer.burst, right.burst);
}

#[tokio::test]
async fn a_message_outside_its_bounds_ends_the_stream() {
    let leader = Arc::new(Mutex::new(Leader::new()));
    let mut client = connect(leader).await;
    let (requests, receiver) = mpsc::channel(8);
    let answers = client.attend(ReceiverStream::new(receiver)).await.unwrap();
    requests.send(proto::Request::default()).await.unwrap();
    let status = answers.into_inner().message().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::InvalidArgument);
    assert!(status.message().contains("up to date"), "{status}");
}
