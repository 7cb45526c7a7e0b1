//! Certificates that tests make, and clients that speak TLS.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use quell_server::Address;
use quell_testkit::certificates;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::harness::{Answer, Fixture, SHOP, connect};

/// The settings of a server with a certificate of [`Authority::write`].
pub(crate) const TLS: &str = "tls_cert = 'DIR/cert.pem'\ntls_key = 'DIR/key.pem'\n";

/// A connection over TLS.
pub(crate) type TlsStream = StreamOwned<ClientConnection, TcpStream>;

/// Signs certificates.
pub(crate) struct Authority {
    signer: certificates::Authority,
    /// Its own certificate.
    pub(crate) pem: String,
}

/// A certificate and its private key, both as PEM.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl From<certificates::Pair> for Pair {
    fn from(pair: certificates::Pair) -> Self {
        let certificates::Pair { certificate, key } = pair;
        Self { certificate, key }
    }
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let signer = certificates::Authority::new(name);
        let pem = signer.pem.clone();
        Self { signer, pem }
    }

    /// A certificate for these names and, if there is a colon in one, URIs.
    pub(crate) fn sign(&self, names: &[&str]) -> Pair {
        self.signer.sign(names).into()
    }

    /// The same until then: `YYYYMMDDhhmmssZ`.
    pub(crate) fn sign_until(&self, names: &[&str], end: &str) -> Pair {
        self.signer.sign_until(names, end).into()
    }

    /// A server with a certificate of this authority and these settings.
    pub(crate) fn serve(&self, settings: &str) -> Fixture {
        let mut server = Fixture::prepare(SHOP, &format!("{TLS}{settings}"));
        self.sign(&["localhost"]).write(&server);
        server.stop_clock();
        server.start().unwrap();
        server
    }

    /// A connection to a server with a certificate of this authority.
    pub(crate) fn connect(&self, address: SocketAddr) -> TlsStream {
        self.connect_as(address, None, &[])
    }

    /// The same as a client with a certificate, which offers these protocols.
    pub(crate) fn connect_as(
        &self,
        address: SocketAddr,
        client: Option<&Pair>,
        protocols: &[&str],
    ) -> TlsStream {
        self.connect_over(connect(address), client, protocols)
    }

    /// The same over a connection that is open.
    pub(crate) fn connect_over(
        &self,
        stream: TcpStream,
        client: Option<&Pair>,
        protocols: &[&str],
    ) -> TlsStream {
        let mut roots = RootCertStore::empty();
        let pem = self.pem.as_bytes();
        roots
            .add(CertificateDer::from_pem_slice(pem).unwrap())
            .unwrap();
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match client {
            Some(client) => builder
                .with_client_auth_cert(client.chain(), client.key())
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        config.enable_secret_extraction = true;
        config.alpn_protocols = protocols
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let name = "localhost".try_into().unwrap();
        let session = ClientConnection::new(Arc::new(config), name).unwrap();
        StreamOwned::new(session, stream)
    }

    /// Sends `bytes` over TLS, says that these are all, and reads to the end.
    pub(crate) fn exchange(
        &self,
        address: SocketAddr,
        client: Option<&Pair>,
        bytes: &[u8],
    ) -> Vec<u8> {
        let mut stream = self.connect_as(address, client, &[]);
        stream.write_all(bytes).unwrap();
        stream.conn.send_close_notify();
        read_to_end(stream)
    }

    /// A request over HTTP on a connection of its own.
    pub(crate) fn request(
        &self,
        address: SocketAddr,
        client: Option<&Pair>,
        (method, target, body): (&str, &str, &str),
        fields: &str,
    ) -> Answer {
        let kind = match body.is_empty() {
            true => "",
            false => "Content-Type: application/json\r\n",
        };
        let request = format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Length: {}\r\n{kind}{fields}\r\n{body}",
            body.len()
        );
        let mut stream = self.connect_as(address, client, &[]);
        stream.write_all(request.as_bytes()).unwrap();
        Answer::read(&read_to_end(stream))
    }

    /// The value of a line of the metrics.
    pub(crate) fn metric(&self, server: &Fixture, series: &str) -> Option<String> {
        let admin = server.server().admin_address().and_then(Address::tcp);
        let listener = admin.unwrap_or_else(|| server.http());
        let text = self
            .request(listener, None, ("GET", "/metrics", ""), "")
            .body;
        let line = text.lines().find_map(|line| line.strip_prefix(series));
        line.map(|rest| rest.trim().to_owned())
    }
}

/// Reads to the end, which has to be a clean one.
fn read_to_end(mut stream: TlsStream) -> Vec<u8> {
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    reply
}

impl Pair {
    /// Writes it as the certificate of a server.
    pub(crate) fn write(&self, server: &Fixture) {
        std::fs::write(server.path("cert.pem"), &self.certificate).unwrap();
        std::fs::write(server.path("key.pem"), &self.key).unwrap();
    }

    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes());
        chain.map(Result::unwrap).collect()
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.key.as_bytes()).unwrap()
    }
}
