//! An HTTP client that keeps its connection open, as gateways do.

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::process::PATIENCE;

/// One client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    port: u16,
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// A server's answer.
#[derive(Clone, Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    pub(crate) text: String,
    /// The body as JSON; null if it is not JSON.
    pub(crate) body: Value,
}

impl HttpResponse {
    pub(crate) fn is_degraded(&self) -> bool {
        self.body["degraded"] == true
    }
}

impl Client {
    pub(crate) fn new(port: u16) -> Self {
        let connection = None;
        Self { port, connection }
    }

    pub(crate) async fn get(&mut self, path: &str) -> Result<HttpResponse> {
        self.request("GET", path, Bytes::new()).await
    }

    pub(crate) async fn post(&mut self, path: &str, body: &Value) -> Result<HttpResponse> {
        self.request("POST", path, body.to_string().into()).await
    }

    /// Sends one request. If the connection breaks, or no answer comes within a minute, it returns
    /// an error: the call is lost.
    pub(crate) async fn request(
        &mut self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> Result<HttpResponse> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", format!("127.0.0.1:{}", self.port))
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        let asked = timeout(PATIENCE, self.send(request)).await;
        let (status, bytes) = asked.with_context(|| format!("{method} {path}: no answer"))??;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Ok(HttpResponse {
            status,
            body: serde_json::from_str(&text).unwrap_or_default(),
            text,
        })
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<(u16, Bytes)> {
        let mut connection = match self.connection.take() {
            Some(open) if open.is_ready() => open,
            _ => connect(self.port).await?,
        };
        connection.ready().await?;
        let response = connection.send_request(request).await?;
        let status = response.status().as_u16();
        let is_last = response.headers().get("connection");
        let is_last = is_last.is_some_and(|value| value == "close");
        let bytes = response.into_body().collect().await?.to_bytes();
        if !is_last && connection.ready().await.is_ok() {
            self.connection = Some(connection);
        }
        Ok((status, bytes))
    }
}

async fn connect(port: u16) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (connection, driver) = handshake(TokioIo::new(stream)).await?;
    tokio::spawn(driver);
    Ok(connection)
}
