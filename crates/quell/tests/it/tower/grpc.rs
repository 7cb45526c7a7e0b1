//! gRPC: a real tonic server behind a layer, asked by a real tonic client.

use std::time::Duration;

use quell::tower::{Entries, LimitLayer, RemoteAddress};
use quell::{Limit, store};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpConnectInfo;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

use super::failures::stranded;

/// The health service behind `layer`, on a free port.
async fn serve<S: store::HoldStore>(
    layer: LimitLayer<S>,
) -> (HealthClient<Channel>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (reporter, service) = tonic_health::server::health_reporter();
    let server = tokio::spawn(async move {
        let _reporter = reporter;
        let server = Server::builder().layer(layer).add_service(service);
        let incoming = TcpIncoming::from(listener);
        server.serve_with_incoming(incoming).await.unwrap();
    });
    let channel = Channel::from_shared(url).unwrap().connect().await.unwrap();
    (HealthClient::new(channel), server)
}

async fn check(client: &mut HealthClient<Channel>, user: &str) -> Result<(), Status> {
    let mut request = Request::new(HealthCheckRequest::default());
    request.metadata_mut().insert("user", user.parse().unwrap());
    client.check(request).await.map(drop)
}

#[tokio::test]
async fn a_refusal_is_a_status_with_its_wait() {
    let entries = Entries::new()
        .remote_address(RemoteAddress::new(TcpConnectInfo::remote_addr))
        .header("user", http::HeaderName::from_static("user"));
    let layer = LimitLayer::each("per-user", Limit::per_hour(2), entries).unwrap();
    let (mut client, server) = serve(layer).await;
    check(&mut client, "ann").await.unwrap();
    check(&mut client, "ann").await.unwrap();
    let refused = check(&mut client, "ann").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(
        refused.message().starts_with("Too many requests"),
        "{refused:?}"
    );
    let wait = refused
        .get_details_retry_info()
        .unwrap()
        .retry_delay
        .unwrap();
    let most = Duration::from_secs(1_800);
    assert!(
        wait > Duration::from_secs(1_700) && wait <= most,
        "{wait:?}"
    );
    let field = refused.metadata().get("ratelimit").unwrap();
    assert!(
        field.to_str().unwrap().starts_with("\"per-user\";r=0;t="),
        "{field:?}"
    );
    check(&mut client, "bob").await.unwrap();
    server.abort();
}

#[tokio::test]
async fn a_store_that_is_gone_makes_the_service_unavailable() {
    let layer = LimitLayer::new(stranded(), "shop", Entries::new());
    let (mut client, server) = serve(layer).await;
    let refused = check(&mut client, "ann").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    let wait = refused.get_details_retry_info().unwrap().retry_delay;
    assert_eq!(wait, Some(Duration::from_secs(1)));
    server.abort();
}

#[tokio::test]
async fn a_layer_that_is_not_set_up_is_an_internal_error_without_a_wait() {
    let layer = LimitLayer::new(stranded(), "x", Entries::new()).allow_on_failure();
    let (mut client, server) = serve(layer).await;
    let refused = check(&mut client, "ann").await.unwrap_err();
    assert_eq!(refused.code(), Code::Internal);
    assert!(refused.get_details_retry_info().is_none());
    server.abort();
}
