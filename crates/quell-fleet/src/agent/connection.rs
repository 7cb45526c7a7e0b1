//! Connection: the stream to a coordinator, and which coordinator is tried next.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Streaming};

use crate::proto;
use crate::proto::fleet_client::FleetClient;
use crate::wire::{MAX_MESSAGE, MAX_URL};

/// How long it may take until a connection stands, and again until the stream does.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often the other end is asked whether it is there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(5);

/// Requests that wait for the connection. What is more is not sent: the next one says all.
const BACKLOG: usize = 4;

/// Where a coordinator listens for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorUrl(Arc<str>);

impl CoordinatorUrl {
    /// Whether the connection is by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Whether only this machine is at the other end.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let uri = self.0.parse::<tonic::transport::Uri>().ok();
        let host = uri.as_ref().and_then(tonic::transport::Uri::host);
        let host = host.unwrap_or_default().trim_matches(['[', ']']);
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|ip| ip.is_loopback())
    }
}

impl FromStr for CoordinatorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is no URL of a coordinator: write one such as http://10.0.0.1:7600 or \
                 https://coordinator.internal:7600",
                text.chars().take(100).collect::<String>()
            )
        };
        let uri: tonic::transport::Uri = text.parse().map_err(|_| wrong())?;
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_bare = matches!(
            uri.path_and_query().map(|path| path.as_str()),
            None | Some("/" | "")
        );
        let is_plain = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
        if !is_known || !is_bare || !is_plain || text.len() > MAX_URL {
            return Err(wrong());
        }
        Ok(Self(text.trim_end_matches('/').into()))
    }
}

impl fmt::Display for CoordinatorUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A token, read again for each connection.
#[derive(Clone, PartialEq, Eq)]
pub enum Token {
    /// This one.
    Text(String),
    /// The text of this file, without space around it.
    File(PathBuf),
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// What a node shows to coordinators, and whom it takes for one. Files are read again for each connection.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The token, for coordinators that ask for one.
    pub token: Option<Token>,
    /// The authorities that vouch for coordinators, as a PEM file; those of the system by default.
    pub ca: Option<PathBuf>,
    /// A certificate of the node and its key, as PEM files.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The text of the files.
struct Shown {
    token: Option<String>,
    ca: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Credentials {
    fn read(&self) -> Result<Shown, String> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let token = match &self.token {
            None => None,
            Some(Token::Text(text)) => Some(text.clone()),
            Some(Token::File(path)) => {
                let text = String::from_utf8(read(path)?);
                let text = text.map_err(|_| format!("{}: this is no token", path.display()))?;
                Some(text.trim().to_owned())
            }
        };
        let certificate = match &self.certificate {
            None => None,
            Some((certificate, key)) => Some((read(certificate)?, read(key)?)),
        };
        Ok(Shown {
            token,
            ca: self.ca.as_ref().map(read).transpose()?,
            certificate,
        })
    }
}

/// A stream to a coordinator.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) url: CoordinatorUrl,
    pub(super) requests: mpsc::Sender<proto::Request>,
    pub(super) answers: Streaming<proto::Response>,
}

/// Chooses coordinators, in the order of the list, or as they say themselves.
#[derive(Debug)]
pub(super) struct Dialer {
    urls: Vec<CoordinatorUrl>,
    credentials: Arc<Credentials>,
    next: usize,
    /// Where the leader is, as another coordinator said.
    leader: Option<CoordinatorUrl>,
}

impl Dialer {
    pub(super) fn new(urls: Vec<CoordinatorUrl>, credentials: Credentials) -> Self {
        Self {
            urls,
            credentials: Arc::new(credentials),
            next: 0,
            leader: None,
        }
    }

    /// Tries the leader next. A node shows what it has to nobody in the clear, beyond this machine, unless
    /// its own list says so.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) fn lead(&mut self, url: &str) -> Result<(), String> {
        let url: CoordinatorUrl = url.parse()?;
        let is_open = |url: &CoordinatorUrl| !url.is_tls() && !url.is_loopback();
        if is_open(&url) && !self.urls.iter().any(is_open) {
            return Err(format!(
                "{url} is not TLS, and no coordinator that this node was told of is reached so: let \
                 coordinators advertise https URLs"
            ));
        }
        self.leader = Some(url);
        Ok(())
    }

    /// Opens a stream to the next coordinator.
    pub(super) fn dial(
        &mut self,
    ) -> (
        CoordinatorUrl,
        impl Future<Output = Result<Link, String>> + Send + use<>,
    ) {
        let url = self.leader.take().or_else(|| {
            let url = self.urls.get(self.next % self.urls.len().max(1)).cloned();
            self.next = self.next.wrapping_add(1);
            url
        });
        // The list is not empty.
        let url = url.unwrap_or_else(|| CoordinatorUrl("http://127.0.0.1:7600".into()));
        let open = open(url.clone(), Arc::clone(&self.credentials));
        (url, open)
    }
}

async fn open(url: CoordinatorUrl, credentials: Arc<Credentials>) -> Result<Link, String> {
    let shown = tokio::task::spawn_blocking(move || credentials.read()).await;
    let shown = shown.map_err(|error| error.to_string())??;
    let endpoint = Endpoint::from_shared(url.to_string()).map_err(|error| error.to_string())?;
    let mut endpoint = endpoint
        .connect_timeout(PATIENCE)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .keep_alive_while_idle(true);
    if url.is_tls() {
        let mut tls = match &shown.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        if let Some((certificate, key)) = &shown.certificate {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint = endpoint.tls_config(tls).map_err(|error| causes(&error))?;
    }
    let late = |_| "it does not answer".to_owned();
    let channel = tokio::time::timeout(PATIENCE, endpoint.connect()).await;
    let channel = channel.map_err(late)?.map_err(|error| causes(&error))?;
    let mut client = FleetClient::new(channel)
        .max_decoding_message_size(MAX_MESSAGE)
        .max_encoding_message_size(MAX_MESSAGE);
    let (requests, receiver) = mpsc::channel(BACKLOG);
    let mut request = tonic::Request::new(ReceiverStream::new(receiver));
    if let Some(token) = &shown.token {
        let value: Result<MetadataValue<_>, _> = format!("Bearer {token}").parse();
        let mut value =
            value.map_err(|_| "the token has characters that no token has".to_owned())?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
    }
    let answers = tokio::time::timeout(PATIENCE, client.attend(request)).await;
    let answers = answers.map_err(late)?.map_err(|status| refusal(&status))?;
    Ok(Link {
        url,
        requests,
        answers: answers.into_inner(),
    })
}

/// Why a coordinator has ended the stream.
pub(super) fn refusal(status: &tonic::Status) -> String {
    let said = status.message();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            format!("it does not let this node in: {said}: check the node's token or certificate")
        }
        Code::Unimplemented => "there is no coordinator: check the port".to_owned(),
        Code::InvalidArgument => format!("it does not understand this node: {said}"),
        _ if said.is_empty() => status.code().description().to_owned(),
        _ => said.to_owned(),
    }
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_coordinators() {
        for text in [
            "http://10.0.0.1:7600",
            "https://a.internal",
            "http://[::1]:7600/",
        ] {
            assert!(text.parse::<CoordinatorUrl>().is_ok(), "{text}");
        }
        for text in [
            "",
            "10.0.0.1:7600",
            "ftp://a",
            "http://a/b",
            "http://u:p@a",
            "http://",
        ] {
            let error = text.parse::<CoordinatorUrl>().unwrap_err();
            assert!(error.contains("write one such as"), "{error}");
        }
        let local = |text: &str| text.parse::<CoordinatorUrl>().unwrap().is_loopback();
        assert!(
            local("http://127.0.0.1:1") && local("http://[::1]:1") && local("http://localhost:1")
        );
        assert!(!local("http://10.0.0.1:1") && !local("http://localhost.example:1"));
    }

    #[test]
    fn coordinators_are_tried_in_turn_and_a_leader_first() {
        let urls = ["https://a", "https://b"].map(|url| url.parse().unwrap());
        let mut dialer = Dialer::new(urls.to_vec(), Credentials::default());
        let mut next = || dialer.dial().0.to_string();
        assert_eq!(
            [next(), next(), next()],
            ["https://a", "https://b", "https://a"]
        );
        dialer.lead("https://c").unwrap();
        assert_eq!(dialer.dial().0.to_string(), "https://c");
        assert_eq!(dialer.dial().0.to_string(), "https://b");
        assert!(dialer.lead("http://c").unwrap_err().contains("not TLS"));
        assert!(dialer.lead("c").is_err());
        // A tunnel on this machine is no reason to speak in the clear beyond it.
        let tunnel = ["https://a", "http://127.0.0.1:1"].map(|url| url.parse().unwrap());
        let mut dialer = Dialer::new(tunnel.to_vec(), Credentials::default());
        assert!(dialer.lead("http://c").unwrap_err().contains("not TLS"));
        dialer.lead("http://127.0.0.1:2").unwrap();
        let open = ["https://a", "http://b"].map(|url| url.parse().unwrap());
        let mut dialer = Dialer::new(open.to_vec(), Credentials::default());
        dialer.lead("http://c").unwrap();
    }
}
