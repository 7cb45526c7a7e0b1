//! Service: the methods of gRPC that coordinators serve and nodes call.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::client::{Grpc, GrpcService};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Body, BoxFuture, Bytes, Service, StdError, async_trait};
use tonic::server::{NamedService, StreamingService, UnaryService};
use tonic::{IntoStreamingRequest, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::proto;
use crate::wire::{CheckedCodec, MAX_MESSAGE, MAX_REQUEST};

/// Path of the stream of a member.
const ATTEND: &str = "/quell.fleet.v1.Fleet/Attend";

/// Path of the calls about stored overrides.
const OVERRIDES: &str = "/quell.fleet.v1.Fleet/Overrides";

/// What a coordinator does for its members.
#[async_trait]
pub trait Fleet: Send + Sync + 'static {
    /// Answers and pushes.
    type AttendStream: Stream<Item = Result<proto::Response, Status>> + Send + 'static;

    /// One stream per member: requests, and the answers and pushes to them. A stream is of the member that its first
    /// request names.
    async fn attend(
        &self,
        requests: tonic::Request<Streaming<proto::Request>>,
    ) -> Result<tonic::Response<Self::AttendStream>, Status>;

    /// A call about the stored overrides of the fleet; one that keeps none does not know it.
    async fn overrides(
        &self,
        _call: tonic::Request<proto::OverrideCall>,
    ) -> Result<tonic::Response<proto::OverrideAnswer>, Status> {
        Err(Status::unimplemented("no overrides are kept here"))
    }
}

/// A [`Fleet`] as a service of tonic's server.
#[derive(Debug)]
pub struct FleetServer<T>(Arc<T>);

impl<T> FleetServer<T> {
    /// Reads requests of at most [`MAX_REQUEST`].
    pub fn new(fleet: T) -> Self {
        Self(Arc::new(fleet))
    }
}

impl<T> Clone for FleetServer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> NamedService for FleetServer<T> {
    const NAME: &'static str = "quell.fleet.v1.Fleet";
}

impl<T, B> Service<Request<B>> for FleetServer<T>
where
    T: Fleet,
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let fleet = Arc::clone(&self.0);
        Box::pin(async move {
            match request.uri().path() {
                ATTEND => {}
                OVERRIDES => {
                    let mut grpc = tonic::server::Grpc::new(ProstCodec::default())
                        .max_decoding_message_size(MAX_MESSAGE)
                        .max_encoding_message_size(MAX_MESSAGE);
                    return Ok(grpc.unary(Overrides(fleet), request).await);
                }
                _ => return Ok(Status::unimplemented("").into_http()),
            }
            let method = Attend(fleet);
            let mut grpc = tonic::server::Grpc::new(CheckedCodec::default())
                .max_decoding_message_size(MAX_REQUEST)
                .max_encoding_message_size(MAX_MESSAGE);
            Ok(grpc.streaming(method, request).await)
        })
    }
}

/// The method of a server.
struct Attend<T>(Arc<T>);

impl<T: Fleet> StreamingService<proto::Request> for Attend<T> {
    type Response = proto::Response;
    type ResponseStream = T::AttendStream;
    type Future = BoxFuture<tonic::Response<T::AttendStream>, Status>;

    fn call(&mut self, requests: tonic::Request<Streaming<proto::Request>>) -> Self::Future {
        let fleet = Arc::clone(&self.0);
        Box::pin(async move { fleet.attend(requests).await })
    }
}

/// The calls about overrides of a server.
struct Overrides<T>(Arc<T>);

impl<T: Fleet> UnaryService<proto::OverrideCall> for Overrides<T> {
    type Response = proto::OverrideAnswer;
    type Future = BoxFuture<tonic::Response<proto::OverrideAnswer>, Status>;

    fn call(&mut self, call: tonic::Request<proto::OverrideCall>) -> Self::Future {
        let fleet = Arc::clone(&self.0);
        Box::pin(async move { fleet.overrides(call).await })
    }
}

/// The service as a node calls it.
#[derive(Clone, Debug)]
pub struct FleetClient<T>(Grpc<T>);

impl<T> FleetClient<T>
where
    T: GrpcService<tonic::body::Body>,
    T::Error: Into<StdError>,
    T::ResponseBody: Body<Data = Bytes> + Send + 'static,
    <T::ResponseBody as Body>::Error: Into<StdError> + Send,
{
    /// Reads answers of at most [`MAX_MESSAGE`]. Requests have no bound here: the server says which it refuses.
    pub fn new(channel: T) -> Self {
        Self(Grpc::new(channel).max_decoding_message_size(MAX_MESSAGE))
    }

    /// Makes a call about overrides.
    ///
    /// # Errors
    /// If there is no connection, or the coordinator refuses it.
    pub async fn overrides(
        &mut self,
        call: tonic::Request<proto::OverrideCall>,
    ) -> Result<tonic::Response<proto::OverrideAnswer>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(OVERRIDES);
        self.0.unary(call, path, ProstCodec::default()).await
    }

    async fn ready(&mut self) -> Result<(), Status> {
        let ready = self.0.ready().await;
        ready.map_err(|error| Status::unavailable(format!("no connection: {}", error.into())))
    }

    /// Begins a stream.
    ///
    /// # Errors
    /// If there is no connection, or the coordinator refuses it.
    pub async fn attend(
        &mut self,
        requests: impl IntoStreamingRequest<Message = proto::Request>,
    ) -> Result<tonic::Response<Streaming<proto::Response>>, Status> {
        self.ready().await?;
        let path = PathAndQuery::from_static(ATTEND);
        let requests = requests.into_streaming_request();
        self.0
            .streaming(requests, path, CheckedCodec::default())
            .await
    }
}
