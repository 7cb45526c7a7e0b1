//! Reflection on Envoy's listener, as grpcurl and its like ask: one question after the other on a call.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::stream;
use prost_types::FileDescriptorProto;
use quell_envoy::file_descriptors;
use quell_envoy::proto::Message as _;
use tokio::sync::mpsc;
use tonic::transport::Channel;
use tonic::{Code as GrpcCode, Status, Streaming};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};
use tonic_reflection::pb::v1alpha;

use crate::envoy::{ENVOY, RULES, channel};
use crate::harness::{Answer, Fixture, connect, eventually, exchange};

/// A call of reflection that stays open.
struct Call {
    questions: mpsc::Sender<ServerReflectionRequest>,
    answers: Streaming<ServerReflectionResponse>,
}

impl Call {
    async fn open(channel: Channel) -> Self {
        let (questions, receiver) = mpsc::channel(1);
        let stream = stream::unfold(receiver, async |mut receiver| {
            Some((receiver.recv().await?, receiver))
        });
        let mut client = ServerReflectionClient::new(channel);
        let answers = client.server_reflection_info(stream).await.unwrap();
        Self {
            questions,
            answers: answers.into_inner(),
        }
    }

    async fn ask(&mut self, question: MessageRequest) -> Result<Option<MessageResponse>, Status> {
        let question = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(question),
        };
        // A call that has ended says why below.
        drop(self.questions.send(question).await);
        let answer = self.answers.message().await?;
        Ok(answer.and_then(|answer| answer.message_response))
    }

    async fn services(&mut self) -> BTreeSet<String> {
        let list = self.ask(MessageRequest::ListServices(String::new())).await;
        let Some(MessageResponse::ListServicesResponse(list)) = list.unwrap() else {
            panic!("no list");
        };
        list.service.into_iter().map(|one| one.name).collect()
    }

    async fn file(&mut self, question: MessageRequest) -> FileDescriptorProto {
        let answer = self.ask(question).await.unwrap();
        let Some(MessageResponse::FileDescriptorResponse(file)) = answer else {
            panic!("no file: {answer:?}");
        };
        FileDescriptorProto::decode(file.file_descriptor_proto[0].as_slice()).unwrap()
    }

    /// The file of each service, and all that they import.
    async fn files(&mut self) -> BTreeMap<String, FileDescriptorProto> {
        let mut files = BTreeMap::new();
        let mut missing = Vec::new();
        for service in self.services().await {
            let file = self
                .file(MessageRequest::FileContainingSymbol(service))
                .await;
            missing.push(file);
        }
        while let Some(file) = missing.pop() {
            for name in &file.dependency {
                if !files.contains_key(name) {
                    let file = self
                        .file(MessageRequest::FileByFilename(name.clone()))
                        .await;
                    missing.push(file);
                }
            }
            files.insert(file.name().to_owned(), file);
        }
        files
    }
}

#[test]
fn a_client_learns_all_messages_of_the_service() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let channel = channel(&server);
    let (services, files) = server.block_on(async {
        let mut call = Call::open(channel.clone()).await;
        (call.services().await, call.files().await)
    });
    let expected = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    assert_eq!(services, expected.map(str::to_owned).into());
    for file in file_descriptors().file {
        assert_eq!(files.get(file.name()), Some(&file));
    }
    // Older clients ask by the name that it had before.
    let question = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let answer = server.block_on(async {
        let mut client =
            v1alpha::server_reflection_client::ServerReflectionClient::new(channel.clone());
        let question = stream::iter([question]);
        let mut answers = client.server_reflection_info(question).await?.into_inner();
        answers.message().await
    });
    let answer = format!("{:?}", answer.unwrap().unwrap());
    assert!(answer.contains(expected[0]), "{answer}");
}

/// As health does.
#[test]
fn reflection_needs_no_credentials_but_http2() {
    let mut server = Fixture::prepare(RULES, &format!("{ENVOY}credentials = 'DIR/tokens'"));
    std::fs::write(server.path("tokens"), "").unwrap();
    server.start().unwrap();
    let channel = channel(&server);
    let services = server.block_on(async { Call::open(channel).await.services().await });
    assert_eq!(services.len(), 3);
    let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    let answer = Answer::read(&exchange(connect(server.envoy()), head.as_bytes()).unwrap());
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("HTTP/2 alone"), "{}", answer.body);
}

#[test]
fn a_call_of_reflection_is_bounded_and_draws_for_its_answers() {
    let server = Fixture::with_clock(RULES, ENVOY);
    let channel = channel(&server);
    let nothing = server.server().buffer_bytes();
    let (mut call, services) = server.block_on(async {
        let mut call = Call::open(channel.clone()).await;
        let services = call.services().await;
        (call, services)
    });
    assert_eq!(services.len(), 3);
    assert!(server.server().buffer_bytes() >= nothing + 64 * 1_024);
    let symbol = || MessageRequest::FileContainingSymbol("grpc.health.v1.Health".to_owned());
    let answers = server.block_on(async {
        let mut answers = 0_u32;
        while matches!(call.ask(symbol()).await, Ok(Some(_))) {
            answers += 1;
        }
        answers
    });
    assert!((20..1_000).contains(&answers), "{answers}");
    drop(call);
    let error = server.block_on(async {
        let mut call = Call::open(channel.clone()).await;
        let long = MessageRequest::FileByFilename("x".repeat(5_000));
        call.ask(long).await
    });
    assert!(!matches!(error, Ok(Some(_))), "{error:?}");
    let unknown = server.block_on(async {
        let mut call = Call::open(channel.clone()).await;
        call.ask(MessageRequest::FileByFilename("nothing.proto".to_owned()))
            .await
    });
    assert_eq!(unknown.unwrap_err().code(), GrpcCode::NotFound);
    drop(channel);
    eventually("all of it comes back", || {
        server.server().buffer_bytes() == 0
    });
}
