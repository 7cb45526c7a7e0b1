//! Connection: the stream to a coordinator, and which coordinator is tried next.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Streaming};

use super::connector::{CONNECT_TIMEOUT, Connector, ConnectorService};
use crate::proto;
use crate::service::FleetClient;
use crate::wire::MAX_URL;

/// Interval at which the other end is pinged, and the time that it has to answer.
const PING: Duration = Duration::from_secs(5);

/// Requests that wait for the connection. What is more is not sent: the next one says all.
const BACKLOG: usize = 4;

/// URL at which a coordinator listens for nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoordinatorUrl(Arc<str>);

impl CoordinatorUrl {
    /// Returns true if the connection is by TLS.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// Returns true if only this machine is at the other end.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self.host();
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|ip| ip.is_loopback())
    }

    /// The host, in lower case.
    fn host(&self) -> String {
        let uri = self.0.parse::<tonic::transport::Uri>().ok();
        let host = uri.as_ref().and_then(tonic::transport::Uri::host);
        let host = host.unwrap_or_default().trim_matches(['[', ']']);
        host.to_ascii_lowercase()
    }

    /// Checks whether credentials meant for the coordinators `named` may be presented here as well, where
    /// one of them says that the leader is: to a host among them by TLS, to a host that `has_authority`
    /// vouches for, which is one that was named too and not any that the machine trusts, and in the clear
    /// within this machine alone.
    ///
    /// # Errors
    /// Why not.
    pub fn check_shown(&self, named: &[Self], has_authority: bool) -> Result<(), NotNamed> {
        let host = self.host();
        let may = match (named.contains(self), self.is_tls()) {
            (true, _) => true,
            (false, true) => has_authority || named.iter().any(|one| one.host() == host),
            (false, false) => {
                let is_open_here = |one: &Self| !one.is_tls() && one.is_loopback();
                self.is_loopback() && named.iter().any(is_open_here)
            }
        };
        match may {
            true => Ok(()),
            false if self.is_tls() => Err(NotNamed::Host),
            false => Err(NotNamed::Open),
        }
    }
}

/// Reason why a coordinator is not shown credentials that are meant for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotNamed {
    /// Its host was not named, nor an authority that vouches for coordinators.
    Host,
    /// The connection would not be TLS.
    Open,
}

impl FromStr for CoordinatorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is not the URL of a coordinator: write one such as http://10.0.0.1:7600 or \
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

/// Credentials that a node presents to coordinators, and the CA by which it trusts them. Files are read
/// again for each connection.
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
struct CredentialTexts {
    token: Option<String>,
    ca: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Credentials {
    fn read(&self) -> Result<CredentialTexts, String> {
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
        Ok(CredentialTexts {
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
    /// For other calls on the connection.
    pub(super) calls: CallLink,
}

/// A connection to a coordinator for calls beside the stream, with the token to show.
#[derive(Clone, Debug)]
pub(super) struct CallLink {
    client: FleetClient<Channel>,
    token: Option<MetadataValue<Ascii>>,
}

impl CallLink {
    /// A request that shows the token.
    fn request<M>(&self, message: M) -> tonic::Request<M> {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request
                .metadata_mut()
                .insert("authorization", token.clone());
        }
        request
    }

    /// Makes a call about overrides.
    pub(super) async fn overrides(
        &self,
        call: proto::OverrideCall,
    ) -> Result<proto::OverrideAnswer, tonic::Status> {
        let answer = self.client.clone().overrides(self.request(call)).await?;
        Ok(answer.into_inner())
    }
}

/// Chooses coordinators, in the order of the list, or as they say themselves.
#[derive(Debug)]
pub(super) struct Dialer {
    urls: Vec<CoordinatorUrl>,
    credentials: Arc<Credentials>,
    connector: Connector,
    next: usize,
    /// URL of the leader, as another coordinator named it.
    leader: Option<CoordinatorUrl>,
}

impl Dialer {
    pub(super) fn new(
        urls: Vec<CoordinatorUrl>,
        credentials: Credentials,
        connector: Connector,
    ) -> Self {
        Self {
            urls,
            credentials: Arc::new(credentials),
            connector,
            next: 0,
            leader: None,
        }
    }

    /// Tries the leader next, if what the node has may be shown to it.
    ///
    /// # Errors
    /// Why it does not.
    pub(super) fn lead(&mut self, url: &str) -> Result<(), String> {
        let url: CoordinatorUrl = url.parse()?;
        let has_authority = self.credentials.ca.is_some();
        let checked = url.check_shown(&self.urls, has_authority);
        checked.map_err(|why| match why {
            NotNamed::Host => format!(
                "the coordinator names {url} as the leader, which --fleet does not have: add it to --fleet, \
                or name the authority of the coordinators with --fleet-ca"
            ),
            NotNamed::Open => format!(
                "the coordinator names {url} as the leader, which is not TLS and which --fleet does not \
                have: let coordinators advertise https URLs, or add it to --fleet"
            ),
        })?;
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
        let open = open(
            url.clone(),
            Arc::clone(&self.credentials),
            self.connector.clone(),
        );
        (url, open)
    }
}

async fn open(
    url: CoordinatorUrl,
    credentials: Arc<Credentials>,
    connector: Connector,
) -> Result<Link, String> {
    let shown = tokio::task::spawn_blocking(move || credentials.read()).await;
    let shown = shown.map_err(|error| error.to_string())??;
    let endpoint = Endpoint::from_shared(url.to_string()).map_err(|error| error.to_string())?;
    let mut endpoint = endpoint
        .connect_timeout(CONNECT_TIMEOUT)
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
    let connecting = endpoint.connect_with_connector(ConnectorService(connector));
    let channel = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    let channel = channel.map_err(late)?.map_err(|error| causes(&error))?;
    let token = shown.token.map(|token| {
        let value: Result<MetadataValue<_>, _> = format!("Bearer {token}").parse();
        let mut value =
            value.map_err(|_| "the token has characters that a token cannot have".to_owned())?;
        value.set_sensitive(true);
        Ok::<_, String>(value)
    });
    let calls = CallLink {
        client: FleetClient::new(channel),
        token: token.transpose()?,
    };
    let (requests, receiver) = mpsc::channel(BACKLOG);
    let request = calls.request(ReceiverStream::new(receiver));
    let mut client = calls.client.clone();
    let answers = tokio::time::timeout(CONNECT_TIMEOUT, client.attend(request)).await;
    let answers = answers.map_err(late)?.map_err(|status| refusal(&status))?;
    Ok(Link {
        url,
        requests,
        answers: answers.into_inner(),
        calls,
    })
}

/// Reason why a coordinator has ended the stream.
pub(super) fn refusal(status: &tonic::Status) -> String {
    let said = status.message();
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => {
            format!(
                "the coordinator refuses this node: {said}: check the node's token or certificate"
            )
        }
        Code::Unimplemented => "no coordinator answers at this port: check the URL".to_owned(),
        Code::InvalidArgument => format!("the coordinator cannot read this node's message: {said}"),
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
        let mut dialer = Dialer::new(urls.to_vec(), Credentials::default(), Connector::tcp());
        let mut next = || dialer.dial().0.to_string();
        assert_eq!(
            [next(), next(), next()],
            ["https://a", "https://b", "https://a"]
        );
        dialer.lead("https://B:7601").unwrap();
        assert_eq!(dialer.dial().0.to_string(), "https://B:7601");
        assert_eq!(dialer.dial().0.to_string(), "https://b");
    }

    /// A coordinator names the leader; the node's token is for those that were named to the node.
    #[test]
    fn a_token_is_shown_to_hosts_that_were_named_and_never_in_the_clear() {
        let dialer = |named: &[&str], ca: bool| {
            let urls = named.iter().map(|url| url.parse().unwrap()).collect();
            let credentials = Credentials {
                ca: ca.then(|| PathBuf::from("ca.pem")),
                ..Credentials::default()
            };
            Dialer::new(urls, credentials, Connector::tcp())
        };
        for (named, ca, leader, told) in [
            (&["https://a"][..], false, "https://a:9", None),
            (
                &["https://a"],
                false,
                "https://stranger",
                Some("does not have"),
            ),
            (&["https://a"], true, "https://c", None),
            (&["https://a"], true, "http://a", Some("not TLS")),
            (&["https://a"], true, "http://127.0.0.1:1", Some("not TLS")),
            (
                &["https://a", "http://127.0.0.1:1"],
                false,
                "http://localhost:2",
                None,
            ),
            (
                &["https://a", "http://127.0.0.1:1"],
                false,
                "http://c",
                Some("not TLS"),
            ),
            (
                &["https://a", "http://b"],
                false,
                "http://c",
                Some("not TLS"),
            ),
            (
                &["https://a", "http://b"],
                false,
                "http://b:2",
                Some("not TLS"),
            ),
            (&["https://a", "http://b"], false, "http://b", None),
            (&["https://a"], false, "a", Some("not the URL")),
        ] {
            let lead = dialer(named, ca).lead(leader);
            match told {
                None => assert_eq!(lead, Ok(()), "{named:?} {leader}"),
                Some(told) => {
                    let why = lead.unwrap_err();
                    assert!(why.contains(told), "{named:?} {leader}: {why}");
                }
            }
        }
    }
}
